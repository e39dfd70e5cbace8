/** Contradictions between parts of a manifest. */

import { LARGEST_AXIS, type Axis } from "./arrays.js";
import type { EvaluationRules } from "./evaluation.js";
import { listed, named, quoted, shown } from "./messages.js";
import type { Bundle, Graph, Memory } from "./spec.js";

const EACH = ["batch", "segment"];
// Required outputs of the graphs, by purpose: type and axes. "vocabulary" and "listed" are sizes that a bundle defines.
const GIVEN: Record<string, Record<string, readonly [string, readonly string[]]>> = {
  score: { log_prob: ["float32", EACH] },
  generate: { logits: ["float32", ["batch", "vocabulary"]] },
  detail: {
    log_prob: ["float32", EACH],
    rank: ["int64", EACH],
    entropy: ["float32", EACH],
    top_ids: ["int64", [...EACH, "listed"]],
    top_log_probs: ["float32", [...EACH, "listed"]],
  },
};

/** Return the symbol of a ring's capacity; null if an entry is not a ring. */
export function symbolOf(entry: Memory): string | null {
  const free = entry.shape.filter((axis) => typeof axis === "string" && axis !== "batch");
  return entry.layout === "ring" && free.length === 1 ? (free[0] as string) : null;
}

/** Yield contradictions between parts of the manifest. */
export function* contradictions(bundle: Bundle): Iterable<string> {
  if (!(bundle.vocab_size >= 1 && bundle.vocab_size <= LARGEST_AXIS)) {
    yield `vocab_size is ${shown(bundle.vocab_size)}, expected 1 to ${LARGEST_AXIS}`;
  }
  const taken = EACH.find((axis) => Object.hasOwn(bundle.evaluation.rings, axis));
  if (taken !== undefined) yield `a ring has the symbol '${taken}', which is another axis`;
  const [first, last] = [bundle.tokenizer.first_id, bundle.tokenizer.first_id + 255];
  if (bundle.tokenizer.kind === "bytes" && last >= bundle.vocab_size) {
    yield `bytes have ids ${first} to ${last}, but the vocabulary is 0 to ${bundle.vocab_size - 1}`;
  }
  const graphs = Object.values(bundle.graphs);
  const sizes = graphs.flatMap((graph) =>
    graph.outputs.filter((tensor) => tensor.name === "logits").map((tensor) => tensor.shape.at(-1)),
  );
  const wrong = sizes.find((size) => typeof size === "number" && size !== bundle.vocab_size);
  if (wrong !== undefined) yield `vocab_size is ${bundle.vocab_size}, but the graphs know ${wrong} tokens`;
  const score = Object.hasOwn(bundle.graphs, "score") ? bundle.graphs["score"] : undefined;
  if (score === undefined) {
    yield "the graph 'score' is missing";
    return;
  }
  yield* problemsOfMemory(bundle, score);
  for (const [purpose, graph] of Object.entries(bundle.graphs)) yield* strangeOutputs(bundle, purpose, graph);
}

function* problemsOfMemory(bundle: Bundle, score: Graph): Iterable<string> {
  for (const entry of bundle.memory) {
    const problem = problemOf(entry, bundle.evaluation.rings);
    if (problem) yield `memory ${named(entry.input)} ${problem}`;
  }
  const inputs = new Set(score.inputs.map((tensor) => tensor.name));
  const outputs = new Set(score.outputs.map((tensor) => tensor.name));
  const strange = bundle.memory.filter((entry) => !inputs.has(entry.input) || !outputs.has(entry.output));
  if (strange.length) {
    const names = listed(strange.map((entry) => shown(entry.input)));
    yield `memory that the score graph does not take or return: ${names}`;
  }
  if (new Set(bundle.memory.flatMap((entry) => [entry.input, entry.output])).size < 2 * bundle.memory.length) {
    yield "memories share an input or output";
  }
}

/** Return the problem of a memory's shape, or null. */
function problemOf(entry: Memory, rings: EvaluationRules["rings"]): string | null {
  const free = entry.shape.slice(1).filter((axis) => typeof axis === "string");
  if (entry.shape[0] !== "batch") return "has no axis 'batch' in front";
  if (entry.layout === "ring") {
    if (free.length === 1 && Object.hasOwn(rings, free[0] as string)) return null;
    const names = Object.keys(rings).map(quoted).join(", ");
    return `is a ring over [${free.map(quoted).join(", ")}], expected one of [${names}]`;
  }
  if (free.length) return `is a ${entry.layout} with free axes [${free.map(quoted).join(", ")}]`;
  return entry.layout === "window" && entry.shape.length < 3 ? "is a window without rows" : null;
}

/** Yield differences between a graph's declared outputs and the needs of its purpose. */
function* strangeOutputs(bundle: Bundle, purpose: string, graph: Graph): Iterable<string> {
  const kind = purpose.replace(/_few$/, "").replace(/_fixed$/, "");
  const given = Object.hasOwn(GIVEN, kind) ? (GIVEN[kind] as (typeof GIVEN)[string]) : {};
  for (const [name, [dtype, shape]] of Object.entries(given)) {
    const tensor = graph.outputs.find((output) => output.name === name);
    if (tensor === undefined) {
      yield `the graph ${quoted(named(purpose))} does not return ${name}`;
    } else if (
      tensor.dtype !== dtype ||
      tensor.shape.length !== shape.length ||
      !tensor.shape.every((axis, index) => isSize(bundle, axis, shape[index] as string))
    ) {
      yield `${name} of the graph ${quoted(named(purpose))} is not ${dtype} (${shape.join(", ")})`;
    }
  }
}

function isSize(bundle: Bundle, axis: Axis, expected: string): boolean {
  if (expected === "listed") return typeof axis === "number" && axis <= bundle.vocab_size;
  return axis === (expected === "vocabulary" ? bundle.vocab_size : expected);
}
