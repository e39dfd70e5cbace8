/** A vocabulary (`vocabulary.json`): the symbol of each token id, and the rules by which text becomes symbols. */

import { VocabularyError } from "../errors.js";
import { readJson } from "../json.js";
import { counted, listed, shown } from "../messages.js";

const FORMAT = "xlexport vocabulary";
const AGAIN = "Convert the checkpoint again.";
const KINDS = ["words", "characters", "bytes", "trie", "symbols"] as const;
const ROLES = ["unk", "line_start", "line_end", "space"] as const;
/** The kind of vocabulary that may have a symbol in a role; other roles are of all kinds. */
const ONLY: Partial<Record<(typeof ROLES)[number], string>> = { space: "characters", line_start: "words" };
const LONGEST_SYMBOL = 1000; // bytes, of a trie: so many are looked at from each place of a text
const FIELDS = ["kind", "symbols", ...ROLES, "lower_case"];

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
    const isTrie = kind === "trie"; // a symbol without bytes is an id without text
    if (
      !Array.isArray(symbols) ||
      !symbols.some(isText) ||
      !symbols.every((one) => isText(one) || (isTrie && one === ""))
    ) {
      yield `symbols are not a list of texts${isTrie ? "" : ", none of them empty"}`;
      return;
    }
    const twice = symbols.filter((symbol, number) => symbol !== "" && index.get(symbol) !== number);
    if (twice.length) yield `symbols occur more than once: ${listed(twice)}`;
    const others = symbols.filter((symbol) => !this.#isOfKind(symbol));
    if (others.length) yield `symbols that are not ${isTrie ? "bytes in hexadecimal" : kind}: ${listed(others)}`;
    const longest = symbols.reduce((most, symbol) => Math.max(most, symbol.length / (isTrie ? 2 : 1)), 0);
    if ((isTrie || kind === "symbols") && longest > LONGEST_SYMBOL) {
      yield `a symbol is longer than ${counted(LONGEST_SYMBOL)}`;
    }
    for (const role of ROLES) {
      const symbol = this[role];
      if (symbol === null) continue;
      if (!index.has(symbol)) yield `${role} is ${shown(symbol)}, which is not a symbol of the vocabulary`;
      if (kind !== (ONLY[role] ?? kind)) yield `${role} is ${shown(symbol)}, expected null for ${kind}`;
    }
    if (isTrie && this.lower_case === true) yield "lower_case is true, expected false for trie";
    if (typeof this.lower_case !== "boolean") yield `lower_case is ${shown(this.lower_case)}, expected true or false`;
  }

  #isOfKind(symbol: string): boolean {
    if (this.kind === "trie") return /^([0-9a-f]{2})*$/.test(symbol);
    if (this.kind === "words" || this.kind === "symbols" || /^[<[].+[>\]]$/s.test(symbol)) return true;
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
