/** Parts of messages in one short line, written as Python's `xlruntime` writes them. */

import { Float, floatText } from "./json.js";

const LISTED = 5; // entries that a list shows
const LONGEST_NAME = 100;
const LONGEST_TEXT = 40;
const LONGEST_VALUE = 100;
const PRINTABLE = /^(?:[^\p{C}\p{Z}]| )*$/u;

/** Return whether a terminal can show all characters of a text. */
export function isPrintable(text: string): boolean {
  return PRINTABLE.test(text);
}

/** Return the first line of an error's text. */
export function firstLine(error: unknown): string {
  const text = error instanceof Error ? error.message || error.name : String(error);
  return escaped(text.trim().split("\n", 1)[0] ?? "");
}

/** Return a value of any kind, cut if it is long. */
export function shown(value: unknown): string {
  if (typeof value === "string") return quoted([...value].slice(0, LONGEST_TEXT).join(""));
  return plainText(value).slice(0, LONGEST_VALUE);
}

/** Return a name from a file without quotes; characters that a terminal cannot show become escapes. */
export function named(name: unknown): string {
  const text = String(name);
  return isPrintable(text) && text.length <= LONGEST_NAME ? text : quoted(text.slice(0, LONGEST_NAME));
}

/** Return the first few items, and the number of further ones. */
export function listed(items: Iterable<string>): string {
  const every = [...items];
  const more = every.length > LISTED ? ` and ${counted(every.length - LISTED)} more` : "";
  return every.slice(0, LISTED).join(", ") + more;
}

/** Return a number with commas between thousands. */
export function counted(value: number | bigint): string {
  return String(value).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** Return a text between quotes, with escapes. */
export function quoted(text: string): string {
  const mark = text.includes("'") && !text.includes('"') ? '"' : "'";
  const inner = [...text].map((one) => (one === mark || one === "\\" ? `\\${one}` : escaped(one))).join("");
  return mark + inner + mark;
}

/** Return a text in one line: characters that a terminal cannot show become escapes. */
export function escaped(text: string): string {
  const short: Record<string, string> = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };
  return [...text].map((one) => (isPrintable(one) ? one : (short[one] ?? codeOf(one)))).join("");
}

function codeOf(character: string): string {
  const code = (character.codePointAt(0) ?? 0).toString(16);
  if (code.length <= 2) return `\\x${code.padStart(2, "0")}`;
  return code.length <= 4 ? `\\u${code.padStart(4, "0")}` : `\\U${code.padStart(8, "0")}`;
}

/** Return a warning about scores that are not finite. */
export function warningNotFinite(name: string, position: number): string {
  return `${name}: scores that are not finite before token ${position}; its memory was refilled with first values.`;
}

/** Return a value as Python writes it, at most a few entries of a list or object. */
export function plainText(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (value instanceof Float) return floatText(value.value);
  if (typeof value === "string") return shown(value);
  if (Array.isArray(value)) return `[${value.slice(0, LISTED).map(plainText).join(", ")}]`;
  if (typeof value === "object") {
    const entries = Object.entries(value).slice(0, LISTED);
    return `{${entries.map(([name, inner]) => `${quoted(name)}: ${plainText(inner)}`).join(", ")}}`;
  }
  return String(value);
}
