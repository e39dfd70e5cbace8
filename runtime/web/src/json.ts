/**
 * JSON as Python reads and writes it.
 *
 * Digests of manifests and states are of Python's `json.dumps`, so whole numbers and numbers with a fraction differ
 * (`1` and `1.0`), and whole numbers have any size. `JSON.parse` keeps neither.
 */

import { XlruntimeError } from "./errors.js";

/** A number with a fraction or an exponent. */
export class Float {
  readonly value: number;

  constructor(value: number) {
    this.value = value;
  }
}

/** A JSON value. Whole numbers are numbers, or beyond 2^53 bigints. */
export type Json = null | boolean | number | bigint | string | Float | Json[] | JsonObject;
export interface JsonObject {
  [name: string]: Json;
}

const DEEPEST = 900; // lists and objects within each other; Python stops at about a thousand
const MOST_DIGITS = 4300; // of a whole number, as in Python
const NUMBER = /-?(?:0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?/y;
const SPACE = /[ \t\n\r]*/y;
const PLAIN = /[^"\\\u0000-\u001f]*/y;
const ESCAPES: Record<string, string> = {
  '"': '"',
  "\\": "\\",
  "/": "/",
  b: "\b",
  f: "\f",
  n: "\n",
  r: "\r",
  t: "\t",
};
const WRITTEN: Record<string, string> = {
  '"': '\\"',
  "\\": "\\\\",
  "\b": "\\b",
  "\f": "\\f",
  "\n": "\\n",
  "\r": "\\r",
  "\t": "\\t",
};

/** Return whether a value is an object, not a list, null or a number. */
export function isObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Float);
}

/** Parse a JSON text; raise SyntaxError if it is not one. */
export function parse(text: string): Json {
  return new Parser(text).whole();
}

class Parser {
  readonly #text: string;
  #place = 0;
  #depth = 0;

  constructor(text: string) {
    this.#text = text;
  }

  whole(): Json {
    const value = this.#value();
    this.#match(SPACE);
    if (this.#place < this.#text.length) throw this.#wrong("more text after the value");
    return value;
  }

  #value(): Json {
    this.#match(SPACE);
    const first = this.#text[this.#place];
    if (first === "{") return this.#nested(() => this.#object());
    if (first === "[") return this.#nested(() => this.#list());
    if (first === '"') return this.#string();
    for (const [word, value] of WORDS) {
      if (this.#text.startsWith(word, this.#place)) {
        this.#place += word.length;
        return value;
      }
    }
    return this.#number();
  }

  #nested<T>(read: () => T): T {
    if (++this.#depth > DEEPEST) throw this.#wrong("lists and objects within each other too deep");
    this.#place += 1;
    const value = read();
    this.#depth -= 1;
    return value;
  }

  #object(): JsonObject {
    const object = Object.create(null) as JsonObject;
    if (this.#ends("}")) return object;
    for (;;) {
      this.#match(SPACE);
      if (this.#text[this.#place] !== '"') throw this.#wrong("a name is missing");
      const name = this.#string();
      if (!this.#ends(":")) throw this.#wrong("a colon is missing");
      object[name] = this.#value();
      if (this.#ends("}")) return object;
      if (!this.#ends(",")) throw this.#wrong("a comma is missing");
    }
  }

  #list(): Json[] {
    const list: Json[] = [];
    if (this.#ends("]")) return list;
    for (;;) {
      list.push(this.#value());
      if (this.#ends("]")) return list;
      if (!this.#ends(",")) throw this.#wrong("a comma is missing");
    }
  }

  #string(): string {
    let value = "";
    this.#place += 1;
    for (;;) {
      value += this.#match(PLAIN);
      const next = this.#text[this.#place++];
      if (next === '"') return value;
      if (next !== "\\") throw this.#wrong("a text without an end");
      const escape = this.#text[this.#place++] ?? "";
      if (escape === "u") {
        const code = this.#text.slice(this.#place, this.#place + 4);
        if (!/^[0-9a-fA-F]{4}$/.test(code)) throw this.#wrong("an escape that is not one");
        value += String.fromCharCode(parseInt(code, 16));
        this.#place += 4;
      } else if (ESCAPES[escape] !== undefined) {
        value += ESCAPES[escape];
      } else {
        throw this.#wrong("an escape that is not one");
      }
    }
  }

  #number(): Json {
    const start = this.#place;
    const text = this.#match(NUMBER);
    if (text === "" || text === "-") throw this.#wrong("a value is missing", start);
    if (/[.eE]/.test(text)) return new Float(Number(text));
    if (text.length > MOST_DIGITS) throw this.#wrong("a number of too many digits", start);
    return Number.isSafeInteger(Number(text)) ? Number(text) + 0 : BigInt(text);
  }

  #ends(mark: string): boolean {
    this.#match(SPACE);
    if (this.#text[this.#place] !== mark) return false;
    this.#place += 1;
    return true;
  }

  #match(pattern: RegExp): string {
    pattern.lastIndex = this.#place;
    const found = pattern.exec(this.#text)?.[0] ?? "";
    this.#place += found.length;
    return found;
  }

  #wrong(what: string, place = this.#place): SyntaxError {
    return new SyntaxError(`${what} at character ${place}`);
  }
}

const WORDS: ReadonlyArray<readonly [string, Json]> = [
  ["null", null],
  ["true", true],
  ["false", false],
  ["NaN", new Float(NaN)],
  ["Infinity", new Float(Infinity)],
  ["-Infinity", new Float(-Infinity)],
];

/** How `dumps` writes: names in order of their code points, and without spaces after commas and colons. */
export interface DumpOptions {
  sortKeys?: boolean;
  compact?: boolean;
}

/** Return a value as Python's `json.dumps` writes it: ASCII only. */
export function dumps(value: Json, options: DumpOptions = {}): string {
  const [comma, colon] = options.compact ? [",", ":"] : [", ", ": "];
  const write = (inner: Json): string => {
    if (typeof inner === "string") return text(inner);
    if (inner instanceof Float) return floatText(inner.value);
    if (Array.isArray(inner)) return `[${inner.map(write).join(comma)}]`;
    if (isObject(inner)) {
      const names = Object.keys(inner);
      if (options.sortKeys) names.sort(byCodePoint);
      return `{${names.map((name) => `${text(name)}${colon}${write(inner[name] as Json)}`).join(comma)}}`;
    }
    if (typeof inner === "number" && !Number.isSafeInteger(inner)) {
      throw new XlruntimeError(`${inner} cannot be written as a whole number.`);
    }
    return String(inner);
  };
  return write(value);
}

/** Compare texts by code points, as Python does; JavaScript compares halves of surrogate pairs. */
export function byCodePoint(a: string, b: string): number {
  const [left, right] = [a[Symbol.iterator](), b[Symbol.iterator]()];
  for (;;) {
    const [x, y] = [left.next(), right.next()];
    if (x.done || y.done) return Number(Boolean(y.done)) - Number(Boolean(x.done));
    const difference = (x.value.codePointAt(0) ?? 0) - (y.value.codePointAt(0) ?? 0);
    if (difference) return difference;
  }
}

/** Return a number as Python's `repr` writes a float: the shortest decimal, with an exponent below 1e-4 and from 1e16. */
export function floatText(value: number): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "Infinity" : "-Infinity";
  const sign = value < 0 || Object.is(value, -0) ? "-" : "";
  const [mantissa = "", power = "0"] = Math.abs(value).toExponential().split("e");
  const digits = mantissa.replace(".", "");
  const exponent = Number(power);
  if (exponent < -4 || exponent >= 16) {
    const size = String(Math.abs(exponent)).padStart(2, "0");
    return `${sign}${mantissa}e${exponent < 0 ? "-" : "+"}${size}`;
  }
  if (exponent < 0) return `${sign}0.${"0".repeat(-exponent - 1)}${digits}`;
  const whole = digits.slice(0, exponent + 1).padEnd(exponent + 1, "0");
  return `${sign}${whole}.${digits.slice(exponent + 1) || "0"}`;
}

function text(value: string): string {
  const inner = value.replace(/["\\]|[^ -~]/g, (one) => {
    return WRITTEN[one] ?? `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`;
  });
  return `"${inner}"`;
}
