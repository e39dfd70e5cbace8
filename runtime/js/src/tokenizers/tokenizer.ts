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

/** Where a part of a text is, which decides about its tokens. */
export interface Place {
  /** What the text is called in messages. */
  name: string;
  /** Whether text or drawn tokens come before the part; a form that puts a space before each text leaves it out then. */
  begun: boolean;
  /** Id of the token before the part; null at the beginning. */
  previous: number | null;
  /** Number of bytes before the part, for messages. */
  bytes: number;
  /** Byte of the text before the part; null at the beginning. */
  last: number | null;
  /** Whether the text ends after the part, and with it its last line. */
  ended: boolean;
  /** Line in which the part begins, for messages; a tokenizer that counts lines sets that of its end. */
  line: number;
}

/** The tokens of a part of a text; places count from its beginning. */
export interface Part extends TokenPiece {
  /** Bytes and characters of the part up to the end of its first token, without dropped ones. */
  first: readonly [bytes: number, chars: number];
  /** Bytes and characters that no token covers, as the vocabulary has no symbol for them: newlines. */
  dropped: readonly [bytes: number, chars: number];
}

/** A part without text. */
export const NOTHING: Part = { ids: [], starts: [], ends: [], first: [0, 0], dropped: [0, 0] };

/** A tokenizer: text to ids and back. */
export abstract class Tokenizer {
  /** The id for text that the vocabulary lacks; null if it is missing. */
  readonly unkId: number | null = null;
  /** Number of ids that have a text; null: all that the model has. */
  readonly size: number | null = null;
  /** Whether texts must be UTF-8; places of tokens then count characters, else bytes. */
  readonly needsText: boolean = false;

  /**
   * Return how many bytes of a text have final tokens, whatever follows; null if the tokenizer cannot say.
   *
   * The settled bytes and the rest, tokenized apart, have the tokens of the whole. The text begins at an earlier cut.
   */
  abstract settled(text: Uint8Array): number | null;

  /** Return the tokens of a part of a text, up to a cut or to the end. */
  abstract part(raw: Uint8Array, place: Place): Part;

  /** Return the text of ids; an id without text has none. */
  abstract decode(ids: Iterable<number>): string;

  /** Return the id of the token that the vocabulary lists under this name; null if there is none. */
  idOf(_name: string): number | null {
    return null;
  }

  /** Return how many of `ids`, the tokens of a longer text, lie in its beginning, which alone has the tokens `alone`. */
  within(_ids: readonly number[], _alone: readonly number[]): number {
    return 0;
  }

  /** Return the ids of a whole text. */
  encode(text: string | Uint8Array): number[] {
    return this.part(checkedBytes(this, text, "the text"), { ...BEGINNING, ended: true }).ids;
  }

  /** Return the ids of the next piece of a text as if it ended there, but not its line; `previous` is the token before. */
  encodePiece(text: string | Uint8Array, previous: number | null, name = "the text"): number[] {
    const raw = checkedBytes(this, text, name);
    return raw.length ? this.part(raw, { ...BEGINNING, name, begun: previous !== null, previous }).ids : [];
  }

  /** Yield the tokens of a document in order, and add to `counts` on the way. */
  async *read(parts: AsyncIterable<Uint8Array>, name: string, counts: TextCounts): AsyncIterable<TokenPiece> {
    const { readText } = await import("../documents.js");
    yield* readText(this, parts, name, counts);
  }
}

const BEGINNING: Place = {
  name: "the text",
  begun: false,
  previous: null,
  bytes: 0,
  last: null,
  ended: false,
  line: 1,
};

/** A tokenizer with id = byte + `firstId`. Any file is valid, and is read piece by piece. */
export class ByteTokenizer extends Tokenizer {
  override readonly size: number;

  constructor(private readonly firstId = 0) {
    super();
    this.size = firstId + 256;
  }

  settled(text: Uint8Array): number {
    return text.length;
  }

  part(raw: Uint8Array): Part {
    const starts = Array.from(raw, (_, at) => at);
    const first = [Math.min(1, raw.length), charsOf(raw.subarray(0, 1))] as const;
    const ids = Array.from(raw, (byte) => byte + this.firstId);
    return { ids, starts, ends: starts.map((start) => start + 1), first, dropped: [0, 0] };
  }

  decode(ids: Iterable<number>): string {
    return decodedBytes([...ids].map((id) => id - this.firstId).filter((byte) => byte >= 0 && byte < 256));
  }
}

/** A placeholder for bundles without a tokenizer: accepts token ids, refuses text. */
export class NoTokenizer extends Tokenizer {
  settled(): null {
    return null;
  }

  part(_raw: Uint8Array, { name }: Place): never {
    throw new TextError(
      `${name}: this bundle has no tokenizer, so it takes token ids, not text.`,
      "Give ids, or convert the checkpoint with --tokenizer.",
    );
  }

  decode(ids: Iterable<number>): string {
    return [...ids].join(" ");
  }

  override idOf(name: string): number | null {
    return /^[0-9]{1,9}$/.test(name) ? Number(name) : null;
  }
}

/** Return the text of bytes; those that are not UTF-8 become U+FFFD. */
export function decodedBytes(bytes: readonly number[]): string {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
}

/** Return how many characters begin in these bytes. */
export function charsOf(raw: Uint8Array): number {
  return raw.reduce((chars, byte) => chars + Number((byte & 0xc0) !== 0x80), 0);
}

/** Return whether a byte is ASCII white space, which is between words. */
function isSpace(byte: number | undefined): boolean {
  return byte === 32 || (byte !== undefined && byte >= 9 && byte <= 13);
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
  const at = text.search(/\p{Surrogate}/u); // of a pair it is no half
  if (at >= 0) {
    throw new TextError(
      `${name}: character ${[...text.slice(0, at)].length} is half of a surrogate pair, which UTF-8 cannot hold.`,
      "Give bytes, or replace it.",
    );
  }
  return new TextEncoder().encode(text);
}

/** Return the bytes of a text; raise TextError if the tokenizer needs UTF-8 and they are not. */
export function checkedBytes(tokenizer: Tokenizer, text: string | Uint8Array, name: string): Uint8Array {
  const raw = utf8Bytes(text, name);
  if (tokenizer.needsText) utf8Text(raw, name);
  return raw;
}

/** Return the characters of bytes that begin at byte `before` of a text; raise TextError if they are not UTF-8. */
export function utf8Text(raw: Uint8Array, name: string, before = 0): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(raw);
  } catch {
    const at = firstInvalid(raw);
    const byte = (raw[at] as number).toString(16).padStart(2, "0");
    throw new TextError(
      `${name}: not UTF-8 at byte ${before + at} (0x${byte}), and this bundle's tokenizer needs text.`,
      `Convert it, for instance: iconv -f latin1 -t utf-8 ${name}`,
    );
  }
}

/** Return how many bytes at the end begin a character that is not complete. */
export function unfinished(raw: Uint8Array): number {
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
