/** The interface for applications: an open bundle with streams, scores of documents, and continuations. */

import { BundleFiles, type Progress } from "./bundle.js";
import { Engine } from "./engine.js";
import { ArgumentError, BundleFormatError, OptionError } from "./errors.js";
import { refuseOthers, type Settings } from "./evaluation.js";
import type { CheckResult } from "./known_answers.js";
import { escaped, shown } from "./messages.js";
import { Runtime, type Device, type Ort } from "./onnxruntime.js";
import type { Documents } from "./documents.js";
import type { DocumentScore, TokenScores } from "./scores.js";
import { FilesSource, UrlSource, type Source } from "./source.js";
import type { Drawing, Ended } from "./generation.js";
import { Stream, type GenerateOptions, type GenerateTextOptions, type Piece } from "./stream.js";
import type { StepStream } from "./step_stream.js";
import type { Libraries } from "./tokenizers/libraries.js";
import { ByteTokenizer, NoTokenizer, type Tokenizer } from "./tokenizers/tokenizer.js";

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
  /**
   * In Node alone: `once` compares the bundle's known answers, unless this machine has reproduced them before. A
   * difference is a `BundleGraphError`, or a warning if rounding may be the cause. Elsewhere, call `Model.check`.
   */
  check?: "off" | "once";
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
export type ScoreOptions = Settings & { bos?: number | false | null };

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
  const model = new Model(files, runtime, await tokenizerOf(files, libraries), warn);
  await model.open();
  return model;
}

/** An open bundle: a language model, for scoring and generating, or a step model, for `stepStream`. */
export class Model extends Engine {
  /**
   * Compare scores on this machine with the known answers that the bundle brings.
   *
   * @param seconds - time after which no other step begins.
   */
  async check(seconds = Infinity): Promise<CheckResult> {
    const { checkAnswers } = await import("./known_answers.js");
    return checkAnswers(this, this.files, this.runtime.device === "cpu", seconds);
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
    this.choices("score");
    return Stream.restore(this, await contentOf(state), capacity);
  }

  /**
   * Return a stream of a step model, which maps numbers to numbers.
   *
   * @param options - `rows`: independent batch rows; null: one, or as many as the graphs fix.
   * @throws OptionError - it is a language model, or its graphs fix another number of rows.
   */
  async stepStream({ rows = null, ...settings }: Settings & { rows?: number | null } = {}): Promise<StepStream> {
    const { StepStream } = await import("./step_stream.js");
    return StepStream.open(this, this.evaluation(settings), rows);
  }

  /** Go on with the stream of a step model that `StepStream.save` has saved; errors are those of `restore`. */
  async restoreStepStream(state: Uint8Array | ArrayBuffer | Blob): Promise<StepStream> {
    const { StepStream } = await import("./step_stream.js");
    return StepStream.restore(this, await contentOf(state));
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
   * @param options - `top`: number of likeliest tokens to list, with rank and entropy; `bos`: id of a token that the
   *     model reads before each document; null: as the tokenizer's own rule says; false: none; and settings.
   */
  async *scoreTokens(
    documents: Documents,
    { top = null, bos = null, ...settings }: ScoreOptions & { top?: number | null } = {},
  ): AsyncGenerator<TokenScores> {
    const { scoreDocuments, several } = await import("./scorer.js"); // streams do without it
    yield* scoreDocuments(this, this.evaluation(settings), several(documents, "scoreTokens"), top, bos);
  }

  /** Continue `prompt`: yield up to `maxTokens` token ids as they are drawn; see `Stream.generate`. */
  async *generate(prompt: Piece, options: GenerateOptions & Settings): AsyncGenerator<number, Ended> {
    const { drawIds } = await import("./generation.js");
    return yield* this.#continued(prompt, options, drawIds);
  }

  /** Continue `prompt`: yield the text as it becomes certain, up to the first of the texts `stop`. */
  async *generateText(prompt: Piece, options: GenerateTextOptions & Settings): AsyncGenerator<string, Ended> {
    const { stop = [], ...others } = options;
    const { drawText } = await import("./generation.js");
    return yield* this.#continued(prompt, others, (drawing) => drawText(drawing, stop, prompt));
  }

  /** Yield what `draw` makes of a continuation of `prompt`. */
  async *#continued<T>(
    prompt: Piece,
    { maxTokens, sampling = {}, ignoreEos = false, ...settings }: GenerateOptions & Settings,
    draw: (drawing: Drawing) => AsyncGenerator<T, Ended>,
  ): AsyncGenerator<T, Ended> {
    const own = { maxTokens, sampling, ignoreEos };
    const evaluation = this.evaluation(settings);
    if (evaluation.document.full_document) {
      const { drawingInFull } = await import("./generation.js");
      return yield* draw(await drawingInFull(this, prompt, own, evaluation));
    }
    const stream = await Stream.open(this, evaluation);
    try {
      return yield* draw(await stream.drawing(prompt, own));
    } finally {
      await stream.close();
    }
  }
}

/** Return the content of a file: a copy, because Node's buffers share memory. */
async function contentOf(state: unknown): Promise<Uint8Array> {
  const content = state instanceof Blob ? await state.arrayBuffer() : state;
  if (content instanceof ArrayBuffer || ArrayBuffer.isView(content)) return new Uint8Array(content as ArrayBuffer);
  throw new ArgumentError(`restore takes the content of a file, found ${shown(content)}.`);
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
  const { kind, file, first_id: firstId, settled = null } = files.bundle.tokenizer;
  if (kind === "bytes") return new ByteTokenizer(firstId);
  if (kind === "none" || file === null) return new NoTokenizer();
  const [raw, place] = [await files.read(file), files.place(file)];
  if (kind === "vocabulary") {
    const { openVocabulary } = await import("./tokenizers/vocabulary_tokenizer.js");
    return openVocabulary(raw, place);
  }
  const { huggingFace, sentencePiece } = await import("./tokenizers/libraries.js");
  if (kind === "tokenizers") return huggingFace(raw, place, libraries.tokenizers, settled);
  return sentencePiece(raw, place, libraries.sentencepiece, settled);
}
