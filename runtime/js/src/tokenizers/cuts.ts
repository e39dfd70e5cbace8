/** Where the text of a library's tokenizer can be cut, so that both parts keep the tokens of the whole. */

/** A rule of the manifest: a published pattern, or what surrounds a space. */
export type CutRule = "gpt2" | "llama3" | "gpt4o" | "words" | "letters";

const CONTRACTION = "'(?:[sS\u017f]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])";
const BEFORE_WORD = "[^\\r\\n\\p{L}\\p{N}]?";
const [UPPER, LOWER] = ["[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]", "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"];
const SPACES = "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
/** Patterns of pre-tokenizers; JavaScript has no case-insensitive groups, so letters are spelled out. */
const PATTERNS: Record<string, string> = {
  gpt2: "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
  llama3: `${CONTRACTION}|${BEFORE_WORD}\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|${SPACES}`,
  gpt4o:
    `${BEFORE_WORD}${UPPER}*${LOWER}+(?:${CONTRACTION})?|${BEFORE_WORD}${UPPER}+${LOWER}*(?:${CONTRACTION})?` +
    `|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|${SPACES}`,
};
const KEPT = 2; // pieces at the end that a longer text may change
const VISIBLE = /[\p{L}\p{N}\p{P}\p{S}]$/u;
const LETTER_BEFORE = /\p{L}$/u;
const LETTER_AFTER = /^\p{L}/u;
const MOST_ADDED = 2 ** 18; // units of all added tokens, which one expression has

/** The rule of one tokenizer, and its added tokens, which are found before anything else. */
export class Cuts {
  readonly #pattern: RegExp | null;
  readonly #added: RegExp | null;
  readonly #longestFirst: readonly string[]; // of the added tokens

  private constructor(
    private readonly rule: CutRule,
    added: readonly string[],
  ) {
    this.#pattern = rule in PATTERNS ? new RegExp(PATTERNS[rule] as string, "gu") : null;
    this.#longestFirst = added.filter((text) => text !== "").sort((a, b) => b.length - a.length);
    const literal = (text: string): string => text.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&");
    const beginnings = [...new Set(this.#longestFirst.map((text) => literal([...text][0] as string)))].join("|");
    const all = this.#longestFirst.map(literal).join("|");
    this.#added = all ? new RegExp(`(?=${beginnings})(?:${all})`, "gu") : null;
  }

  /** Return the cuts of a tokenizer; null if there is no rule, or more added tokens than any published one has. */
  static of(rule: CutRule | null, added: readonly string[]): Cuts | null {
    const units = added.reduce((sum, { length }) => sum + length, 0);
    return rule === null || units > MOST_ADDED ? null : new Cuts(rule, added);
  }

  /** Return the length of the part of a text that has final tokens. */
  settled(text: string): number {
    const end = this.#beginningOfAdded(text);
    if (this.#pattern === null) return this.#spaces(text, end).at(-1) ?? 0;
    return Math.min(this.#lastPieces(text), end < text.length ? this.#lastPieces(text.slice(0, end)) : Infinity);
  }

  /** Return the end of the first added token in a text; -1 if it has none. */
  endOfAdded(text: string): number {
    for (const match of this.#added ? text.matchAll(this.#added) : []) return match.index + match[0].length;
    return -1;
  }

  /** Return where the text could begin an added token that it does not end; its length if nowhere. */
  #beginningOfAdded(text: string): number {
    const longest = this.#longestFirst[0]?.length ?? 0;
    for (let start = Math.max(0, text.length - longest + 1); start < text.length; start++) {
      const rest = text.slice(start);
      for (const token of this.#longestFirst) {
        if (token.length <= rest.length) break;
        if (token.startsWith(rest)) return start;
      }
    }
    return text.length;
  }

  /** Return the parts of a text between all its cuts, if the rule has words, which are often the same. */
  parts(text: string): string[] {
    const cuts = this.rule === "words" ? this.#spaces(text, text.length) : [];
    return [0, ...cuts].map((from, at) => text.slice(from, cuts[at]));
  }

  /** Return the cuts, each before a space, in the first `end` units. */
  #spaces(text: string, end: number): number[] {
    const taken = Array.from(this.#added ? text.matchAll(this.#added) : [], (one) => {
      return { from: one.index, to: one.index + one[0].length };
    });
    const cuts: number[] = [];
    for (let at = text.indexOf(" ", 1); at > 0 && at < end; at = text.indexOf(" ", at + 1)) {
      const [before, after] = [text.slice(Math.max(0, at - 2), at), text.slice(at + 1, Math.min(at + 3, end))];
      const isWords = this.rule === "words";
      const fits = isWords ? VISIBLE.test(before) : LETTER_BEFORE.test(before) && LETTER_AFTER.test(after);
      if (fits && !taken.some(({ from, to }) => at > from && at <= to)) cuts.push(at);
    }
    return cuts;
  }

  /** Return the cut before the last pieces of the pattern, and the white space behind them. */
  #lastPieces(text: string): number {
    const starts: number[] = [];
    const isAdded: boolean[] = [];
    let at = 0;
    const split = (to: number): void => {
      for (const { index } of text.slice(at, to).matchAll(this.#pattern as RegExp)) {
        starts.push(at + index);
        isAdded.push(false);
      }
      at = to;
    };
    for (const match of this.#added ? text.matchAll(this.#added) : []) {
      split(match.index);
      starts.push(at);
      isAdded.push(true);
      at += match[0].length;
    }
    split(text.length);
    let kept = starts.length;
    const visible = text.trimEnd().length;
    while (kept > 0 && (starts[kept - 1] as number) >= visible) kept -= 1;
    for (kept -= KEPT; kept > 0; kept--) {
      const cut = starts[kept] as number;
      if (!isAdded[kept - 1] && !isJoined(text, cut)) return cut; // what follows an added token is a section of its own
    }
    return 0;
  }
}

/**
 * Return whether the pieces or normal forms on one side of a place depend on the other side.
 *
 * White space can be one piece at the end of a text, and two before a word. Normal forms join a character with the marks
 * behind it.
 */
function isJoined(text: string, at: number): boolean {
  const [before, after] = [text.slice(Math.max(0, at - 2), at), text.slice(at, at + 2)];
  return /^\p{M}/u.test(after) || /\s$/.test(before) || (/\p{M}$/u.test(before) && !/^\s/.test(after));
}
