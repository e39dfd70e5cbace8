/** Parts of messages in one short line. */

const LISTED = 5; // entries that a list shows
const LONGEST = 100; // characters of a value

/** Return a text in one line: characters that a terminal cannot show become escapes. */
export function escaped(text: string): string {
  return text.replace(/[\p{C}\p{Z}]/gu, (one) => (one === " " ? one : `\\u{${one.codePointAt(0)?.toString(16)}}`));
}

/** Return a text in one line, as `escaped` does; of a longer one than `longest` characters, beginning and end. */
export function bounded(text: string, longest = 1500): string {
  const line = escaped(text);
  const [front, back] = [Math.floor((longest * 2) / 3) - 3, Math.floor(longest / 3)];
  return line.length <= longest ? line : escaped(`${line.slice(0, front)} … ${line.slice(-back)}`);
}

/** Return a value as JSON, cut if it is long. */
export function shown(value: unknown): string {
  const text = escaped(JSON.stringify(value) ?? String(value));
  return text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
}

/** Return the first line of an error's text. */
export function firstLine(error: unknown): string {
  const text = error instanceof Error ? error.message || error.name : String(error);
  return escaped(text.trim().split("\n", 1)[0] ?? "");
}

/** Return the first few items, and the number of further ones. */
export function listed(items: readonly string[]): string {
  const more = items.length > LISTED ? ` and ${counted(items.length - LISTED)} more` : "";
  return items.slice(0, LISTED).map(escaped).join(", ") + more;
}

/** Return a number with commas between thousands. */
export function counted(value: number): string {
  return value.toLocaleString("en-US");
}
