/** The one reader of documents: their text grows by pieces, and becomes tokens as far as it is settled. */

import { ArgumentError } from "./errors.js";
import { HeldText } from "./held_text.js";
import { shown } from "./messages.js";
import { joined } from "./safetensors.js";
import {
  asIds,
  checkIds,
  TextCounts,
  utf8Bytes,
  type Ids,
  type Part,
  type Tokenizer,
  type TokenPiece,
} from "./tokenizers/tokenizer.js";

const PIECE_BYTES = 2 ** 14; // small compared to the memories, so that a document of any length needs little
const MARK = [0xef, 0xbb, 0xbf]; // of the byte order, in UTF-8

/** A text: itself, its bytes, a file, or a stream of bytes. */
type TextSource = string | Uint8Array | Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array>;
/** Something to score: text, bytes, a file, a stream of bytes, or token ids. */
export type DocumentSource = TextSource | readonly number[] | Int32Array | BigInt64Array;

/** A document with a name for results and messages. */
export interface Document {
  name: string;
  source: DocumentSource;
}

/** Documents: a list, or anything that yields them. */
export type Documents = Iterable<DocumentSource | Document> | AsyncIterable<DocumentSource | Document>;

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

/** Return whether a document is given as text, not as token ids. */
export function isText(source: DocumentSource): source is TextSource {
  return typeof source === "string" || source instanceof Uint8Array || isStream(source);
}

async function* piecesOf(document: Document, tokenizer: Tokenizer, counts: TextCounts): AsyncIterable<TokenPiece> {
  const { name, source } = document;
  if (isText(source)) {
    yield* tokenizer.read(bytesOf(source, name), name, counts);
    return;
  }
  const ids = asIds(source as Ids, name);
  const starts = ids.map((_, at) => at);
  yield { ids, starts, ends: starts.map((start) => start + 1) };
}

/** Yield the tokens of a document's text, and add to `counts` on the way; a byte-order mark in front is dropped. */
export async function* readText(
  tokenizer: Tokenizer,
  parts: AsyncIterable<Uint8Array>,
  name: string,
  counts: TextCounts,
): AsyncIterable<TokenPiece> {
  const text = new HeldText(tokenizer, name, true);
  const waiting: Uint8Array[] = [];
  let size = 0; // of the waiting bytes
  let previous: number | null = null;

  /** Return the waiting bytes, without a mark at the beginning of the document. */
  const next = (): Uint8Array => {
    const raw = joined(waiting.splice(0));
    size = 0;
    if (text.bytes || text.held.length || !MARK.every((byte, at) => raw[at] === byte)) return raw;
    [text.bytes, text.chars] = [MARK.length, 1];
    counts.droppedBytes += text.bytes;
    counts.droppedChars += text.chars;
    return raw.subarray(MARK.length);
  };
  const counted = (raw: Uint8Array, take: (raw: Uint8Array) => Part): TokenPiece => {
    const { bytes, chars } = text; // before the part
    const part = take(raw);
    if (previous === null && part.ids.length) {
      counts.firstTokenBytes = bytes - counts.droppedBytes + part.first[0];
      counts.firstTokenChars = chars - counts.droppedChars + part.first[1];
    }
    counts.droppedBytes += part.dropped[0];
    counts.droppedChars += part.dropped[1];
    previous = part.ids.at(-1) ?? previous;
    const place = tokenizer.needsText ? chars : bytes;
    const moved = (places: number[] | null): number[] | null => places && places.map((at) => at + place);
    return { ids: part.ids, starts: moved(part.starts), ends: moved(part.ends) };
  };

  for await (const raw of parts) {
    counts.add(raw);
    waiting.push(raw.slice()); // whoever gives the bytes may use their place again
    size += raw.length;
    // A run without a boundary doubles before it is looked at again, so the time is proportional to its length.
    if (size >= Math.max(MARK.length, text.held.length)) yield counted(next(), (all) => text.take(all, previous));
  }
  yield counted(next(), (all) => text.end(previous, all, true));
}

function isStream(source: DocumentSource): source is Blob | ReadableStream<Uint8Array> | AsyncIterable<Uint8Array> {
  return source instanceof Blob || source instanceof ReadableStream || Symbol.asyncIterator in (source as object);
}

/** Yield the bytes of a text, file or stream in small pieces. */
async function* bytesOf(source: TextSource, name: string): AsyncIterable<Uint8Array> {
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
