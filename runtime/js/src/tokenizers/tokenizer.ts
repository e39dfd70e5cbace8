/** What a tokenizer does, the pieces of documents that it returns, and the tokenizers without a file. */

import { TextError, TokenError } from "../errors.js";

/** Token ids as a program may give them. */
export type Ids = readonly number[] | Int32Array | Uint8Array | Uint16Array | Uint32Array | BigInt64Array;

/** Consecutive tokens of a document. */
export interface TokenPiece {
  ids: number[];
  /** Where each token begins and ends in the document: bytes, characters (code points), or tokens; null: not known. */
  starts: number[] | null;
  ends: number[] | null;
}

/** Counts of a document, kept while it is read. */
export class TextCounts {
  bytes = 0;
  chars = 0;
  words = 0;
  firstTokenBytes = 0; // covered by the first token, which has no context and so no score
  firstTokenChars = 0;
  droppedBytes = 0; // covered by no token, as the vocabulary has no symbol for them: newlines
  droppedChars = 0;
  unknownTokens = 0;
  #inWord = false;

  /** Count the next bytes of the document: UTF-8 characters, and words between ASCII white space. */
  add(piece: Uint8Array): void {
    this.bytes += piece.length;
    for (const byte of piece) {
      if ((byte & 0xc0) !== 0x80) this.chars += 1;
      const inside = !isSpace(byte);
      if (inside && !this.#inWord) this.words += 1;
      this.#inWord = inside;
    }
  }
}

/** A tokenizer: text to ids and back. */
export interface Tokenizer {
  /** The id for text that the vocabulary lacks; null if it is missing. */
  readonly unkId: number | null;
  /** Return the ids of a whole text. */
  encode(text: string | Uint8Array): number[];
  /** Return the ids of the next piece of a text, tokenized on its own; `previous` is the token before it. */
  encodePiece(text: string | Uint8Array, previous: number | null): number[];
  /** Return the text of ids. */
  decode(ids: Iterable<number>): string;
  /** Return the id of the token that the vocabulary lists under this name; null if there is none. */
  idOf(name: string): number | null;
  /** Yield the tokens of a document in order, and add to `counts` on the way. */
  read(parts: AsyncIterable<Uint8Array>, name: string, counts: TextCounts): AsyncIterable<TokenPiece>;
}

/** A tokenizer with id = byte + `firstId`. Any file is valid, and is read piece by piece. */
export class ByteTokenizer implements Tokenizer {
  readonly unkId = null;

  constructor(private readonly firstId = 0) {}

  encode(text: string | Uint8Array): number[] {
    return Array.from(utf8Bytes(text, "the text"), (byte) => byte + this.firstId);
  }

  encodePiece(text: string | Uint8Array): number[] {
    return this.encode(text);
  }

  decode(ids: Iterable<number>): string {
    const bytes = [...ids].map((id) => id - this.firstId).filter((byte) => byte >= 0 && byte < 256);
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
  }

  idOf(): null {
    return null;
  }

  async *read(parts: AsyncIterable<Uint8Array>, _name: string, counts: TextCounts): AsyncIterable<TokenPiece> {
    let position = 0;
    for await (const raw of parts) {
      if (!raw.length) continue;
      if (position === 0) {
        counts.firstTokenBytes = 1;
        counts.firstTokenChars = Number(((raw[0] as number) & 0xc0) !== 0x80);
      }
      counts.add(raw);
      const begin = position;
      const starts = Array.from(raw, (_, at) => begin + at);
      yield { ids: this.encode(raw), starts, ends: starts.map((start) => start + 1) };
      position += raw.length;
    }
  }
}

/** A placeholder for bundles without a tokenizer: accepts token ids, refuses text. */
export class NoTokenizer implements Tokenizer {
  readonly unkId = null;

  encode(): never {
    throw refusal("the text");
  }

  encodePiece(): never {
    throw refusal("the text");
  }

  decode(ids: Iterable<number>): string {
    return [...ids].join(" ");
  }

  idOf(name: string): number | null {
    return /^[0-9]{1,9}$/.test(name) ? Number(name) : null;
  }

  async *read(_parts: AsyncIterable<Uint8Array>, name: string): AsyncIterable<TokenPiece> {
    throw refusal(name);
  }
}

/** Return whether a byte is ASCII white space, which is between words. */
function isSpace(byte: number | undefined): boolean {
  return byte === 32 || (byte !== undefined && byte >= 9 && byte <= 13);
}

/** Return token ids, within the vocabulary, of the next piece of a document given as text or ids. */
export function encode(
  source: string | Uint8Array | Ids,
  tokenizer: Tokenizer,
  vocabSize: number,
  name: string,
  previous: number | null = null,
  first = 0,
): number[] {
  const text = typeof source === "string" || source instanceof Uint8Array;
  const ids = text ? tokenizer.encodePiece(source, previous) : asIds(source, name);
  checkIds(ids, vocabSize, name, first);
  return ids;
}

/** Return token ids as numbers, or raise TokenError. */
export function asIds(source: Ids, name: string): number[] {
  const ids = Array.from(source as ArrayLike<unknown>, (id) => (typeof id === "bigint" ? Number(id) : id));
  if (ids.some((id) => typeof id !== "number" || !Number.isInteger(id))) {
    throw new TokenError(`${name}: token ids must be whole numbers in a list or an array.`);
  }
  return ids as number[];
}

/** Refuse token ids that the model lacks: ONNX Runtime would read another row, or past the table. */
export function checkIds(ids: readonly number[], vocabSize: number, name: string, first = 0): void {
  const wrong = (id: number): boolean => id < 0 || id >= vocabSize;
  const at = ids.findIndex(wrong);
  if (at < 0) return;
  const such = ids.filter(wrong).length;
  throw new TokenError(
    `${name}: token ${first + at} has id ${ids[at]}, expected 0 to ${vocabSize - 1} (${such} such).`,
    "Tokenize it with the model's own vocabulary.",
  );
}

/** Return the UTF-8 bytes of a text; raise TextError for half of a surrogate pair. */
export function utf8Bytes(text: string | Uint8Array, name: string): Uint8Array {
  if (typeof text !== "string") return text;
  const at = [...text].findIndex((one) => /^[\ud800-\udfff]$/.test(one));
  if (at >= 0) {
    throw new TextError(
      `${name}: character ${at} is half of a surrogate pair, which UTF-8 cannot hold.`,
      "Give bytes, or replace it.",
    );
  }
  return new TextEncoder().encode(text);
}

/** Return the characters of a text; raise TextError for bytes that are not UTF-8. */
export function utf8Text(text: string | Uint8Array, name: string): string {
  const raw = utf8Bytes(text, name);
  const decoder = new Utf8Decoder(name);
  return decoder.take(raw) + decoder.end();
}

/** A decoder of UTF-8 that arrives in pieces; bytes may be cut anywhere. */
export class Utf8Decoder {
  #held = new Uint8Array(0);
  #before = 0; // bytes before the held ones

  constructor(private readonly name: string) {}

  /** Return the characters that the next bytes complete. */
  take(raw: Uint8Array): string {
    const all = new Uint8Array(this.#held.length + raw.length);
    all.set(this.#held);
    all.set(raw, this.#held.length);
    const end = all.length - unfinished(all);
    const text = this.#decoded(all.subarray(0, end));
    this.#before += end;
    this.#held = all.slice(end);
    return text;
  }

  /** Raise TextError if the text ends within a character; else return "". */
  end(): string {
    return this.#decoded(this.#held);
  }

  #decoded(raw: Uint8Array): string {
    try {
      return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(raw);
    } catch {
      const at = firstInvalid(raw);
      const byte = (raw[at] as number).toString(16).padStart(2, "0");
      throw new TextError(
        `${this.name}: not UTF-8 at byte ${this.#before + at} (0x${byte}), and this bundle's tokenizer needs text.`,
        `Convert it, for instance: iconv -f latin1 -t utf-8 ${this.name}`,
      );
    }
  }
}

/** Return how many bytes at the end begin a character that is not complete. */
function unfinished(raw: Uint8Array): number {
  for (let back = 1; back <= Math.min(3, raw.length); back++) {
    const byte = raw[raw.length - back] as number;
    if ((byte & 0xc0) === 0x80) continue;
    const size = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return size > back ? back : 0;
  }
  return 0;
}

/** Return the place of the first byte that cannot be part of UTF-8. */
function firstInvalid(raw: Uint8Array): number {
  let [low, high] = [0, raw.length]; // the first `low` bytes are valid or unfinished, the first `high` are not
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    try {
      new TextDecoder("utf-8", { fatal: true }).decode(raw.subarray(0, middle), { stream: true });
      low = middle;
    } catch {
      high = middle;
    }
  }
  return low - unfinished(raw.subarray(0, low));
}

function refusal(name: string): TextError {
  return new TextError(
    `${name}: this bundle has no tokenizer, so it takes token ids, not text.`,
    "Give ids, or convert the checkpoint with --tokenizer.",
  );
}
