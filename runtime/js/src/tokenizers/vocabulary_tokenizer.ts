/** The tokenizers of vocabularies: of words or characters, and of symbols that a trie finds: bytes, or longer ones. */

import { TokenError } from "../errors.js";
import { counted, listed, shown } from "../messages.js";
import { charsOf, decodedBytes, Tokenizer, type Part, type Place } from "./tokenizer.js";
import { ofHex, Trie } from "./trie.js";
import { Vocabulary } from "./vocabulary.js";

// White space as Python defines it.
const SPACE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const WORDS = new RegExp(`\\r\\n|[\\r\\n]|[^${SPACE}]+`, "gu");
const CHARACTERS = /\r\n|./gsu;
const SINGLE_CHARACTERS = /./gsu;
const IS_SPACE = new RegExp(`^[${SPACE}]$`, "u");
const [NEWLINE, RETURN] = [10, 13];
const [DROPPED, UNKNOWN] = [-1, -2];

/** Return the tokenizer of a `vocabulary.json` at `where`. */
export function openVocabulary(raw: Uint8Array, where: string): Tokenizer {
  const vocabulary = Vocabulary.fromJson(raw, where);
  const isText = vocabulary.kind === "words" || vocabulary.kind === "characters";
  return isText ? new TextTokenizer(vocabulary) : new TrieTokenizer(vocabulary);
}

/** Ids, places and counts of a part while it is read. */
class Found {
  readonly ids: number[] = [];
  readonly starts: number[] = [];
  readonly ends: number[] = [];
  readonly missing = new Map<string, number>(); // unknown symbols, and the line or byte of each
  readonly dropped: [number, number] = [0, 0];
  first: readonly [number, number] = [0, 0];

  add(id: number, start: number, end: number): void {
    this.ids.push(id);
    this.starts.push(start);
    this.ends.push(end);
  }
}

abstract class VocabularyTokenizer extends Tokenizer {
  override readonly unkId: number | null;
  override readonly size: number;
  /** The id of a newline, and that at the end of a last line without one. */
  protected readonly newline: number | null;
  protected readonly lineEnd: number | null;

  constructor(
    protected readonly vocabulary: Vocabulary,
    newline: string,
  ) {
    super();
    this.unkId = vocabulary.idOf(vocabulary.unk);
    this.size = vocabulary.symbols.length;
    const symbol = vocabulary.idOf(newline);
    this.lineEnd = symbol === null ? vocabulary.idOf(vocabulary.line_end) : null;
    this.newline = symbol ?? this.lineEnd;
  }

  override idOf(name: string): number | null {
    return this.vocabulary.idOf(name);
  }

  /** Add what ends a last line that has text and no newline. */
  protected end(
    found: Found,
    raw: Uint8Array,
    place: Place,
    size: number,
    before: readonly (number | null)[] = [],
  ): Part {
    const last = raw.at(-1) ?? place.last;
    const isOpen = last !== null && last !== NEWLINE && !(last === RETURN && this.isReturnNewline());
    for (const id of place.ended && isOpen ? [...before, this.lineEnd] : []) {
      if (id !== null) found.add(id, size, size);
    }
    return found;
  }

  protected isReturnNewline(): boolean {
    return true;
  }

  protected refuse(missing: ReadonlyMap<string, number>, name: string, where: string): void {
    if (!missing.size) return;
    const { symbols, kind } = this.vocabulary;
    const found = listed([...missing].map(([symbol, at]) => `${symbol} ${where} ${counted(at)}`));
    const unknown = kind === "bytes" || kind === "trie" ? "bytes" : "text";
    throw new TokenError(
      `${name}: ${found} not in the vocabulary of ${counted(symbols.length)} ${kind === "trie" ? "symbols" : kind}, ` +
        `which has no token for unknown ${unknown}.`,
      "Prepare the text as the training text was, or replace them.",
    );
  }
}

/** A tokenizer of words or characters. White space between words belongs to the word or line end after it. */
class TextTokenizer extends VocabularyTokenizer {
  override readonly needsText = true;
  readonly #words: boolean;
  readonly #lineStart: number | null;
  readonly #pattern: RegExp;

  constructor(vocabulary: Vocabulary) {
    super(vocabulary, vocabulary.kind === "words" ? "" : "\n");
    this.#words = vocabulary.kind === "words";
    this.#lineStart = vocabulary.idOf(vocabulary.line_start);
    this.#pattern = this.#words ? WORDS : this.isReturnNewline() ? CHARACTERS : SINGLE_CHARACTERS;
  }

  settled(raw: Uint8Array): number {
    const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(raw);
    const isSpace = (at: number): boolean => IS_SPACE.test(text[at] as string);
    let end = text.length - Number(text.endsWith("\r")); // a newline may follow
    if (this.#words) {
      while (end > 0 && !isSpace(end - 1)) end -= 1;
      // A token does not show that a line ended before it, if newlines have none.
      if (this.#lineStart !== null && this.newline === null) while (end > 0 && isSpace(end - 1)) end -= 1;
    }
    return raw.length - new TextEncoder().encode(text.slice(end)).length;
  }

  part(raw: Uint8Array, place: Place): Part {
    const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(raw);
    const found = new Found();
    let isBegun = place.previous !== null && place.previous !== this.lineEnd; // the line's line_start was returned
    let [at, units] = [0, 0]; // the same place, in code points and in halves of surrogate pairs
    for (const match of text.matchAll(this.#pattern)) {
      const unit = match[0];
      let start = (at += lengthOf(text.slice(units, match.index)));
      const end = (at += lengthOf(unit));
      units = match.index + unit.length;
      const isNewline = ["\n", "\r", "\r\n"].includes(unit) && !this.vocabulary.index.has(unit);
      const ids = isNewline ? this.#newlineIds(unit, found) : this.#ids(unit, found, place.line);
      if (!isBegun && this.#lineStart !== null) found.add(this.#lineStart, start, start);
      isBegun = !isNewline;
      for (const id of ids) {
        found.add(id, start, end);
        start = end; // lower-casing may turn one character into two
      }
      place.line += Number(isNewline);
    }
    this.refuse(found.missing, place.name, "in line");
    if (found.ids.length) {
      const covered = [...text].slice(this.#words ? 0 : found.starts[0], found.ends[0]);
      found.first = [new TextEncoder().encode(covered.join("")).length, covered.length];
    }
    return this.end(found, raw, place, at + lengthOf(text.slice(units)), [isBegun ? null : this.#lineStart]);
  }

  decode(ids: Iterable<number>): string {
    const { kind, symbols, space, line_end } = this.vocabulary;
    const found = [...ids].map((id) => symbols[id] ?? "");
    if (kind === "words") return joinedWords(this.vocabulary, found);
    return found.map((symbol) => (symbol === space ? " " : symbol === line_end ? "\n" : symbol)).join("");
  }

  protected override isReturnNewline(): boolean {
    return this.#words || !this.vocabulary.index.has("\r");
  }

  #newlineIds(newline: string, found: Found): number[] {
    if (this.newline !== null) return [this.newline];
    if (!this.#words) {
      found.dropped[0] += newline.length;
      found.dropped[1] += newline.length;
    }
    return [];
  }

  /** Return ids of a word or character; add symbols without id to those that are missing, with their line. */
  #ids(unit: string, { missing }: Found, line: number): number[] {
    const { lower_case, index, space } = this.vocabulary;
    const written = lower_case ? unit.toLowerCase() : unit;
    const found: number[] = [];
    for (const symbol of this.#words ? [written] : written) {
      const id = index.get(symbol) ?? (symbol === " " ? this.vocabulary.idOf(space) : null) ?? this.unkId;
      if (id !== null) found.push(id);
      else if (!missing.has(shown(symbol))) missing.set(shown(symbol), line);
    }
    return found;
  }
}

/** A tokenizer of bytes or longer symbols: the longest one that fits comes next, from left to right, over bytes. */
class TrieTokenizer extends VocabularyTokenizer {
  override readonly needsText: boolean;
  readonly #trie: Trie;
  readonly #symbols: readonly ArrayLike<number>[];

  constructor(vocabulary: Vocabulary) {
    const { kind, symbols, unk, line_end } = vocabulary;
    super(vocabulary, { bytes: "10", trie: "0a" }[kind as string] ?? "\n");
    this.needsText = kind === "symbols";
    const isByte = (symbol: string): boolean => /^\d+$/.test(symbol);
    const encoder = new TextEncoder();
    this.#symbols = symbols.map((symbol) => {
      if (kind === "trie") return ofHex(symbol);
      return kind === "bytes" && isByte(symbol) ? [Number(symbol)] : encoder.encode(symbol);
    });
    const isInText = (symbol: string): boolean =>
      kind === "bytes" ? isByte(symbol) : symbol !== unk && symbol !== line_end;
    this.#trie = new Trie(this.#symbols.map((bytes, id) => (isInText(symbols[id] as string) ? bytes : [])));
  }

  settled(raw: Uint8Array): number {
    for (const { start, id, end } of this.#walk(raw)) {
      if (end === null || (this.#isReturn(id, raw[start]) && end === raw.length)) return start;
    }
    return raw.length;
  }

  part(raw: Uint8Array, place: Place): Part {
    const found = new Found();
    const isByte = !this.needsText;
    const lines = (to: number): number => raw.subarray(0, to).reduce((sum, byte) => sum + Number(byte === NEWLINE), 0);
    let chars = 0;
    for (const { start, id, end: stop } of this.#walk(raw, true)) {
      const end = stop as number;
      const size = isByte ? end - start : charsOf(raw.subarray(start, end));
      const at = isByte ? start : chars;
      chars += size;
      const newline = (id === null && raw[start] === NEWLINE) || this.#isReturn(id, raw[start]);
      const token = id ?? (newline ? (this.newline ?? DROPPED) : (this.unkId ?? UNKNOWN));
      if (token === DROPPED) {
        found.dropped[0] += end - start;
        found.dropped[1] += end - start;
      } else if (token === UNKNOWN) {
        const bytes = raw.subarray(start, end);
        const name = isByte ? byteName(bytes[0] as number) : shown(new TextDecoder().decode(bytes));
        if (!found.missing.has(name)) found.missing.set(name, isByte ? place.bytes + start : place.line + lines(start));
      } else {
        if (!found.ids.length) found.first = [end - start, charsOf(raw.subarray(start, end))];
        found.add(token, at, at + size);
      }
    }
    this.refuse(found.missing, place.name, isByte ? "at byte" : "in line");
    place.line += lines(raw.length);
    return this.end(found, raw, place, isByte ? raw.length : chars);
  }

  decode(ids: Iterable<number>): string {
    const newline = this.vocabulary.idOf(this.vocabulary.line_end);
    return decodedBytes([...ids].flatMap((id) => (id === newline ? [NEWLINE] : Array.from(this.#symbols[id] ?? []))));
  }

  protected override isReturnNewline(): boolean {
    return this.#isReturn(this.#trie.longest(Uint8Array.of(RETURN), 0).id, RETURN);
  }

  /** Return whether a byte that has no symbol ends a line by itself or before a newline: not among single bytes. */
  #isReturn(id: number | null, byte: number | undefined): boolean {
    return id === null && byte === RETURN && this.vocabulary.kind !== "bytes";
  }

  /**
   * Yield the longest symbols from left to right; `id` is null for a newline, character or byte without one.
   *
   * @param isEnd - whether the text ends here; else `end` is null at the place from which a longer symbol may still come.
   */
  *#walk(raw: Uint8Array, isEnd = false): Iterable<{ start: number; id: number | null; end: number | null }> {
    for (let start = 0; start < raw.length;) {
      const { id, end, isOpen } = this.#trie.longest(raw, start);
      if (isOpen && !isEnd) {
        yield { start, id, end: null };
        return;
      }
      const next = id === null ? start + this.#sizeOfUnknown(raw, start) : end;
      yield { start, id, end: next };
      start = next;
    }
  }

  #sizeOfUnknown(raw: Uint8Array, start: number): number {
    if (this.#isReturn(null, raw[start])) return raw[start + 1] === NEWLINE ? 2 : 1;
    let size = 1;
    while (this.needsText && start + size < raw.length && ((raw[start + size] as number) & 0xc0) === 0x80) size += 1;
    return size;
  }
}

/** Return a byte as messages show it. */
function byteName(byte: number): string {
  return `${byte} (0x${byte.toString(16).padStart(2, "0")})`;
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
