/**
 * Refuse graphs that xlexport cannot have written, before ONNX Runtime sees any part of them.
 *
 * ONNX Runtime runs each operator that a file names, follows each file name in it, and expands each function. So this
 * module first walks the file as protocol buffers. A graph that passes can still take long or need much memory.
 */

import { BundleError } from "./errors.js";
import { Budget, type Limits } from "./limits.js";
import { counted, firstLine, listed, named } from "./messages.js";
import { OPERATORS } from "./operators.js";
import { fields, MessageError, type Field } from "./protobuf.js";

const DOMAIN = "ai.xlexport"; // of the functions in a file; all other operators are standard ones
const GRAPH_LIMITS: Limits = { bytes: 2 ** 30, operations: 5_000_000 };
const MOST_NODES = 100_000; // once all functions are expanded
const DEEPEST = 16; // graphs within nodes and functions within functions; xlexport writes 2
const REPAIR = "Convert the checkpoint again; open untrusted bundles only in a sandbox.";

// The relevant fields of each message, by field number: inner messages, and texts by name.
type Message = "model" | "graph" | "node" | "attribute" | "tensor" | "sparse" | "function" | "entry" | "training";
interface Layout {
  messages: Record<number, Message>;
  texts: Record<number, string>;
}
const LAYOUTS: Record<Message, Layout> = {
  model: { messages: { 7: "graph", 20: "training", 25: "function" }, texts: {} },
  graph: { messages: { 1: "node", 5: "tensor", 15: "sparse" }, texts: {} },
  node: { messages: { 5: "attribute" }, texts: { 3: "label", 4: "name", 7: "domain", 8: "overload" } },
  attribute: {
    messages: { 5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse" },
    texts: {},
  },
  tensor: { messages: { 13: "entry" }, texts: {} },
  sparse: { messages: { 1: "tensor", 2: "tensor" }, texts: {} },
  function: { messages: { 7: "node", 11: "attribute" }, texts: { 1: "name", 10: "domain", 13: "overload" } },
  entry: { messages: {}, texts: { 1: "key", 2: "value" } },
  training: { messages: {}, texts: {} },
};
const WANTED = new Map(
  Object.entries(LAYOUTS).map(([kind, { messages, texts }]) => {
    return [kind as Message, new Set([...Object.keys(messages), ...Object.keys(texts)].map(Number))] as const;
  }),
);
const METADATA = new Set([14]); // of a model: entries

/** Counts of a function or of the main graph: nodes, and for each called function its calls and their depth. */
class Scope {
  nodes = 0;
  depth = 0;
  readonly calls = new Map<string, { times: number; deepest: number }>();
}

/** A message that is not yet read: its place, its scope, and the number of graphs around it in this scope. */
type Waiting = [kind: Message, begin: number, end: number, scope: Scope, depth: number];

/**
 * Refuse the content of an ONNX file that xlexport cannot have written.
 *
 * @param content - the whole file.
 * @param file - its place, for messages.
 * @param dataFiles - names of files of the bundle that may hold its tensors.
 * @returns The data files that hold its tensors, and the names of nodes that compute sines or cosines.
 * @throws BundleError - the content is not a graph, names other operators, domains or files, has functions that call
 *     themselves, or exceeds the bounds.
 */
export function checkGraph(
  content: Uint8Array,
  file: string,
  dataFiles: ReadonlySet<string>,
): { locations: Iterable<string>; sines: string[] } {
  const walk = readMessages(file, () => new Walk(content, file, dataFiles));
  const problems = [...walk.problems()];
  if (problems.length) throw new BundleError(`${file}: ${problems.join("; ")}.`, REPAIR);
  return walk;
}

/** Return the value of a key in the metadata of an ONNX file, or null. */
export function readMetadata(content: Uint8Array, file: string, key: string): string | null {
  return readMessages(file, () => {
    let found: string | null = null;
    for (const [, begin, end] of fields(content, 0, content.length, METADATA)[0]) {
      const said = texts(content, fields(content, begin, end, WANTED.get("entry") as Set<number>)[0], LAYOUTS.entry);
      if (said["key"] === key) found = said["value"] ?? "";
    }
    return found;
  });
}

function readMessages<T>(file: string, read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (!(error instanceof MessageError)) throw error;
    throw new BundleError(`${file}: not an ONNX graph (${firstLine(error)}).`, "Copy the bundle again.", error);
  }
}

function texts(content: Uint8Array, found: Field[], layout: Layout): Record<string, string> {
  const said: Record<string, string> = {};
  for (const [number, begin, end] of found) {
    const name = layout.texts[number];
    if (name !== undefined) said[name] = new TextDecoder().decode(content.subarray(begin, end));
  }
  return said;
}

/** One pass over a file, which records its contents. */
class Walk {
  readonly locations = new Set<string>();
  readonly sines: string[] = [];
  readonly #content: Uint8Array;
  readonly #dataFiles: ReadonlySet<string>;
  readonly #budget: Budget;
  readonly #main = new Scope();
  readonly #functions = new Map<string, Scope>();
  readonly #operators = new Set<string>();
  readonly #strange = new Set<string>(); // problems, each once, in order
  readonly #sizes = new Map<string, [nodes: number, depth: number]>();
  readonly #waiting: Waiting[];

  constructor(content: Uint8Array, file: string, dataFiles: ReadonlySet<string>) {
    this.#content = content;
    this.#dataFiles = dataFiles;
    this.#budget = new Budget(GRAPH_LIMITS, file, BundleError);
    this.#budget.charge(content.length);
    this.#waiting = [["model", 0, content.length, this.#main, 0]];
    for (let next = this.#waiting.pop(); next; next = this.#waiting.pop()) this.#message(...next);
  }

  /** Read one message; its inner messages wait. */
  #message(kind: Message, begin: number, end: number, scope: Scope, depth: number): void {
    if (kind === "graph" || kind === "function" || kind === "training") {
      [scope, depth] = this.#enter(kind, scope, depth);
      if (depth > DEEPEST) return;
    }
    const layout = LAYOUTS[kind];
    const [found, count] = fields(this.#content, begin, end, WANTED.get(kind) as Set<number>);
    this.#budget.charge(0, 1 + count);
    for (const [number, first, last] of found) {
      const inner = layout.messages[number];
      if (inner !== undefined) this.#waiting.push([inner, first, last, scope, depth]);
    }
    if (kind === "node") this.#node(texts(this.#content, found, layout), scope, depth);
    else if (kind === "function") this.#function(nameOf(texts(this.#content, found, layout)), scope);
    else if (kind === "entry") this.#entry(texts(this.#content, found, layout));
  }

  /** Return the scope of a function or graph, and the number of graphs around its nodes. */
  #enter(kind: Message, scope: Scope, depth: number): [Scope, number] {
    if (kind === "training") {
      this.#strange.add("it holds a training graph");
      return [scope, DEEPEST + 1];
    }
    if (kind === "function") return [new Scope(), 0];
    scope.depth = Math.max(scope.depth, depth + 1);
    if (depth === DEEPEST) this.#strange.add(`graphs within nodes are more than ${DEEPEST} deep`);
    return [scope, depth + 1];
  }

  #node(said: Record<string, string>, scope: Scope, depth: number): void {
    scope.nodes += 1;
    const [domain, name] = parts(nameOf(said));
    if (name === "Sin" || name === "Cos") this.sines.push(said["label"] ?? "");
    if (domain === DOMAIN) {
      const call = scope.calls.get(nameOf(said)) ?? { times: 0, deepest: 0 };
      scope.calls.set(nameOf(said), { times: call.times + 1, deepest: Math.max(call.deepest, depth) });
    } else if (domain || !OPERATORS.has(name)) {
      this.#operators.add(nameOf(said));
    }
  }

  #function(name: string, scope: Scope): void {
    if (parts(name)[0] !== DOMAIN) {
      this.#strange.add(`it holds the function ${shownName(name)}, expected functions of ${DOMAIN} only`);
    } else if (this.#functions.has(name)) {
      this.#strange.add(`it holds the function ${shownName(name)} twice`);
    }
    this.#functions.set(name, scope);
  }

  #entry(said: Record<string, string>): void {
    if (said["key"] !== "location") return;
    const location = said["value"] ?? "";
    this.locations.add(location);
    if (!this.#dataFiles.has(location)) {
      this.#strange.add(`its weights lie in ${named(location)}, which bundle.json does not list`);
    }
  }

  /** Yield the problems of the file. */
  *problems(): Iterable<string> {
    if (this.#operators.size) {
      const names = listed([...this.#operators].map(shownName).sort());
      yield `it holds operators that xlexport does not write (${names})`;
    }
    yield* [...this.#strange].slice(0, 5);
    if (this.#strange.size) return;
    try {
      let nodes = 0; // also of functions that nothing calls
      for (const scope of this.#functions.values()) nodes += scope.nodes;
      if (Math.max(nodes, this.#size(this.#main, [])[0]) > MOST_NODES) {
        yield `it has more than ${counted(MOST_NODES)} nodes, its functions expanded`;
      }
    } catch (problem) {
      if (!(problem instanceof FunctionProblem)) throw problem;
      yield problem.message;
    }
  }

  /** Return the number of nodes and the depth of a scope after all its calls are expanded. */
  #size(scope: Scope, callers: string[]): [nodes: number, depth: number] {
    if (callers.length > DEEPEST) throw new FunctionProblem(`functions within functions are more than ${DEEPEST} deep`);
    let { nodes, depth } = scope;
    for (const [name, call] of scope.calls) {
      const called = this.#functions.get(name);
      if (called === undefined) throw new FunctionProblem(`it calls ${shownName(name)}, which it does not hold`);
      if (callers.includes(name)) throw new FunctionProblem(`the function ${shownName(name)} calls itself`);
      const inner = this.#sizes.get(name) ?? this.#size(called, [...callers, name]);
      this.#sizes.set(name, inner);
      nodes += call.times * inner[0];
      depth = Math.max(depth, call.deepest + 1 + inner[1]);
    }
    if (depth > DEEPEST) {
      throw new FunctionProblem(`graphs and functions within each other are more than ${DEEPEST} deep`);
    }
    return [nodes, depth];
  }
}

/** The functions of a file are not acceptable. */
class FunctionProblem extends Error {}

/** Return domain, name and overload as one text. */
function nameOf(said: Record<string, string>): string {
  const domain = said["domain"] ?? "";
  return [domain === "ai.onnx" ? "" : domain, said["name"] ?? "", said["overload"] ?? ""].join("\0");
}

function parts(name: string): [domain: string, operator: string, overload: string] {
  const [domain = "", operator = "", overload = ""] = name.split("\0");
  return [domain, operator, overload];
}

function shownName(name: string): string {
  return named(parts(name).filter(Boolean).join("."));
}
