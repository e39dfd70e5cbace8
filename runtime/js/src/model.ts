/** The interface for applications: an open bundle with streams, scores of documents, and continuations. */

import {
  BundleFiles,
  FIRST_MEMORY_FILE,
  fingerprint,
  rowAxis,
  type Bundle,
  type Graph,
  type Progress,
} from "./bundle.js";
import { ArgumentError, BundleFormatError, OptionError, TextError, XlruntimeError } from "./errors.js";
import { choose, refuseOthers, UNLIMITED, type EvaluationSettings, type Settings } from "./evaluation.js";
import { Memory, settingOf } from "./memory.js";
import { counted, escaped, firstLine, listed, shown } from "./messages.js";
import { Runtime, type Device, type Ort, type OrtTensor } from "./onnxruntime.js";
import { allFinite, readSafetensors, type HostTensor } from "./safetensors.js";
import { Sampling } from "./sampling.js";
import type { Documents } from "./scorer.js";
import type { DocumentScore, TokenScores } from "./scores.js";
import { Session } from "./session.js";
import { FilesSource, UrlSource, type Source } from "./source.js";
import { Stream, type GenerateOptions, type Piece } from "./stream.js";
import type { Libraries } from "./tokenizers/libraries.js";
import { ByteTokenizer, encode, NoTokenizer, type Tokenizer } from "./tokenizers/tokenizer.js";

const KEPT_CONSTANTS = 4; // sets of positional keys kept for later streams
const AGAIN = "Convert the checkpoint again.";

/** Where a bundle is: an address, a list of files, files by name, or a `Source`. */
export type BundlePlace = string | URL | Iterable<File> | ReadonlyMap<string, Blob | Uint8Array> | Source;

/** How a bundle is opened. */
export interface LoadOptions {
  /**
   * The SHA-256 that `bundle.json` must have, 64 lower-case digits: an application opens only the bundle that it was
   * made with.
   */
  digest?: string | null;
  /** `cpu` (WebAssembly in a browser) or `webgpu`. A missing device is an error; no other device replaces it. */
  device?: Device;
  /** Threads of one step; null leaves the choice to ONNX Runtime. In a browser the first bundle decides for all. */
  threads?: number | null;
  /** Whether every file is compared with its digest. */
  checkFiles?: boolean;
  /** Is called while files arrive. */
  onProgress?: (progress: Progress) => void;
  /** Is called with warnings; they go to the console unless it is given. */
  onWarning?: (message: string) => void;
  /** The module of ONNX Runtime; else it is imported. */
  onnxruntime?: unknown;
  /** Modules of tokenizers; else they are imported. */
  libraries?: Libraries;
}

/** Settings of one call, and what is special about its documents. */
export type ScoreOptions = Settings & { bos?: number | null };

let openFolder: (path: string) => Source = (path) => new UrlSource(path);

/** Choose what a path without `https:` means on this platform; `node.ts` opens folders. */
export function setFolders(open: (path: string) => Source): void {
  openFolder = open;
}

/**
 * Open a bundle.
 *
 * @throws BundleError - the bundle is missing, broken, or not the expected one; each kind has its class.
 * @throws ProviderError - ONNX Runtime or the device is missing.
 * @throws OptionError - an unknown option, or the number of threads is malformed.
 */
export async function load(place: BundlePlace, options: LoadOptions = {}): Promise<Model> {
  const { device = "cpu", threads = null, checkFiles = true, digest = null, libraries = {}, ...rest } = options;
  const { onProgress = () => undefined, onWarning, onnxruntime = null, ...others } = rest;
  refuseOthers("load", others, "digest, device, threads, checkFiles, onProgress, onWarning, onnxruntime or libraries");
  if (threads !== null && !(Number.isInteger(threads) && threads >= 1)) {
    throw new OptionError(`threads is ${threads}, at least 1 is needed.`);
  }
  const files = await BundleFiles.open(sourceOf(place), digest, checkFiles, onProgress);
  const runtime = await Runtime.open(device, threads, onnxruntime as Ort | null);
  const { onnxruntime: oldest } = files.bundle.requires;
  if (oldest !== null && isOlder(runtime.version, oldest)) {
    throw new BundleFormatError(
      `${files.place("bundle.json")}: requires ONNX Runtime ${escaped(oldest)}, found ${runtime.version}.`,
      "Install a newer one.",
    );
  }
  const warn = onWarning ?? ((message) => console.warn(message));
  const model = new Model(files, await fingerprint(files.bundle), runtime, await tokenizerOf(files, libraries), warn);
  await model.open();
  return model;
}

/** An open bundle, for scoring and generating. */
export class Model {
  /** The place of the bundle, for messages. */
  readonly where: string;
  /** The manifest. */
  readonly bundle: Bundle;
  /** The SHA-256 of `bundle.json`, as `load` takes it. */
  readonly digest: string;
  /** The identity of the bundle's numbers, to which saved streams belong. */
  readonly fingerprint: string;
  /** Text to token ids and back. */
  readonly tokenizer: Tokenizer;
  /** What is called with warnings. */
  readonly warn: (message: string) => void;
  readonly #files: BundleFiles;
  readonly #runtime: Runtime;
  readonly #sessions = new Map<string, Promise<Session>>();
  readonly #constants = new Map<string, Promise<Record<string, OrtTensor>>>();
  #firstValues: ReadonlyMap<string, HostTensor> = new Map();

  /** Use `load`, which also opens the graph for scoring. */
  constructor(
    files: BundleFiles,
    fingerprint: string,
    runtime: Runtime,
    tokenizer: Tokenizer,
    warn: (message: string) => void,
  ) {
    this.where = files.where;
    this.bundle = files.bundle;
    this.digest = files.digest;
    this.fingerprint = fingerprint;
    this.tokenizer = tokenizer;
    this.warn = warn;
    this.#files = files;
    this.#runtime = runtime;
  }

  /** Open what every use needs, to fail now and not at the first document. */
  async open(): Promise<void> {
    await this.#session("score");
    const entries = this.bundle.memory.filter((entry) => entry.first_value !== null);
    if (!entries.length) return;
    const place = this.#files.place(FIRST_MEMORY_FILE);
    const content = await this.#files.read(FIRST_MEMORY_FILE);
    try {
      this.#firstValues = readSafetensors(content).tensors;
    } catch (error) {
      throw new BundleFormatError(`${place}: not a file of tensors (${firstLine(error)}).`, AGAIN, error);
    }
    const wrong = entries.filter((entry) => {
      const value = this.#firstValues.get(entry.first_value as string);
      const shape = entry.shape.filter((_, axis) => axis !== 0 && axis !== rowAxis(entry));
      return !(value?.dtype === "float32" && String(value.shape) === String(shape) && allFinite(value));
    });
    if (wrong.length) {
      throw new BundleFormatError(`${place}: no first values of ${listed(wrong.map((entry) => entry.input))}.`, AGAIN);
    }
  }

  /** Return a stream: one document that arrives in pieces. `capacity` is the number of slots of the largest ring. */
  async stream({ capacity, ...settings }: Settings & { capacity?: number } = {}): Promise<Stream> {
    return Stream.open(this, this.evaluation(settings), capacity);
  }

  /**
   * Go on with a stream that `Stream.save` has saved, here or in another runtime.
   *
   * @param state - the content of the file.
   * @throws ArgumentError - it is not bytes.
   * @throws OptionError - an unknown name.
   * @throws StateDamagedError - it is not a stream's state, or damaged.
   * @throws StateMismatchError - it belongs to another bundle, version or choice of settings.
   */
  async restore(state: Uint8Array | ArrayBuffer | Blob, options: { capacity?: number } = {}): Promise<Stream> {
    const { capacity, ...others } = options;
    refuseOthers("restore", others, "capacity");
    const content = state instanceof Blob ? await state.arrayBuffer() : state;
    if (!(content instanceof ArrayBuffer || ArrayBuffer.isView(content))) {
      throw new ArgumentError(`restore takes the content of a file, found ${shown(content)}.`);
    }
    return Stream.restore(this, new Uint8Array(content), capacity); // a copy, because Node's buffers share memory
  }

  /** Score whole documents, each with its own memory; yield totals in the order of the documents. */
  async *score(documents: Documents, options: ScoreOptions = {}): AsyncGenerator<DocumentScore> {
    for await (const part of this.scoreTokens(documents, options)) {
      if (part.summary !== null) yield part.summary;
    }
  }

  /**
   * Score documents as `score` does, but yield every token's score as soon as it is known.
   *
   * @param options - `detail`: number of likeliest tokens to list, with rank and entropy; `bos`: id of a token that the
   *     model reads before each document; and settings.
   */
  async *scoreTokens(
    documents: Documents,
    { detail = null, bos = null, ...settings }: ScoreOptions & { detail?: number | null } = {},
  ): AsyncGenerator<TokenScores> {
    const { Scorer, several } = await import("./scorer.js"); // streams do without it
    const scorer = new Scorer(this, this.evaluation(settings), detail, bos);
    yield* scorer.tokens(several(documents, "scoreTokens"));
  }

  /** Continue `prompt`: yield up to `maxTokens` token ids as they are drawn. */
  async *generate(prompt: Piece, options: GenerateOptions & Settings): AsyncGenerator<number> {
    const { maxTokens, sampling, ...settings } = options;
    const evaluation = this.evaluation(settings);
    const rule = sampling instanceof Sampling ? sampling : new Sampling(sampling);
    if (evaluation.document.full_document) {
      yield* this.#generateInFull(prompt, maxTokens, rule, evaluation);
      return;
    }
    const stream = await Stream.open(this, evaluation);
    try {
      yield* stream.generate(prompt, { maxTokens, sampling: rule });
    } finally {
      await stream.close();
    }
  }

  /** Continue a document that the model reads in one step: read it again for each token. */
  async *#generateInFull(
    prompt: Piece,
    maxTokens: number,
    sampling: Sampling,
    evaluation: EvaluationSettings,
  ): AsyncGenerator<number> {
    if (!(maxTokens >= 0)) throw new OptionError(`max_tokens is ${maxTokens}, at least 0 is needed.`);
    const read = encode(prompt, this.tokenizer, this.bundle.model.vocab_size, "the prompt");
    if (!read.length) throw new TextError("nothing to continue: the prompt is empty.", "Give a prompt.");
    evaluation.checkLength(read.length + maxTokens, `the prompt and ${counted(maxTokens)} tokens after it`);
    const longest = evaluation.segmentLen;
    const random = sampling.random();
    const memory = await this.newMemory(evaluation);
    for (let drawn = 0; drawn < maxTokens; drawn++) {
      const part = read.slice(Math.floor((read.length - 1) / longest) * longest);
      memory.restart();
      const token = sampling.draw(await this.logits(memory, part), random);
      read.push(token);
      yield token;
    }
  }

  /**
   * Return the bundle's evaluation settings with the chosen ones replaced; null keeps the bundle's own.
   *
   * @throws OptionError - a value is out of range, or cannot be chosen.
   */
  evaluation(settings: Settings = {}): EvaluationSettings {
    return choose(this.bundle, settings);
  }

  /** Return fresh memory for a document; `capacity` is the number of slots of the largest ring. */
  async newMemory(evaluation: EvaluationSettings, capacity = evaluation.capacity): Promise<Memory> {
    if (!(evaluation.maxSegment(capacity) >= 1)) {
      throw new OptionError(
        `a capacity of ${capacity} slots is too small for a segment: ${evaluation.mostRows} rows are kept.`,
      );
    }
    return new Memory({
      runtime: this.#runtime,
      entries: this.bundle.memory,
      firstValues: this.#firstValues,
      constants: await this.#constantsOf(evaluation, capacity),
      evaluation,
      capacity,
    });
  }

  /** Run one segment, and keep its memory; return the outputs of the graph for `purpose`, or of a variant of it. */
  async step(
    purpose: string,
    memory: Memory,
    tokens: readonly number[],
    targets: readonly number[],
  ): Promise<Record<string, OrtTensor>> {
    const session = await this.#session(this.#graphFor(purpose, tokens.length, memory));
    const outputs = await session.run(memory.feeds(session.graph, tokens, targets), tokens.length);
    memory.advance(outputs, tokens.length);
    return outputs;
  }

  /** Return the logits of the token after a step. */
  async logits(memory: Memory, tokens: readonly number[]): Promise<Float32Array> {
    const outputs = await this.step("generate", memory, tokens, tokens); // targets do not matter
    const logits = outputs["logits"]?.data as Float32Array;
    if (logits.every(Number.isFinite)) return logits;
    throw new XlruntimeError("the model gave logits that are not finite, so generation stops.", "Begin again.");
  }

  /** Open the graph for detail, and refuse a number of likeliest tokens that it does not list. */
  async checkDetail(detail: number): Promise<void> {
    const { graph } = await this.#session("detail");
    const most = graph.outputs["top_ids"]?.shape.at(-1) as number;
    if (!(detail >= 0 && detail <= most)) {
      throw new OptionError(`detail is ${detail}, expected 0 to ${most}, the likeliest tokens that this bundle lists.`);
    }
  }

  /** Return `segmentLen`, or the longest step of the graphs for `purpose` if that is shorter. */
  longestStep(purpose: string, segmentLen: number): number {
    const graphs = this.#graphsFor(purpose).map(([, graph]) => graph);
    const lengths = graphs.filter(({ fixed }) => !("segment" in fixed)).map(mostOf);
    return Math.min(segmentLen, lengths.length ? Math.max(...lengths) : segmentLen);
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

  /** Return the graph with the smallest `max_segment` that takes a step of `S` tokens. */
  #graphFor(purpose: string, S: number, { plan }: Memory): string {
    const size = (axis: string): number | undefined =>
      axis in plan.evaluation.rings ? plan.evaluation.slots(axis, plan.capacity) : { batch: 1, segment: S }[axis];
    const fits = (graph: Graph): boolean =>
      S <= mostOf(graph) && Object.entries(graph.fixed).every(([axis, fixed]) => size(axis) === fixed);
    const fitting = this.#graphsFor(purpose).filter(([, graph]) => fits(graph));
    return fitting.sort(([, a], [, b]) => mostOf(a) - mostOf(b))[0]?.[0] ?? purpose;
  }

  /** Return the graphs that compute `purpose` without CUDA graphs, by name. */
  #graphsFor(purpose: string): [string, Graph][] {
    return Object.entries(this.bundle.graphs).filter(
      ([name, graph]) => (name === purpose || graph.variant_of === purpose) && !graph.static,
    );
  }

  /** Return an open graph. */
  async #session(name: string): Promise<Session> {
    if (!(name in this.bundle.graphs)) {
      const names = Object.keys(this.bundle.graphs).sort();
      throw new OptionError(`${this.where}: no graph for ${name}; this bundle has ${listed(names)}.`);
    }
    return cached(this.#sessions, name, () => Session.open(name, this.#files, this.#runtime));
  }

  /** Return the outputs of the graph `positions`: computed once for each combination of settings and slots. */
  async #constantsOf(evaluation: EvaluationSettings, capacity: number): Promise<Record<string, OrtTensor>> {
    const graph = this.bundle.graphs["positions"];
    if (graph === undefined) return {};
    const inputs = Object.entries(graph.inputs);
    const values = inputs.map(([name, feed]) => [name, settingOf(feed, evaluation, capacity)] as const);
    const constants = cached(this.#constants, JSON.stringify(values), async () => {
      const session = await Session.open("positions", this.#files, this.#runtime); // it holds weights of its own
      const feeds = values.map(([name, value]) => [name, this.#runtime.int64([value])]);
      const outputs = await session.run(Object.fromEntries(feeds), 0);
      if (this.#runtime.device === "cpu") await session.release();
      return outputs;
    });
    for (const old of [...this.#constants.keys()].slice(0, -KEPT_CONSTANTS)) this.#constants.delete(old);
    return constants;
  }
}

/** Return the most tokens of a step of a graph. */
function mostOf(graph: Graph): number {
  return graph.max_segment ?? UNLIMITED;
}

/** Return the value of a key, made once; a failure is not kept. */
async function cached<T>(values: Map<string, Promise<T>>, key: string, make: () => Promise<T>): Promise<T> {
  const value = values.get(key) ?? make();
  values.set(key, value);
  value.catch(() => values.delete(key));
  return value;
}

/** Return whether a version such as 1.24.1 is older than another; a version that is not known is not. */
function isOlder(version: string | undefined, than: string): boolean {
  const [a, b] = [version, than].map((text) => (text ?? "").split(".").map((part) => parseInt(part, 10)));
  const at = (a ?? []).findIndex((part, index) => part !== b?.[index]);
  return at >= 0 && (a?.[at] as number) < (b?.[at] ?? 0);
}

function sourceOf(place: BundlePlace): Source {
  if (place instanceof URL) return new UrlSource(place);
  if (typeof place === "string") return /^https?:/.test(place) ? new UrlSource(place) : openFolder(place);
  if (place instanceof Map) return new FilesSource(place);
  if (Symbol.iterator in place) return FilesSource.of(place as Iterable<File>);
  return place as Source;
}

/** Return the tokenizer of a bundle. Those with a file are loaded when a bundle needs them. */
async function tokenizerOf(files: BundleFiles, libraries: Libraries): Promise<Tokenizer> {
  const { kind, file, first_id: firstId } = files.bundle.tokenizer;
  if (kind === "bytes") return new ByteTokenizer(firstId);
  if (kind === "none" || file === null) return new NoTokenizer();
  const [raw, place] = [await files.read(file), files.place(file)];
  if (kind === "vocabulary") {
    const { Vocabulary, VocabularyTokenizer } = await import("./tokenizers/vocabulary.js");
    return new VocabularyTokenizer(Vocabulary.fromJson(raw, place));
  }
  const { huggingFace, sentencePiece } = await import("./tokenizers/libraries.js");
  if (kind === "tokenizers") return huggingFace(raw, place, libraries.tokenizers);
  return sentencePiece(raw, place, libraries.sentencepiece);
}
