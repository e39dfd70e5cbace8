/**
 * A vocabulary (`vocabulary.json`): the symbol of each token id, and the rules by which text becomes ids, piece by piece.
 *
 * A line ends with a newline, a carriage return or both. A byte-order mark at the beginning of a text is skipped. White
 * space between words belongs to the word or line end after it.
 */

import { TextError, TokenError, VocabularyError } from "../errors.js";
import { readJson } from "../json.js";
import { counted, listed, shown } from "../messages.js";
import { TextCounts, utf8Bytes, Utf8Decoder, type Tokenizer, type TokenPiece } from "./tokenizer.js";

const FORMAT = "xlexport vocabulary";
const AGAIN = "Convert the checkpoint again.";
const KINDS = ["words", "characters", "bytes"] as const;
const ROLES = ["unk", "line_start", "line_end", "space"] as const;
/** The kind of vocabulary that may have a symbol in a role; other roles are of all kinds. */
const ONLY: Partial<Record<(typeof ROLES)[number], string>> = { space: "characters", line_start: "words" };
const FIELDS = ["kind", "symbols", ...ROLES, "lower_case"];

const BYTE_ORDER_MARK = "\ufeff";
// White space as Python defines it.
const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const WORDS = new RegExp(`\\r\\n|[\\r\\n]|[^${SPACE}]+`, "gu");
const CHARACTERS = /\r\n|./gsu;
const SINGLE_CHARACTERS = /./gsu;
const IS_SPACE = new RegExp(`^[${SPACE}]$`, "u");
const NEWLINE = 10;
const LONGEST_WORD = 16 * 2 ** 20; // characters
const [DROPPED, UNKNOWN] = [-1, -2];

/** Symbols in the order of their token ids, and the rules by which text becomes symbols. */
export class Vocabulary {
  readonly kind: (typeof KINDS)[number];
  readonly symbols: readonly string[];
  readonly unk: string | null;
  readonly line_start: string | null;
  readonly line_end: string | null;
  readonly lower_case: boolean;
  readonly space: string | null;
  /** Token id of each symbol. */
  readonly index: ReadonlyMap<string, number>;

  /** @throws VocabularyError - symbols or rules do not form a vocabulary; lists all problems. */
  constructor(fields: Record<string, unknown>, where = "the vocabulary") {
    const { kind, symbols, unk, line_start, line_end, lower_case, space } = fields as unknown as Vocabulary;
    this.kind = kind;
    this.symbols = symbols;
    this.unk = unk ?? null;
    this.line_start = line_start ?? null;
    this.line_end = line_end ?? null;
    this.lower_case = lower_case ?? false;
    this.space = space ?? null;
    this.index = new Map(Array.isArray(symbols) ? symbols.map((symbol, number) => [symbol, number]) : []);
    const problems = [...this.#problems(Object.keys(fields))];
    if (problems.length) throw new VocabularyError(`${where}: ${problems.join("; ")}.`, AGAIN);
  }

  /** Read the content of a `vocabulary.json` at `where`. */
  static fromJson(raw: Uint8Array, where: string): Vocabulary {
    let fields: Record<string, unknown> | null;
    try {
      fields = readJson(raw) as Record<string, unknown> | null;
    } catch (error) {
      throw new VocabularyError(`${where}: not JSON.`, AGAIN, error);
    }
    const { format, ...rest } = fields ?? {};
    if (format !== FORMAT) throw new VocabularyError(`${where}: not a vocabulary that xlexport wrote.`, AGAIN);
    return new Vocabulary(rest, where);
  }

  /** Return the token id of a symbol; null if it has none. */
  idOf(symbol: string | null): number | null {
    return symbol === null ? null : (this.index.get(symbol) ?? null);
  }

  *#problems(names: readonly string[]): Iterable<string> {
    const { kind, symbols, index } = this;
    const unknown = names.filter((name) => !FIELDS.includes(name));
    if (unknown.length) yield `unknown fields ${listed(unknown)}`;
    if (!KINDS.includes(kind)) yield `kind is ${shown(kind)}, expected ${KINDS.join(" or ")}`;
    if (!Array.isArray(symbols) || !symbols.length || !symbols.every(isText)) {
      yield "symbols are not a list of texts, none of them empty";
      return;
    }
    const twice = symbols.filter((symbol, number) => index.get(symbol) !== number);
    if (twice.length) yield `symbols occur more than once: ${listed(twice)}`;
    const others = symbols.filter((symbol) => !this.#isOfKind(symbol));
    if (others.length) yield `symbols that are not ${kind}: ${listed(others)}`;
    for (const role of ROLES) {
      const symbol = this[role];
      if (symbol === null) continue;
      if (!index.has(symbol)) yield `${role} is ${shown(symbol)}, which is not a symbol of the vocabulary`;
      if (kind !== (ONLY[role] ?? kind)) yield `${role} is ${shown(symbol)}, expected null for ${kind}`;
    }
    if (typeof this.lower_case !== "boolean") yield `lower_case is ${shown(this.lower_case)}, expected true or false`;
  }

  #isOfKind(symbol: string): boolean {
    if (this.kind === "words" || /^[<[].+[>\]]$/s.test(symbol)) return true;
    return this.kind === "characters" ? [...symbol].length === 1 : isByte(symbol);
  }
}

/** Return whether a symbol is the decimal number of a byte. */
function isByte(symbol: string): boolean {
  return /^(0|[1-9]\d{0,2})$/.test(symbol) && Number(symbol) < 256;
}

function isText(symbol: unknown): boolean {
  return typeof symbol === "string" && symbol !== "" && !/\p{Surrogate}/u.test(symbol);
}

/** A tokenizer for documents of any length at constant memory; words and characters must be UTF-8. */
export class VocabularyTokenizer implements Tokenizer {
  readonly unkId: number | null;

  constructor(private readonly vocabulary: Vocabulary) {
    this.unkId = vocabulary.idOf(vocabulary.unk);
  }

  encode(text: string | Uint8Array): number[] {
    const reader = this.#reader("the text", new TextCounts(), null);
    return [...reader.take(utf8Bytes(text, "the text")), ...reader.end()].flatMap((piece) => piece.ids);
  }

  encodePiece(text: string | Uint8Array, previous: number | null): number[] {
    const reader = this.#reader("the text", new TextCounts(), previous);
    return [...reader.take(utf8Bytes(text, "the text")), ...reader.flush()].flatMap((piece) => piece.ids);
  }

  decode(ids: Iterable<number>): string {
    const { kind, symbols, space, line_end } = this.vocabulary;
    const found = [...ids].map((id) => symbols[id] ?? "");
    if (kind === "words") return joinedWords(this.vocabulary, found);
    const parts = found.map((symbol) => (symbol === space ? " " : symbol === line_end ? "\n" : symbol));
    if (kind === "characters") return parts.join("");
    const raw = parts.flatMap((part) => (/^\d+$/.test(part) ? [Number(part)] : [...new TextEncoder().encode(part)]));
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(raw));
  }

  idOf(name: string): number | null {
    return this.vocabulary.idOf(name);
  }

  async *read(parts: AsyncIterable<Uint8Array>, name: string, counts: TextCounts): AsyncIterable<TokenPiece> {
    const reader = this.#reader(name, counts, null);
    for await (const raw of parts) {
      counts.add(raw);
      yield* reader.take(raw);
    }
    yield* reader.end();
  }

  #reader(name: string, counts: TextCounts, previous: number | null): ByteReader | TextReader {
    return this.vocabulary.kind === "bytes"
      ? new ByteReader(this.vocabulary, name, counts)
      : new TextReader(this.vocabulary, name, counts, previous);
  }
}

/** A reader of documents of words or characters. Places count code points. */
class TextReader {
  readonly #words: boolean;
  readonly #unk: number | null;
  readonly #lineStart: number | null;
  readonly #lineEnd: number | null;
  readonly #newline: number | null;
  readonly #pattern: RegExp;
  readonly #decoder: Utf8Decoder;
  #held = ""; // text whose tokens depend on what follows
  #chars = 0; // before the held text
  #bytes = 0; // before the first token
  #line = 1;
  #begun: boolean; // the line's line_start, if any, was returned
  #open = false; // the line has text, and no newline yet
  #first: boolean; // no text yet
  #empty: boolean; // no token yet

  constructor(
    private readonly vocabulary: Vocabulary,
    private readonly name: string,
    private readonly counts: TextCounts,
    previous: number | null,
  ) {
    this.#words = vocabulary.kind === "words";
    const newline = this.#words ? null : vocabulary.idOf("\n");
    this.#unk = vocabulary.idOf(vocabulary.unk);
    this.#lineStart = vocabulary.idOf(vocabulary.line_start);
    this.#lineEnd = newline === null ? vocabulary.idOf(vocabulary.line_end) : null;
    this.#newline = newline ?? this.#lineEnd;
    const single = vocabulary.index.has("\r") && !this.#words;
    this.#pattern = this.#words ? WORDS : single ? SINGLE_CHARACTERS : CHARACTERS;
    this.#decoder = new Utf8Decoder(name);
    this.#begun = previous !== null && previous !== this.#lineEnd;
    this.#first = this.#empty = previous === null;
  }

  /** Take the next bytes, and yield the tokens that they complete. */
  *take(raw: Uint8Array): Iterable<TokenPiece> {
    const text = this.#held + this.#decoder.take(raw);
    let end = text.length - Number(text.endsWith("\r")); // a newline may follow
    if (this.#words) while (end > 0 && !IS_SPACE.test(text[end - 1] as string)) end -= 1;
    this.#held = text.slice(end);
    if (this.#held.length > LONGEST_WORD) {
      throw new TextError(`${this.name}: a word of more than ${counted(LONGEST_WORD)} characters.`);
    }
    if (end) yield this.#piece(text.slice(0, end));
  }

  /** Yield the tokens of the held text, and end the text, but not its last line. */
  *flush(): Iterable<TokenPiece> {
    const text = this.#held + this.#decoder.end();
    this.#held = "";
    yield this.#piece(text);
  }

  /** Yield the tokens of the held text, and those that end a last line without newline. */
  *end(): Iterable<TokenPiece> {
    yield* this.flush();
    const marks = this.#open ? [this.#begun ? null : this.#lineStart, this.#lineEnd] : [];
    const ids = marks.filter((id) => id !== null);
    yield { ids, starts: ids.map(() => this.#chars), ends: ids.map(() => this.#chars) };
  }

  #piece(text: string): TokenPiece {
    const piece = this.#tokens(text);
    const encoder = new TextEncoder();
    if (this.#empty && piece.ids.length) {
      const characters = [...text]; // text before the first word has no token of its own
      const covered = characters.slice(this.#words ? 0 : piece.starts[0], piece.ends[0]);
      this.counts.firstTokenBytes = encoder.encode(covered.join("")).length + (this.#words ? this.#bytes : 0);
      this.counts.firstTokenChars = covered.length + (this.#words ? this.#chars : 0);
      this.#empty = false;
    } else if (this.#empty) {
      this.#bytes += encoder.encode(text).length;
    }
    const before = this.#chars;
    this.#chars += lengthOf(text);
    return { ids: piece.ids, starts: piece.starts.map((at) => at + before), ends: piece.ends.map((at) => at + before) };
  }

  #tokens(text: string): { ids: number[]; starts: number[]; ends: number[] } {
    const found = { ids: [] as number[], starts: [] as number[], ends: [] as number[] };
    const add = (id: number, start: number, end: number): void => {
      found.ids.push(id);
      found.starts.push(start);
      found.ends.push(end);
    };
    const missing = new Map<string, number>();
    const skipped = this.#skipMark(text);
    this.#open ||= skipped < text.length;
    let [place, units] = [0, 0]; // the same place, in code points and in halves of surrogate pairs
    for (const match of text.slice(skipped).matchAll(this.#pattern)) {
      const unit = match[0];
      const at = match.index + skipped;
      let start = (place += lengthOf(text.slice(units, at)));
      const end = (place += lengthOf(unit));
      units = at + unit.length;
      const isNewline = ["\n", "\r", "\r\n"].includes(unit) && !this.vocabulary.index.has(unit);
      const ids = isNewline ? this.#newlineIds(unit) : this.#ids(unit, missing);
      if (!this.#begun && this.#lineStart !== null) add(this.#lineStart, start, start);
      this.#begun = !isNewline;
      for (const id of ids) {
        add(id, start, end);
        start = end; // lower-casing may turn one character into two
      }
      if (isNewline) {
        this.#line += 1;
        this.#open = units < text.length;
      }
    }
    if (missing.size) this.#refuse(missing);
    return found;
  }

  /** Return where the text begins: after a byte-order mark. */
  #skipMark(text: string): number {
    const first = this.#first;
    this.#first &&= text === "";
    if (!first || !text.startsWith(BYTE_ORDER_MARK) || this.vocabulary.index.has(BYTE_ORDER_MARK)) return 0;
    if (!this.#words) this.#drop(BYTE_ORDER_MARK);
    return 1;
  }

  #newlineIds(newline: string): number[] {
    if (this.#newline !== null) return [this.#newline];
    if (!this.#words) this.#drop(newline);
    return [];
  }

  #drop(text: string): void {
    this.counts.droppedChars += lengthOf(text);
    this.counts.droppedBytes += new TextEncoder().encode(text).length;
  }

  /** Return ids of a word or character; add symbols without id to `missing`, with their line. */
  #ids(unit: string, missing: Map<string, number>): number[] {
    const { lower_case, index, space } = this.vocabulary;
    const written = lower_case ? unit.toLowerCase() : unit;
    const found: number[] = [];
    for (const symbol of this.#words ? [written] : written) {
      const id = index.get(symbol) ?? (symbol === " " ? this.vocabulary.idOf(space) : null) ?? this.#unk;
      if (id !== null) found.push(id);
      else if (!missing.has(symbol)) missing.set(symbol, this.#line);
    }
    return found;
  }

  #refuse(missing: ReadonlyMap<string, number>): never {
    const found = listed([...missing].map(([symbol, line]) => `${shown(symbol)} in line ${counted(line)}`));
    const { symbols, kind } = this.vocabulary;
    throw new TokenError(
      `${this.name}: ${found} not in the vocabulary of ${counted(symbols.length)} ${kind}, which has no token for ` +
        "unknown text.",
      "Prepare the text as the training text was, or replace them.",
    );
  }
}

/** A reader of documents of bytes. */
class ByteReader {
  readonly #table: number[];
  readonly #lineEnd: number | null = null;
  #bytes = 0;
  #open = false;
  #empty = true;

  constructor(
    private readonly vocabulary: Vocabulary,
    private readonly name: string,
    private readonly counts: TextCounts,
  ) {
    const unk = vocabulary.idOf(vocabulary.unk) ?? UNKNOWN;
    this.#table = Array.from({ length: 256 }, (_, byte) => vocabulary.index.get(String(byte)) ?? unk);
    if (!vocabulary.index.has(String(NEWLINE))) {
      this.#lineEnd = vocabulary.idOf(vocabulary.line_end);
      this.#table[NEWLINE] = this.#lineEnd ?? DROPPED;
    }
  }

  *take(raw: Uint8Array): Iterable<TokenPiece> {
    const piece = { ids: [] as number[], starts: [] as number[], ends: [] as number[] };
    const unknown = new Map<number, number>();
    raw.forEach((byte, at) => {
      const id = this.#table[byte] as number;
      if (id === UNKNOWN) {
        if (!unknown.has(byte)) unknown.set(byte, this.#bytes + at);
      } else if (id === DROPPED) {
        this.counts.droppedBytes += 1; // newlines, so characters too
        this.counts.droppedChars += 1;
      } else {
        if (this.#empty) {
          this.counts.firstTokenBytes = 1;
          this.counts.firstTokenChars = Number((byte & 0xc0) !== 0x80);
          this.#empty = false;
        }
        piece.ids.push(id);
        piece.starts.push(this.#bytes + at);
        piece.ends.push(this.#bytes + at + 1);
      }
    });
    if (unknown.size) this.#refuse(unknown);
    this.#bytes += raw.length;
    if (raw.length) this.#open = raw.at(-1) !== NEWLINE;
    yield piece;
  }

  *flush(): Iterable<TokenPiece> {
    // Bytes are never held.
  }

  *end(): Iterable<TokenPiece> {
    const ids = this.#open && this.#lineEnd !== null ? [this.#lineEnd] : [];
    yield { ids, starts: ids.map(() => this.#bytes), ends: ids.map(() => this.#bytes) };
  }

  #refuse(unknown: ReadonlyMap<number, number>): never {
    const found = [...unknown].map(([byte, at]) => {
      return `${byte} (0x${byte.toString(16).padStart(2, "0")}) at byte ${counted(at)}`;
    });
    throw new TokenError(
      `${this.name}: ${listed(found)} not in the vocabulary of ${this.vocabulary.symbols.length} bytes, which has no ` +
        "token for unknown bytes.",
      "Prepare the text as the training text was, or replace them.",
    );
  }
}

/** Join words to a text. A symbol that both starts and ends lines starts one if no line has begun. */
function joinedWords(vocabulary: Vocabulary, symbols: readonly string[]): string {
  const parts: string[] = [];
  let begun = false;
  for (const symbol of symbols) {
    if (symbol === vocabulary.line_start && !begun) {
      begun = true;
    } else if (symbol === vocabulary.line_end) {
      parts.push("\n");
      begun = false;
    } else {
      parts.push(parts.length && parts.at(-1) !== "\n" ? ` ${symbol}` : symbol);
      begun = true;
    }
  }
  return parts.join("");
}

/** Return the number of code points of a text. */
function lengthOf(text: string): number {
  let length = text.length;
  for (const _ of text.matchAll(/[\ud800-\udbff][\udc00-\udfff]/g)) length -= 1;
  return length;
}
