/**
 * Check a `tokenizer.json` before its library sees it. The library runs regular expressions without a limit of time, and
 * normalizers may double a text again and again.
 */

import { counted } from "../messages.js";

const MOST_GROWTH = 1000; // how many times as long a section may make a text
const MOST_PARTS = 32; // of a section: each reads the whole text
const LONGEST_TEXT = 100; // characters of a setting
const LONGEST_TOKEN = 1000; // characters: the library looks for so many at each place of a text
const LONGEST_WORD = 200; // characters: WordPiece needs time proportional to their square
const LARGEST_ID = 2 ** 24; // the library fills a list up to the largest one
const LONGEST_EXPRESSION = 10_000; // characters
const MOST_REPETITIONS = 1000; // in a count such as {1000}
const LOOP = 100; // ways to match that a repetition without a largest count stands for
const MOST_WAYS = 1e6; // fewer than three such repetitions in a row
// One element: an escape, the beginning of a bracket, a quantifier, the beginning of a group, or another character.
const ELEMENT = /\\(?:[pPxu]\{[^}]*\}|.)|\[\^?\]?|\{\d*,?\d*\}|[*+?][+?]?|\((?:\?(?:i?:|[=!>]|<[=!]))?|./gsu;
const QUANTIFIER = /^(?:[*+?]|\{.)/;

/** An object of the file. */
export type Part = Record<string, unknown>;

/** How many times as long a part makes a text at most; kinds that are not listed make it no longer. */
const GROWTH: Record<string, (part: Part) => number> = {
  ByteLevel: () => 2,
  BPEDecoder: () => 2,
  CTC: () => 2,
  Metaspace: (part) => 1 + Math.max(1, lengthOf(part.replacement), lengthOf(part.str_rep)),
  Prepend: (part) => 1 + lengthOf(part.prepend),
  Replace: (part) => {
    const [size, pattern] = [lengthOf(part.content), checkPattern(part)];
    need(!/\$[$&`'<\d]/.test(String(part.content)), "a replacement with $, which JavaScript reads otherwise");
    return pattern ? Math.max(1, size / pattern.length) : 1 + size; // an expression may match nothing
  },
  Split: (part) => {
    checkPattern(part);
    return 1;
  },
  FixedLength: ({ length }) => {
    need(Number.isInteger(length) && (length as number) > 0, "pieces of no length");
    return 1;
  },
  TemplateProcessing: ({ single }) => {
    need((single as Part[]).filter((piece) => "Sequence" in piece).length === 1, "a template without the text once");
    return 1;
  },
};

/** Raise an Error with the reason if the library could need unbounded time or memory for this file. */
export function checkTokenizer(fields: Part): void {
  for (const section of ["normalizer", "pre_tokenizer", "post_processor", "decoder"]) {
    const parts = partsOf(fields[section]);
    need(parts.length <= MOST_PARTS, `more than ${MOST_PARTS} parts in ${section}`);
    const growth = parts.reduce((product, part) => product * growthBy(part), 1);
    need(growth <= MOST_GROWTH, `${section} makes more than ${counted(MOST_GROWTH)} characters of one`);
  }
  const model = fields.model as Part;
  Object.values(model).forEach((value) => typeof value !== "string" || lengthOf(value));
  need(((model.max_input_chars_per_word ?? 0) as number) <= LONGEST_WORD, "words of any length");
  const vocabulary = model.vocab as Part | unknown[][];
  for (const token of Array.isArray(vocabulary) ? vocabulary : Object.entries(vocabulary)) {
    checkToken(token[0], Array.isArray(vocabulary) ? 0 : token[1]);
  }
  for (const { content, id } of (fields.added_tokens ?? []) as Part[]) checkToken(content, id);
}

/** Return whether a section has a part of a kind. */
export function hasPart(section: unknown, kind: string): boolean {
  return partsOf(section).some(({ type }) => type === kind);
}

/**
 * Return the file for a text that goes on: without the space that some forms put in front of each text.
 *
 * `changed` says whether there is such a space, `sections` whether also the text behind an added token gets one.
 */
export function withoutPrefix(file: Part): { file: Part; changed: boolean; sections: boolean } {
  let [changed, sections] = [false, false];
  const cut = (part: unknown): unknown => {
    if (Array.isArray(part)) return part.filter((one) => (one as Part | null)?.type !== "Prepend").map(cut);
    if (typeof part !== "object" || part === null) return part;
    const { type, add_prefix_space: adds, prepend_scheme: scheme } = part as Part;
    if (type === "Sequence") {
      return Object.fromEntries(Object.entries(part).map(([name, inner]) => [name, cut(inner)]));
    }
    const always = type === "Metaspace" && (scheme ?? (adds === false ? "never" : "always")) === "always";
    const first = type === "Metaspace" && scheme === "first";
    const before = type === "ByteLevel" && adds === true;
    sections ||= always || before;
    changed ||= always || first || before;
    if (before) return { ...part, add_prefix_space: false };
    return always || first ? { ...part, prepend_scheme: "never", add_prefix_space: false } : part;
  };
  const prepends = hasPart(file.normalizer, "Prepend");
  const isOnly = (file.normalizer as Part | null)?.type === "Prepend";
  const normalizer = isOnly ? null : cut(file.normalizer);
  const pre_tokenizer = cut(file.pre_tokenizer);
  return {
    file: { ...file, normalizer, pre_tokenizer },
    changed: changed || prepends,
    sections: sections || prepends,
  };
}

/** Return the parts of a section, also those of sequences in it. */
function partsOf(part: unknown): Part[] {
  if (typeof part !== "object" || part === null) return [];
  const { type, ...rest } = part as Part;
  return type === "Sequence" ? Object.values(rest).flat().flatMap(partsOf) : [part as Part];
}

function growthBy(part: Part): number {
  const kind = String(part.type);
  return Object.hasOwn(GROWTH, kind) ? (GROWTH[kind] as (part: Part) => number)(part) : 1;
}

function lengthOf(text: unknown): number {
  need(typeof (text ?? "") === "string", "a setting that is not a text");
  const { length } = (text ?? "") as string;
  need(length <= LONGEST_TEXT, `a text of more than ${LONGEST_TEXT} characters`);
  return length;
}

function checkToken(token: unknown, id: unknown): void {
  need(typeof token === "string" && token.length <= LONGEST_TOKEN, "a token of any length");
  need(Number.isInteger(id) && (id as number) >= 0 && (id as number) <= LARGEST_ID, "an id of any size");
}

/** Check the pattern of a part; return it if it is a text, null if it is an expression. */
function checkPattern(part: Part): string | null {
  const { String: text, Regex: expression } = (part.pattern ?? {}) as Record<string, string | undefined>;
  if (expression !== undefined) checkExpression(expression);
  return expression === undefined ? (text ?? null) : null;
}

/**
 * Refuse an expression that could match a text in very many ways, for the engine may try all of them.
 *
 * Groups must neither be repeated nor referred to. The expressions of published tokenizers do neither.
 */
function checkExpression(text: string): void {
  need(text.length <= LONGEST_EXPRESSION, `more than ${counted(LONGEST_EXPRESSION)} characters in an expression`);
  const open: [number, number][] = [];
  let [ways, others] = [1, 0]; // of the alternative up to here, and of the alternatives before it
  let [brackets, before] = [0, ""];
  for (const [element] of text.matchAll(ELEMENT)) {
    need(!/^\\[1-9kgGcCM]/.test(element), `the escape ${element} in an expression`);
    need(!element.startsWith("[") || !element.endsWith("]"), "a bracket that begins with ]");
    if (brackets || element.startsWith("[")) {
      brackets += element === "]" ? -1 : Number(element.startsWith("["));
    } else if (element.startsWith("(")) {
      open.push([ways, others]);
      [ways, others] = [1, 0];
    } else if (element === "|") {
      [ways, others] = [1, others + ways];
    } else if (element === ")") {
      const inner = ways + others;
      [ways, others] = open.pop() ?? [1, 0];
      ways *= inner;
    } else if (QUANTIFIER.test(element)) {
      const repeats = !element.startsWith("?");
      need(!before.startsWith("("), "a group of a kind that no tokenizer needs");
      need(!repeats || !(before === ")" || QUANTIFIER.test(before)), "a repetition of a group or of a repetition");
      const counts = (element.match(/\d+/g) ?? []).map(Number);
      need(
        counts.every((count) => count <= MOST_REPETITIONS),
        `more than ${counted(MOST_REPETITIONS)} repetitions`,
      );
      ways *= !repeats ? 2 : /^[*+]|,\}/.test(element) ? LOOP : Math.max(1, ...counts);
    }
    before = element;
  }
  need(ways + others < MOST_WAYS, "an expression that matches in too many ways");
}

function need(condition: boolean, problem: string): void {
  if (!condition) throw new Error(problem);
}
