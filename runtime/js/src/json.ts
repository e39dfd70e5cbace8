/** JSON that may come from anybody: what `JSON.parse` would change or drop without a word is refused. */

import { shown } from "./messages.js";

const DEEPEST = 64; // containers within each other
const MOST_VALUES = 4_000_000;
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],]|-?\d[\d.eE+-]*/gs;

/** A container that is being read: the names of an object so far, and the newest one. */
type Open = { names: Set<string> | null; name: string };

/**
 * Read a text in UTF-8, without two members of one name, whole numbers beyond 64 bits, and numbers that are not finite.
 *
 * @param real - paths of names below which numbers may have a fraction or an exponent; all others must be whole.
 * @throws Error - it is not such a text, or has too many values.
 */
export function readJson(raw: Uint8Array, ...real: readonly (readonly string[])[]): unknown {
  const text = new TextDecoder("utf-8", { fatal: true }).decode(raw);
  const open: Open[] = [];
  let values = 0;
  let isName = false;
  for (const [token] of text.matchAll(TOKEN)) {
    const inner = open.at(-1);
    if (token[0] === '"') {
      if (isName && inner?.names) addName(inner, JSON.parse(token) as string);
      isName = false;
    } else if (token === "{" || token === "[") {
      isName = token === "{";
      if (open.push({ names: isName ? new Set() : null, name: "" }) > DEEPEST) throw new Error("too deep");
    } else if (token === "}" || token === "]") {
      open.pop();
    } else if (token === ",") {
      isName = true;
      if (++values > MOST_VALUES) throw new Error("too many values");
    } else {
      const isFree = real.some((path) => path.every((name, depth) => open[depth]?.name === name));
      if (!(/[.eE]/.test(token) ? isFree && Number.isFinite(Number(token)) : hasFewBits(token))) {
        throw new Error(`the number ${shown(token)}`);
      }
    }
  }
  return JSON.parse(text); // which checks the rest
}

function addName(object: Open, name: string): void {
  if (object.names?.has(name)) throw new Error(`two members ${shown(name)}`);
  object.names?.add(name);
  object.name = name;
}

/** Return whether a whole number has at most 64 bits. */
function hasFewBits(digits: string): boolean {
  return /^-?\d{1,19}$/.test(digits) && BigInt.asIntN(64, BigInt(digits)) === BigInt(digits);
}
