/** One graph of a bundle in ONNX Runtime. */

import type { Bundle, BundleFiles, Graph } from "./bundle.js";
import { BundleGraphError, OutOfMemoryError, ProviderError, XlruntimeError } from "./errors.js";
import { escaped, firstLine, listed } from "./messages.js";
import type { OrtSession, OrtTensor, Runtime, Tensors } from "./onnxruntime.js";
import { fields } from "./protobuf.js";

const AGAIN = "Copy the bundle again, or convert the checkpoint again.";
// ONNX Runtime's words for an operator that no provider of a session has.
const LACKING = /(?:Provider type for|implementation for) (\w+)\S* node with name '([^']*)'/;

/** A graph that can run. */
export class Session {
  private constructor(
    readonly graph: Graph,
    private readonly place: string,
    private readonly vocabSize: number,
    private readonly runtime: Runtime,
    private readonly session: OrtSession,
    private readonly outputs: readonly string[],
  ) {}

  /**
   * Open the graph `name`. Memories and constants that it returns stay on the device.
   *
   * @throws BundleGraphError - ONNX Runtime cannot load it, it reads files that the bundle does not list, or its inputs
   *     and outputs are not those of the manifest.
   */
  static async open(name: string, files: BundleFiles, runtime: Runtime): Promise<Session> {
    const graph = files.bundle.graphs[name] as Graph;
    const place = files.place(graph.file);
    const content = await files.read(graph.file);
    const carried = carriedOutputs(files.bundle, graph);
    const { locations, sines } = scanned(content, place);
    const unlisted = [...locations].filter((location) => !(location in files.bundle.files));
    if (unlisted.length) {
      throw new BundleGraphError(`${place}: reads ${listed(unlisted)}, which bundle.json does not list.`, AGAIN);
    }
    const data: Record<string, Uint8Array> = {};
    for (const location of locations) data[location] = await files.read(location);
    const kept = name === "positions" ? Object.keys(graph.outputs) : carried;
    let session: OrtSession;
    try {
      session = await runtime.session(content, data, kept, sines);
    } catch (error) {
      throw failure(error, `${place}: ONNX Runtime cannot open it`, runtime.device);
    }
    const outputs = [...Object.keys(graph.outputs), ...carried];
    const wrong = [
      ...session.inputNames.filter((input) => !(input in graph.inputs)),
      ...Object.keys(graph.inputs).filter((input) => !session.inputNames.includes(input)),
      ...outputs.filter((output) => !session.outputNames.includes(output)),
    ];
    if (wrong.length) {
      throw new BundleGraphError(`${place}: bundle.json has other inputs or outputs (${listed(wrong)}).`, AGAIN);
    }
    return new Session(graph, place, files.bundle.model.vocab_size, runtime, session, outputs);
  }

  /**
   * Run the graph.
   *
   * @param S - number of tokens of the step.
   * @param B - number of batch rows.
   * @throws BundleGraphError - ONNX Runtime cannot run it, or an output has another type or shape than in the manifest.
   */
  async run(feeds: Tensors, S: number, B = 1): Promise<Tensors> {
    let results: Tensors;
    try {
      results = await this.runtime.run(this.session, feeds, this.outputs);
    } catch (error) {
      throw failure(error, `${this.place}: ONNX Runtime cannot run it`, this.runtime.device);
    }
    for (const name of Object.keys(this.graph.outputs)) this.#check(name, results[name] as OrtTensor, S, B);
    return results;
  }

  /** Refuse a result of another type or shape than in the manifest, and ids and ranks beyond the vocabulary. */
  #check(name: string, tensor: OrtTensor, S: number, B: number): void {
    const { type, dims } = tensor;
    const { dtype, shape } = this.graph.outputs[name] as Graph["outputs"][string];
    const sizes: Record<string, number> = { batch: B, segment: S };
    const expected = shape.map((axis, index) => (typeof axis === "number" ? axis : (sizes[axis] ?? dims[index])));
    const [is, was] = [`${type} (${dims.join(", ")})`, `${dtype} (${expected.join(", ")})`];
    if (is !== was) {
      throw new BundleGraphError(`${this.place}: output ${escaped(name)} is ${is}, expected ${was}.`, AGAIN);
    }
    const least = { rank: 1, top_ids: 0 }[name];
    if (least === undefined || !this.vocabSize) return;
    const most = least + this.vocabSize - 1;
    const wrong = (tensor.data as BigInt64Array).find((value) => value < least || value > most);
    if (wrong === undefined) return;
    throw new BundleGraphError(`${this.place}: output ${name} has ${wrong}, expected ${least} to ${most}.`, AGAIN);
  }

  /** Close the graph and free its memory. */
  async release(): Promise<void> {
    await this.session.release();
  }
}

/** Return the outputs of a graph that are the next values of its memories. */
function carriedOutputs({ memory }: Bundle, graph: Graph): string[] {
  return memory.filter(({ input }) => input in graph.inputs).map(({ output }) => output);
}

function failure(error: unknown, what: string, device: string): XlruntimeError {
  const reason = firstLine(error);
  if (/allocat|out of memory/i.test(reason)) {
    return new OutOfMemoryError(`${what}, as there is too little memory (${reason}).`, "Close other pages.", error);
  }
  const [, operator, node] = LACKING.exec(reason) ?? [];
  if (operator !== undefined) {
    const problem = `${what}, as the device ${device} lacks the operator ${operator} of node '${node}'.`;
    return new ProviderError(problem, "Choose another device.", error);
  }
  return new BundleGraphError(`${what} (${reason}).`, AGAIN, error);
}

type Message = "model" | "graph" | "node" | "attribute" | "tensor" | "sparse" | "function" | "entry";
/** Fields of the messages of an ONNX file that lead to nodes and to places of tensors. */
const INNER: Record<Message, Record<number, Message>> = {
  model: { 7: "graph", 25: "function" },
  graph: { 1: "node", 5: "tensor", 15: "sparse" },
  node: { 5: "attribute" },
  attribute: { 5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse" },
  tensor: { 13: "entry" },
  sparse: { 1: "tensor", 2: "tensor" },
  function: { 7: "node", 11: "attribute" },
  entry: {},
};

/**
 * Return what ONNX Runtime must not decide alone.
 *
 * @returns `locations`: files with tensors, which it would read from anywhere; `sines`: nodes that a GPU computes with
 *     too large errors.
 */
function scanned(content: Uint8Array, place: string): { locations: Set<string>; sines: string[] } {
  const found = { locations: new Set<string>(), sines: [] as string[] };
  try {
    scan(content, "model", found);
  } catch (error) {
    throw new BundleGraphError(`${place}: not an ONNX graph (${firstLine(error)}).`, AGAIN, error);
  }
  return found;
}

function scan(message: Uint8Array, kind: Message, found: ReturnType<typeof scanned>): void {
  const texts: Record<number, string> = {};
  for (const [number, value] of fields(message)) {
    const inner = INNER[kind][number];
    if (typeof value === "number") continue;
    if (inner) scan(value, inner, found);
    else if (kind === "node" || kind === "entry") texts[number] = new TextDecoder().decode(value);
  }
  if (kind === "entry" && texts[1] === "location") found.locations.add(texts[2] ?? "");
  if (kind === "node" && /^(Sin|Cos)$/.test(texts[4] ?? "")) found.sines.push(texts[3] ?? "");
}
