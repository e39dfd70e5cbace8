/** The interface for applications: an open bundle with streams, scores of documents, and continuations. */

import { BundleFiles, type Progress } from "./bundle_files.js";
import { Engine } from "./engine.js";
import { OptionError, TextError } from "./errors.js";
import type { Settings } from "./evaluation.js";
import { Sampling } from "./generation.js";
import { counted } from "./messages.js";
import { Runtime, type Device, type Ort } from "./onnxruntime.js";
import type { Documents } from "./scorer.js";
import type { DocumentScore, TokenScores } from "./scores.js";
import { FilesSource, UrlSource, type Source } from "./source.js";
import { fingerprint, type Bundle } from "./spec.js";
import { Stream, type GenerateOptions, type Piece } from "./stream.js";
import type { Libraries } from "./tokenizers/libraries.js";
import { ByteTokenizer, NoTokenizer } from "./tokenizers/plain.js";
import { checkLength, encode, type Tokenizer } from "./tokenizers/tokenizer.js";

/** Where a bundle is: an address, a list of files, files by name, or a `Source`. */
export type BundlePlace = string | URL | Iterable<File> | ReadonlyMap<string, Blob | Uint8Array> | Source;

/** How a bundle is opened. */
export interface LoadOptions {
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
 * @throws BundleNotFoundError, BundleError - the bundle is missing or broken.
 * @throws ProviderError - ONNX Runtime or the device is missing.
 * @throws OptionError - the number of threads is malformed.
 */
export async function load(place: BundlePlace, options: LoadOptions = {}): Promise<Model> {
  const { device = "cpu", threads = null, checkFiles = true, libraries = {} } = options;
  if (threads !== null && !(Number.isInteger(threads) && threads >= 1)) {
    throw new OptionError(`threads is ${threads}, at least 1 is needed.`);
  }
  const files = await BundleFiles.open(sourceOf(place), checkFiles, options.onProgress ?? (() => undefined));
  const runtime = await Runtime.open(device, threads, (options.onnxruntime as Ort | undefined) ?? null);
  const model = new Model({
    files,
    fingerprint: await fingerprint(files.bundle),
    runtime,
    tokenizer: await makeTokenizer(files, libraries),
    warn: options.onWarning ?? ((message) => console.warn(message)),
  });
  await model.open();
  return model;
}

/** An open bundle, for scoring and generating. Its methods take evaluation settings by the bundle's own names. */
export class Model extends Engine {
  /** Return a stream: a walk through one document. `capacity` is the number of slots of the largest ring. */
  async stream({ capacity, ...settings }: Settings & { capacity?: number } = {}): Promise<Stream> {
    return Stream.open(this, this.evaluation(settings), capacity);
  }

  /**
   * Go on with a stream that `Stream.save` has saved, here or in Python.
   *
   * @param state - the content of the file.
   * @throws StateError - it is not a stream's state, is damaged, or belongs to another bundle.
   */
  async restore(state: Uint8Array | ArrayBuffer | Blob, { capacity }: { capacity?: number } = {}): Promise<Stream> {
    const given = state instanceof Blob ? await state.arrayBuffer() : state;
    return Stream.restore(this, new Uint8Array(given), capacity); // a copy, because Node's buffers share memory
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
    const evaluation = this.evaluation(settings as Settings);
    const rule = sampling instanceof Sampling ? sampling : new Sampling(sampling);
    if (evaluation.rules.whole) {
      yield* this.#generateWhole(prompt, maxTokens, rule, settings as Settings);
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
  async *#generateWhole(
    prompt: Piece,
    maxTokens: number,
    sampling: Sampling,
    settings: Settings,
  ): AsyncGenerator<number> {
    if (!(maxTokens >= 0)) throw new OptionError(`max_tokens is ${maxTokens}, at least 0 is needed.`);
    const evaluation = this.evaluation(settings);
    const read = encode(prompt, this.tokenizer, this.bundle.vocab_size, "the prompt");
    if (!read.length) throw new TextError("nothing to continue: the prompt is empty.", "Give a prompt.");
    const what = `the prompt and ${counted(maxTokens)} tokens after it`;
    checkLength(read.length + maxTokens, evaluation, what);
    const longest = evaluation.longestPart as number;
    const random = sampling.random();
    const memory = await this.newMemory(evaluation);
    for (let drawn = 0; drawn < maxTokens; drawn++) {
      const part = read.slice(Math.floor((read.length - 1) / longest) * longest);
      memory.restart();
      const outputs = await this.step("generate", memory, part, part);
      const logits = outputs["logits"]?.data as Float32Array;
      if (!logits.every(Number.isFinite)) {
        throw new TextError("the model gave logits that are not finite, so generation stops.", "Give another prompt.");
      }
      const token = sampling.draw(logits, random);
      read.push(token);
      yield token;
    }
  }
}

function sourceOf(place: BundlePlace): Source {
  if (place instanceof URL) return new UrlSource(place);
  if (typeof place === "string") return /^https?:/.test(place) ? new UrlSource(place) : openFolder(place);
  if (place instanceof Map) return new FilesSource(place);
  if (Symbol.iterator in place) return FilesSource.of(place as Iterable<File>);
  return place as Source;
}

/** Return the tokenizer of a bundle. Those with a file are loaded when a bundle needs them. */
async function makeTokenizer(files: BundleFiles, libraries: Libraries): Promise<Tokenizer> {
  const { kind, file, first_id: firstId } = files.bundle.tokenizer;
  if (kind === "bytes") return new ByteTokenizer(firstId);
  if (kind === "none" || file === null) return new NoTokenizer();
  const { fileTokenizer } = await import("./tokenizers/with_file.js");
  return fileTokenizer(kind, await files.read(file), files.place(file), libraries);
}

export type { Bundle };
