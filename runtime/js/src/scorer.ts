/** Score whole documents, one after another. */

import { ArgumentError, OptionError } from "./errors.js";
import type { EvaluationSettings } from "./evaluation.js";
import type { Memory } from "./memory.js";
import { counted, shown } from "./messages.js";
import type { Engine } from "./engine.js";
import { detailOf, noDetail, Sum, totalScore, warningNotFinite, type TokenScores } from "./scores.js";
import {
  asIds,
  checkIds,
  TextCounts,
  utf8Bytes,
  type Ids,
  type Tokenizer,
  type TokenPiece,
} from "./tokenizers/tokenizer.js";

const PIECE_BYTES = 2 ** 14; // small compared to the memories, so that a document of any length needs little

/** Something to score: text, bytes, a file, a stream of bytes, or token ids. */
export type DocumentSource =
  | string
  | Uint8Array
  | Blob
  | ReadableStream<Uint8Array>
  | AsyncIterable<Uint8Array>
  | readonly number[]
  | Int32Array
  | BigInt64Array;

/** A document with a name for results and messages. */
export interface Document {
  name: string;
  source: DocumentSource;
}

/** Documents: a list, or anything that yields them. */
export type Documents = Iterable<DocumentSource | Document> | AsyncIterable<DocumentSource | Document>;

/** A scorer of documents; each has its own memory. */
export class Scorer {
  readonly #purpose: "score" | "detail";
  readonly #longestStep: number;

  /**
   * @param detail - number of likeliest tokens to list, with rank and entropy; null: no such detail.
   * @param bos - id of a token that the model reads before each document, so that its first token has a score, too.
   */
  constructor(
    private readonly engine: Engine,
    private readonly evaluation: EvaluationSettings,
    private readonly detail: number | null,
    private readonly bos: number | null,
  ) {
    if (bos !== null && !(Number.isInteger(bos) && bos >= 0 && bos < engine.bundle.model.vocab_size)) {
      throw new OptionError(`bos is ${bos}, expected 0 to ${engine.bundle.model.vocab_size - 1}.`);
    }
    this.#purpose = detail === null ? "score" : "detail";
    this.#longestStep = engine.longestStep(this.#purpose, evaluation.segmentLen);
  }

  /** Yield the scores of every document's tokens, step by step. */
  async *tokens(documents: Documents): AsyncGenerator<TokenScores> {
    if (this.detail !== null) await this.engine.checkDetail(this.detail);
    let number = 0;
    for await (const given of documents as AsyncIterable<DocumentSource | Document>) {
      const document = asDocument(given, number);
      const reader = new TokenReader(document, this.engine.tokenizer, this.engine.bundle.model.vocab_size);
      const memory = await this.engine.newMemory(this.evaluation);
      try {
        yield* this.#document(document.name, number, reader, memory);
      } finally {
        memory.release();
        await reader.close();
      }
      number += 1;
    }
  }

  async *#document(name: string, number: number, reader: TokenReader, memory: Memory): AsyncGenerator<TokenScores> {
    const { bidirectional } = this.evaluation.document;
    const longest = this.evaluation.longestDocument;
    let held = this.bos;
    const before = held === null ? 0 : 1;
    if (longest !== null && !this.evaluation.restart && (await reader.has(longest + 1 - before))) {
      this.#refuseLonger(name);
    }
    let position = 0; // index of the next target
    let first: number | null = null;
    if (held === null) {
      const ids = (await reader.take(1)).ids;
      held = first = ids[0] ?? null;
      position = ids.length;
    }
    const nats = new Sum();
    let warned = false;
    const part = (scored: Partial<TokenScores>, ended: boolean): TokenScores => {
      const summary = ended
        ? totalScore(name, reader.counts, position, before ? 0 : 1, nats.value, this.evaluation)
        : null;
      const none = { index: [], tokens: [], starts: [], ends: [], logProbs: new Float32Array(0), context: [] };
      const scores = {
        document: name,
        number,
        ...none,
        ...(this.detail === null ? {} : noDetail()),
        ...scored,
        summary,
        first,
      };
      first = null;
      return scores;
    };
    if (held === null || !(await reader.has(1))) {
      yield part({}, true);
      return;
    }
    for (let ended = false; !ended;) {
      if (memory.room === 0) {
        this.#refuseLonger(name);
        memory.restart();
      }
      const most = Math.min(this.#longestStep, memory.room);
      const piece = await reader.take(most);
      if (bidirectional && piece.ids.length === most) this.#refuseLonger(name);
      const targets = piece.ids.slice();
      const tokens = [held, ...piece.ids.slice(0, -1)];
      held = piece.ids.at(-1) as number;
      if (bidirectional && most > targets.length) {
        tokens.push(held); // its prediction is dropped
        targets.push(0);
      }
      const context = memory.context(tokens.length).slice(0, piece.ids.length);
      const outputs = await this.engine.step(this.#purpose, memory, tokens, targets);
      const all = outputs["log_prob"]?.data as Float32Array;
      if (!all.every(Number.isFinite)) {
        memory.restart(true);
        if (!warned) this.engine.warn(warningNotFinite(name, position + piece.ids.length));
        warned = true;
      }
      const logProbs = all.slice(0, piece.ids.length);
      for (const logProb of logProbs) nats.add(-logProb);
      const index = piece.ids.map((_, at) => position + at);
      position += piece.ids.length;
      ended = !(await reader.has(1));
      const detail = this.detail === null ? {} : detailOf(outputs, piece.ids.length, this.detail);
      const { starts, ends } = piece;
      yield part({ index, tokens: piece.ids, starts, ends, logProbs, context, ...detail }, ended);
    }
  }

  /** Raise TooLongError for a document with more tokens than can be scored, unless it may restart. */
  #refuseLonger(name: string): void {
    const longest = this.evaluation.longestDocument ?? 0;
    const withBos = this.bos === null ? "" : " with the one before it";
    this.evaluation.checkLength(longest + 1, name, `more than ${counted(longest)} tokens${withBos}`);
  }
}

/** Refuse one document where a list is expected: a text would be scored letter by letter. */
export function several(documents: unknown, method: string): Documents {
  const isList =
    typeof documents === "object" &&
    documents !== null &&
    !(documents instanceof Blob) &&
    !ArrayBuffer.isView(documents) &&
    !(documents instanceof ReadableStream) &&
    !("source" in documents) &&
    (Symbol.iterator in documents || Symbol.asyncIterator in documents);
  if (isList) return documents as Documents;
  throw new ArgumentError(
    `${method}: expected a list of documents, found ${shown(documents)}.`,
    `Give a list: model.${method}([document])`,
  );
}

/** Return a document of whatever a program gave. */
export function asDocument(given: DocumentSource | Document, number: number): Document {
  if (typeof given === "object" && given !== null && "source" in given) return given;
  if (typeof given === "number") {
    throw new ArgumentError(
      `document ${number} is the number ${shown(given)}.`,
      "Give a list of documents, each with its token ids.",
    );
  }
  const name = typeof File !== "undefined" && given instanceof File ? given.name : `document ${number + 1}`;
  return { name, source: given };
}

/** A reader of one document's tokens. */
export class TokenReader {
  readonly counts = new TextCounts();
  readonly #name: string;
  readonly #unkId: number | null;
  readonly #pieces: AsyncIterator<TokenPiece>;
  #buffer: TokenPiece = { ids: [], starts: [], ends: [] };
  #read = 0;

  constructor(
    document: Document,
    tokenizer: Tokenizer,
    private readonly vocabSize: number,
  ) {
    this.#name = document.name;
    this.#unkId = tokenizer.unkId;
    this.#pieces = piecesOf(document, tokenizer, this.counts)[Symbol.asyncIterator]();
  }

  /** Return the next tokens, at most `n`. */
  async take(n: number): Promise<TokenPiece> {
    await this.has(n);
    const { ids, starts, ends } = this.#buffer;
    this.#buffer = { ids: ids.slice(n), starts: starts?.slice(n) ?? null, ends: ends?.slice(n) ?? null };
    return { ids: ids.slice(0, n), starts: starts?.slice(0, n) ?? null, ends: ends?.slice(0, n) ?? null };
  }

  /** Return whether at least `n` tokens are left; read ahead to find out. */
  async has(n: number): Promise<boolean> {
    while (this.#buffer.ids.length < n) {
      const { done, value } = await this.#pieces.next();
      if (done) return false;
      checkIds(value.ids, this.vocabSize, this.#name, this.#read);
      this.#read += value.ids.length;
      if (this.#unkId !== null) this.counts.unknownTokens += value.ids.filter((id) => id === this.#unkId).length;
      this.#buffer = {
        ids: this.#buffer.ids.concat(value.ids),
        starts: value.starts && (this.#buffer.starts?.concat(value.starts) ?? null),
        ends: value.ends && (this.#buffer.ends?.concat(value.ends) ?? null),
      };
    }
    return true;
  }

  /** Stop reading, and close the document. */
  async close(): Promise<void> {
    await this.#pieces.return?.();
  }
}

async function* piecesOf(document: Document, tokenizer: Tokenizer, counts: TextCounts): AsyncIterable<TokenPiece> {
  const { name, source } = document;
  const isText = typeof source === "string" || source instanceof Uint8Array;
  if (isText || isStream(source)) {
    yield* tokenizer.read(bytesOf(source, name), name, counts);
    return;
  }
  const ids = asIds(source as Ids, name);
  const starts = ids.map((_, at) => at);
  yield { ids, starts, ends: starts.map((start) => start + 1) };
}

function isStream(source: DocumentSource): source is Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array> {
  return source instanceof Blob || source instanceof ReadableStream || Symbol.asyncIterator in (source as object);
}

/** Yield the bytes of a text, file or stream in small pieces. */
async function* bytesOf(
  source: string | Uint8Array | Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>,
  name: string,
): AsyncIterable<Uint8Array> {
  if (typeof source === "string" || source instanceof Uint8Array) {
    yield* inPieces(utf8Bytes(source, name));
    return;
  }
  const stream = source instanceof Blob ? source.stream() : source;
  if (!(stream instanceof ReadableStream)) {
    for await (const raw of stream) yield* inPieces(raw);
    return;
  }
  const reader = stream.getReader(); // not every browser can iterate over a stream
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* inPieces(value);
    }
  } finally {
    await reader.cancel();
  }
}

function* inPieces(raw: Uint8Array): Iterable<Uint8Array> {
  for (let start = 0; start < raw.length; start += PIECE_BYTES) yield raw.subarray(start, start + PIECE_BYTES);
}
