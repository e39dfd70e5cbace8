/** A vocabulary: the symbol of each token id, and the rules by which text becomes symbols (`vocabulary.json`). */

import { BundleError, VocabularyError } from "../errors.js";
import { escaped, listed, shown } from "../messages.js";

const VOCABULARY_FORMAT = "xlexport vocabulary";
const KINDS = ["words", "characters", "bytes"] as const;
const ROLES = ["unk", "line_start", "line_end", "space"] as const;
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
  constructor(fields: Record<string, unknown>) {
    if (!KINDS.includes(fields["kind"] as never)) {
      throw new VocabularyError(`a vocabulary of ${shown(fields["kind"])}; expected one of ${KINDS.join(", ")}.`);
    }
    const { kind, symbols, unk, line_start, line_end, lower_case, space } = fields as unknown as Vocabulary;
    this.kind = kind;
    this.symbols = symbols;
    this.unk = unk ?? null;
    this.line_start = line_start ?? null;
    this.line_end = line_end ?? null;
    this.lower_case = lower_case ?? false;
    this.space = space ?? null;
    this.index = new Map(symbols.map((symbol, number) => [symbol, number]));
    const problems = [...this.#problems()];
    if (problems.length) throw new VocabularyError(`${problems.join("; ")}.`);
  }

  /** Read the content of a `vocabulary.json` at `where`. */
  static fromJson(raw: Uint8Array, where: string): Vocabulary {
    const again = "Convert the checkpoint again.";
    let fields: unknown;
    try {
      fields = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(raw));
    } catch (error) {
      throw new BundleError(`${where}: not valid JSON.`, again, error);
    }
    if (typeof fields !== "object" || (fields as { format?: unknown } | null)?.format !== VOCABULARY_FORMAT) {
      throw new BundleError(`${where}: not a vocabulary that xlexport wrote.`, again);
    }
    const { format: _, ...rest } = fields as Record<string, unknown>;
    try {
      const strange = Object.keys(rest).filter((name) => !FIELDS.includes(name));
      if (strange.length) throw new VocabularyError(`${listed(strange)}: unknown.`);
      if (!Array.isArray(rest["symbols"])) throw new VocabularyError("symbols are not a list.");
      return new Vocabulary(rest);
    } catch (error) {
      if (!(error instanceof VocabularyError)) throw error;
      throw new BundleError(`${where}: a broken vocabulary (${escaped(error.message)}).`, again, error);
    }
  }

  /** Return the token id of a symbol; null if it has none. */
  idOf(symbol: string | null): number | null {
    return symbol === null ? null : (this.index.get(symbol) ?? null);
  }

  *#problems(): Iterable<string> {
    const wrong = this.symbols.flatMap((symbol, number) => (isText(symbol) ? [] : [`${number} is ${shown(symbol)}`]));
    if (wrong.length) {
      yield `symbols must be text that is not empty, but symbol ${listed(wrong)}`;
      return;
    }
    if (!this.symbols.length) yield "a vocabulary without symbols";
    if (this.index.size < this.symbols.length) {
      const twice = new Set(this.symbols.filter((symbol, number) => this.index.get(symbol) !== number));
      yield `symbols occur more than once: ${listed([...twice].map(shown))}`;
    }
    const strange = this.symbols.filter((symbol) => !this.#isOfKind(symbol));
    if (strange.length) yield `symbols that are not ${this.kind}: ${listed(strange.map(shown))}`;
    for (const role of ROLES) {
      const symbol = this[role];
      if (symbol !== null && !this.index.has(symbol)) {
        yield `${role} is ${shown(symbol)}, which is not a symbol of the vocabulary`;
      }
    }
    for (const [role, kind] of [
      ["space", "characters"],
      ["line_start", "words"],
    ] as const) {
      if (this[role] !== null && this.kind !== kind) {
        yield `${role} is ${shown(this[role])}, expected None for ${this.kind}`;
      }
    }
    if (typeof this.lower_case !== "boolean") yield `lower_case is ${shown(this.lower_case)}, expected true or false`;
  }

  #isOfKind(symbol: string): boolean {
    if (this.kind === "words" || /^[<[].+[>\]]$/s.test(symbol)) return true;
    return this.kind === "characters" ? [...symbol].length === 1 : isByte(symbol);
  }
}

/** Return whether a symbol is the decimal number of a byte. */
export function isByte(symbol: string): boolean {
  return /^(0|[1-9]\d{0,2})$/.test(symbol) && Number(symbol) < 256;
}

function isText(symbol: unknown): boolean {
  return typeof symbol === "string" && symbol !== "" && !/\p{Surrogate}/u.test(symbol);
}
