/** An open bundle: the sessions of its graphs, and the steps that they run. */

import { allFinite } from "./arrays.js";
import type { BundleFiles } from "./bundle_files.js";
import { BundleError, OptionError, ProviderError, XlruntimeError } from "./errors.js";
import type { EvaluationSettings, Settings } from "./evaluation.js";
import { checkGraph, readMetadata } from "./graph_gate.js";
import { requireKind, requireOutputs } from "./graph_outputs.js";
import { DocumentMemory, rowAxis } from "./memory.js";
import { firstLine, listed, named } from "./messages.js";
import type { OrtSession, OrtTensor, Runtime } from "./onnxruntime.js";
import { readSafetensors, SafetensorsError, type HostTensor } from "./safetensors.js";
import { FIRST_MEMORY_FILE, graphMetadata, METADATA_KEY, type Bundle, type Graph } from "./spec.js";
import type { Tokenizer } from "./tokenizers/tokenizer.js";

const KEPT_CONSTANTS = 4; // sets of positional keys kept for later streams
const AGAIN = "Convert the checkpoint again.";
// ONNX Runtime's words for an operator that no provider of a session has.
const LACKING = /(?:Provider type for|implementation for) (\w+)\S* node with name '([^']*)'/;

/** An open bundle. Streams and scorings share it. */
export class Engine {
  /** The place of the bundle, for messages. */
  readonly where: string;
  /** The manifest. */
  readonly bundle: Bundle;
  /** The identity of the bundle's numbers, to which saved streams belong. */
  readonly fingerprint: string;
  /** Text to token ids and back. */
  readonly tokenizer: Tokenizer;
  /** What is called with warnings. */
  readonly warn: (message: string) => void;
  readonly #files: BundleFiles;
  readonly #runtime: Runtime;
  readonly #sessions = new Map<string, Promise<OrtSession>>();
  readonly #constants = new Map<string, Promise<Record<string, OrtTensor>>>();
  #firstValues: Record<string, HostTensor> = {};

  /** Use `load`, which also opens the graph for scoring. */
  constructor(parts: {
    files: BundleFiles;
    fingerprint: string;
    runtime: Runtime;
    tokenizer: Tokenizer;
    warn: (message: string) => void;
  }) {
    this.#files = parts.files;
    this.where = parts.files.where;
    this.bundle = parts.files.bundle;
    this.fingerprint = parts.fingerprint;
    this.#runtime = parts.runtime;
    this.tokenizer = parts.tokenizer;
    this.warn = parts.warn;
  }

  /** Open what every use needs, to fail now and not at the first document. */
  async open(): Promise<void> {
    await this.session("score");
    if (this.bundle.memory.every((entry) => entry.first_value === null)) return;
    const place = this.#files.place(FIRST_MEMORY_FILE);
    try {
      this.#firstValues = readSafetensors(await this.#files.read(FIRST_MEMORY_FILE)).tensors;
    } catch (error) {
      if (!(error instanceof SafetensorsError || error instanceof SyntaxError)) throw error;
      throw new BundleError(`${place}: damaged (${firstLine(error)}).`, "Copy the bundle again.", error);
    }
    const wrong: string[] = [];
    for (const entry of this.bundle.memory) {
      if (entry.first_value === null) continue;
      const value = Object.hasOwn(this.#firstValues, entry.first_value)
        ? this.#firstValues[entry.first_value]
        : undefined;
      const shape = entry.shape.filter((_, axis) => axis !== 0 && axis !== rowAxis(entry));
      const fits =
        value?.dtype === "float32" && String(value.shape) === String(shape) && allFinite(value.data, value.dtype);
      if (!fits) wrong.push(`${entry.first_value} for ${entry.input}`);
    }
    if (wrong.length) throw new BundleError(`${place}: no such rows: ${wrong.slice(0, 5).join(", ")}.`, AGAIN);
  }

  /**
   * Return the bundle's evaluation settings with the given ones replaced; null keeps the bundle's own.
   *
   * @throws OptionError - a value is out of range, or the bundle has no such setting.
   */
  evaluation(settings: Settings = {}): EvaluationSettings {
    try {
      return this.bundle.evaluation.choose(settings);
    } catch (error) {
      if (!(error instanceof OptionError)) throw error;
      throw new OptionError(`${this.where}: ${error.problem}`, error.repair);
    }
  }

  /** Return fresh memory for a document; `capacity` is the number of slots of the largest ring. */
  async newMemory(evaluation: EvaluationSettings, capacity = evaluation.capacity): Promise<DocumentMemory> {
    if (!(evaluation.maxSegment(capacity) >= 1)) {
      throw new OptionError(
        `a capacity of ${capacity} slots is too small for a segment: ${evaluation.mostRows} rows are kept.`,
      );
    }
    const plan = {
      runtime: this.#runtime,
      entries: this.bundle.memory,
      firstValues: this.#firstValues,
      evaluation,
      capacity,
    };
    return new DocumentMemory({ ...plan, constants: await this.#makeConstants(evaluation, capacity) });
  }

  /**
   * Run one segment on `memory`, and advance the memory by it.
   *
   * @param purpose - `score`, `generate` or `detail`.
   * @param tokens - ids within the vocabulary; `targets` the token after each.
   * @returns The graph's outputs other than memory, by name.
   * @throws OptionError - the segment is longer than the graph, the rings or the positions allow.
   * @throws BundleError - the graph cannot run, or its outputs differ from the bundle's description.
   */
  async step(
    purpose: string,
    memory: DocumentMemory,
    tokens: readonly number[],
    targets: readonly number[],
  ): Promise<Record<string, OrtTensor>> {
    const S = tokens.length;
    if (!(S >= 1 && S <= memory.maxSegment)) {
      throw new OptionError(
        `a segment of ${S} tokens does not fit: a ring of ${memory.plan.capacity} slots that keeps ` +
          `${memory.plan.evaluation.mostRows} rows takes 1 to ${memory.maxSegment}.`,
        "Split it.",
      );
    }
    if (memory.room < S) {
      throw new OptionError(
        `a segment of ${S} tokens does not fit: there is room for ${memory.room} more, as the model reads at most ` +
          `${memory.plan.evaluation.longestPart} tokens of a document.`,
        "Restart the document.",
      );
    }
    const name = this.#graphFor(purpose, S);
    const graph = this.bundle.graphs[name] as Graph;
    const given = {
      ...memory.feeds(),
      tokens: this.#runtime.int64(tokens, [1, S]),
      targets: this.#runtime.int64(targets, [1, S]),
    };
    const outputs = await this.#run(await this.session(name), graph, given);
    const carried = new Set(this.bundle.memory.map((entry) => entry.output));
    const others = graph.outputs.filter((tensor) => !carried.has(tensor.name));
    requireOutputs(this.#files.place(graph.file), others, outputs, S, this.bundle.vocab_size);
    memory.advance(outputs, S);
    return outputs;
  }

  /** Return `segmentLen`, or the longest step of the graphs for `purpose` if that is shorter. */
  longestStep(purpose: string, segmentLen: number): number {
    const lengths = this.#graphsFor(purpose).map((name) => this.bundle.graphs[name]?.max_segment ?? segmentLen);
    return Math.min(segmentLen, lengths.length ? Math.max(...lengths) : segmentLen);
  }

  /** Require that the bundle has a graph, and open it. */
  async session(purpose: string): Promise<OrtSession> {
    let opened = this.#sessions.get(purpose);
    if (opened === undefined) {
      opened = this.#openGraph(purpose);
      this.#sessions.set(purpose, opened);
      opened.catch(() => this.#sessions.delete(purpose));
    }
    return opened;
  }

  /** Close all graphs and free their memory; they open again when they are needed. */
  async release(): Promise<void> {
    const opened = [...this.#sessions.values()];
    this.#sessions.clear();
    this.#constants.clear();
    for (const session of await Promise.allSettled(opened)) {
      if (session.status === "fulfilled") await session.value.release();
    }
  }

  /** Return the graph for steps of `segmentLen` tokens: the purpose's own, or its variant for few tokens. */
  #graphFor(purpose: string, segmentLen: number): string {
    const names = this.#graphsFor(purpose);
    const fitting = names.find((name) => segmentLen <= (this.bundle.graphs[name]?.max_segment ?? Infinity));
    if (fitting !== undefined) return fitting;
    if (!names.length) return purpose;
    const longest = this.longestStep(purpose, segmentLen);
    throw new OptionError(
      `a segment of ${segmentLen} tokens does not fit: the graph for '${purpose}' takes 1 to ${longest}.`,
      "Split it.",
    );
  }

  /** Return the graphs that compute `purpose`, the one for fewest tokens first. */
  #graphsFor(purpose: string): string[] {
    return [`${purpose}_few`, purpose].filter((name) => Object.hasOwn(this.bundle.graphs, name));
  }

  async #openGraph(purpose: string): Promise<OrtSession> {
    const graph = Object.hasOwn(this.bundle.graphs, purpose) ? this.bundle.graphs[purpose] : undefined;
    if (graph === undefined) {
      const have = Object.keys(this.bundle.graphs).sort().join(", ");
      throw new OptionError(`${this.where}: no graph for '${purpose}'; this bundle has ${have}.`);
    }
    const place = this.#files.place(graph.file);
    if (graph.format !== "onnx") {
      throw new BundleError(
        `${place}: ${graph.format}, which needs PyTorch, not ONNX Runtime.`,
        "Use a bundle of convert --to onnx.",
      );
    }
    const content = await this.#files.read(graph.file);
    const data: Record<string, Uint8Array> = {};
    const { locations, sines } = checkGraph(content, place, this.#files.names);
    for (const name of locations) data[name] = await this.#files.read(name);
    if (readMetadata(content, place, METADATA_KEY) !== graphMetadata(graph, this.bundle.memory)) {
      throw new BundleError(`${place}: its metadata differs from the manifest.`, AGAIN);
    }
    const kept = graph.outputs.map((tensor) => tensor.name).filter((name) => this.#staysOnDevice(purpose, name));
    let session: OrtSession;
    try {
      session = await this.#runtime.session(content, data, kept, sines);
    } catch (error) {
      throw this.#failure(error, `${place}: ONNX Runtime cannot open it`);
    }
    const missing = graph.outputs.filter((tensor) => !session.outputNames.includes(tensor.name));
    if (missing.length) {
      const names = listed(missing.map((tensor) => named(tensor.name)));
      throw new BundleError(`${place}: has no output ${names}, which bundle.json describes.`, AGAIN);
    }
    return session;
  }

  #staysOnDevice(purpose: string, output: string): boolean {
    return purpose === "positions" || this.bundle.memory.some((entry) => entry.output === output);
  }

  async #run(session: OrtSession, graph: Graph, given: Record<string, OrtTensor>): Promise<Record<string, OrtTensor>> {
    const feeds: Record<string, OrtTensor> = {};
    for (const { name } of graph.inputs) if (given[name] !== undefined) feeds[name] = given[name];
    try {
      return await this.#runtime.run(
        session,
        feeds,
        graph.outputs.map((tensor) => tensor.name),
      );
    } catch (error) {
      throw this.#failure(error, `${this.#files.place(graph.file)}: ONNX Runtime cannot run it`);
    }
  }

  #failure(error: unknown, what: string): XlruntimeError {
    const reason = firstLine(error);
    if (/allocat|out of memory/i.test(reason)) {
      return new XlruntimeError(`${what}, as there is too little memory (${reason}).`, "Close other pages.", error);
    }
    const [, lacking, node] = LACKING.exec(reason) ?? [];
    if (lacking !== undefined) {
      const where = `${what}, as the device ${this.#runtime.device} lacks the operator ${lacking}`;
      return new ProviderError(`${where} of node '${node}'.`, "Choose another device.", error);
    }
    return new BundleError(`${what} (${reason}).`, "Copy the bundle again, or convert the checkpoint again.", error);
  }

  /** Return the outputs of the graph `positions`: computed once per settings and shared. */
  async #makeConstants(evaluation: EvaluationSettings, capacity: number): Promise<Record<string, OrtTensor>> {
    const graph = Object.hasOwn(this.bundle.graphs, "positions") ? this.bundle.graphs["positions"] : undefined;
    if (graph === undefined) return {};
    const given: Record<string, number> = { ...evaluation.inputs() };
    for (const symbol of Object.keys(evaluation.rules.rings)) given[symbol] = evaluation.slots(symbol, capacity);
    const key = graph.inputs.map(({ name }) => `${name}=${given[name]}`).join();
    let found = this.#constants.get(key);
    if (found === undefined) {
      found = this.#runPositions(graph, given);
      this.#constants.set(key, found);
      found.catch(() => this.#constants.delete(key));
      for (const old of [...this.#constants.keys()].slice(0, -KEPT_CONSTANTS)) this.#constants.delete(old);
    }
    return found;
  }

  async #runPositions(graph: Graph, given: Record<string, number>): Promise<Record<string, OrtTensor>> {
    const session = await this.#openGraph("positions"); // not kept open: it holds weights and buffers of its own
    const inputs = Object.entries(given).map(([name, value]) => [name, this.#runtime.int64([value])] as const);
    const outputs = await this.#run(session, graph, Object.fromEntries(inputs));
    for (const tensor of graph.outputs) requireKind(this.#files.place(graph.file), tensor, outputs[tensor.name]);
    if (this.#runtime.device === "cpu") await session.release();
    return outputs;
  }
}
