/** JSON that may come from anybody: what `JSON.parse` would change or drop without a word is refused. */

import { shown } from "./messages.js";

const DEEPEST = 64; // containers within each other
const MOST_VALUES = 4_000_000;
const NUMBER = /-?\d+((?:\.\d*)?(?:[eE][+-]?\d*)?)/y;

/** A container that is being read: the names of an object so far, and the newest one. */
interface Open {
  readonly names: Set<string> | null;
  name: string;
}

/**
 * Read a text in UTF-8. Two members of one name, whole numbers beyond 64 bits, and numbers that are not finite are refused.
 *
 * @param real - paths of names below which numbers may have a fraction or an exponent; all others must be whole.
 * @throws Error - it is not such a text, or has too many values.
 */
export function readJson(raw: Uint8Array, ...real: readonly (readonly string[])[]): unknown {
  const text = new TextDecoder("utf-8", { fatal: true }).decode(raw);
  scan(text, (open) => real.some((path) => path.every((name, depth) => open[depth]?.name === name)));
  return JSON.parse(text);
}

/** Look at all names and numbers; `JSON.parse` checks the rest. */
function scan(text: string, mayBeReal: (open: readonly Open[]) => boolean): void {
  const open: Open[] = [];
  let values = 0;
  let isName = false;
  for (let at = 0; at < text.length; at++) {
    const mark = text[at] as string;
    const inner = open.at(-1);
    if (mark === '"') {
      const end = endOfText(text, at);
      if (isName && inner?.names) addName(inner as Open & { names: Set<string> }, text.slice(at, end + 1));
      isName = false;
      at = end;
    } else if (mark === "{" || mark === "[") {
      isName = mark === "{";
      open.push({ names: isName ? new Set() : null, name: "" });
      if (open.length > DEEPEST) throw new Error("too many values within each other");
    } else if (mark === "}" || mark === "]") {
      open.pop();
    } else if (mark === ",") {
      isName = true;
      if (++values > MOST_VALUES) throw new Error("too many values");
    } else if (mark === "-" || (mark >= "0" && mark <= "9")) {
      NUMBER.lastIndex = at;
      const [number = mark, rest = ""] = NUMBER.exec(text) ?? [];
      checkNumber(number, rest, rest !== "" && mayBeReal(open));
      at += number.length - 1;
    }
  }
}

/** Return the index of the quote that ends a text; that of the last character if none does. */
function endOfText(text: string, begin: number): number {
  for (let end = text.indexOf('"', begin + 1); end >= 0; end = text.indexOf('"', end + 1)) {
    let slashes = 0;
    while (text[end - 1 - slashes] === "\\") slashes++;
    if (slashes % 2 === 0) return end;
  }
  return text.length - 1;
}

function addName(object: Open & { names: Set<string> }, quoted: string): void {
  object.name = JSON.parse(quoted) as string;
  if (object.names.has(object.name)) throw new Error(`two members ${shown(object.name)}`);
  object.names.add(object.name);
}

function checkNumber(number: string, rest: string, mayBeReal: boolean): void {
  if (rest !== "" && !mayBeReal) throw new Error(`${shown(number)} where a whole number is expected`);
  if (!Number.isFinite(Number(number))) throw new Error(`${shown(number)} is not finite`);
  if (rest === "" && (number.length > 20 || BigInt.asIntN(64, BigInt(number)) !== BigInt(number))) {
    throw new Error(`${shown(number)} is beyond 64 bits`);
  }
}
