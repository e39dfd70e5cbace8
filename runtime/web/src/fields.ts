/** Build records from untrusted JSON, and report every value of the wrong type. */

import { isObject, type Json, type JsonObject } from "./json.js";
import { quoted, shown } from "./messages.js";

const LISTED = 5; // problems that a message lists

/** A problem of a field, found while a record is made. */
export class FieldError extends Error {}

/** The type of a field, and how to read it. */
export interface Kind {
  /** The type for messages. */
  readonly expected: string;
  /** Return whether a value has this type; inner values are checked later. */
  fits(value: Json): boolean;
  /** Return a value that fits; add to `problems` what is wrong inside. */
  read(value: Json, where: string, problems: string[]): unknown;
}

const unchanged = (value: Json): unknown => value;
const asNumber = (value: Json): unknown => (typeof value === "bigint" ? Number(value) : value);

export const whole: Kind = {
  expected: "a whole number",
  fits: (value) => typeof value === "number" || typeof value === "bigint",
  read: asNumber,
};
export const text: Kind = { expected: "text", fits: (value) => typeof value === "string", read: unchanged };
export const truth: Kind = { expected: "true or false", fits: (value) => typeof value === "boolean", read: unchanged };
export const nothing: Kind = { expected: "null", fits: (value) => value === null, read: unchanged };
export const anything: Kind = { expected: "anything", fits: () => true, read: unchanged };

/** Return the type of one of several texts. */
export function choice(...names: string[]): Kind {
  const expected = names.map((name) => `'${name}'`).join(" or ");
  return { expected, fits: (value) => typeof value === "string" && names.includes(value), read: unchanged };
}

/** Return the type of values that have one of several types. */
export function either(...kinds: Kind[]): Kind {
  const fitting = (value: Json): Kind | undefined => kinds.find((kind) => kind.fits(value));
  return {
    expected: kinds.map((kind) => kind.expected).join(" or "),
    fits: (value) => fitting(value) !== undefined,
    read: (value, where, problems) => fitting(value)?.read(value, where, problems),
  };
}

/** Return the type of lists. */
export function list(kind: Kind): Kind {
  return {
    expected: "a list",
    fits: Array.isArray,
    read: (value, where, problems) =>
      (value as Json[]).map((part, index) => readValue(kind, part, `${where}[${index}]`, problems)),
  };
}

/** Return the type of objects with any names. */
export function map(kind: Kind): Kind {
  return {
    expected: "an object",
    fits: isObject,
    read: (value, where, problems) => {
      const result = Object.create(null) as Record<string, unknown>;
      for (const [name, part] of Object.entries(value as JsonObject)) {
        result[name] = readValue(kind, part, inner(where, name), problems);
      }
      return result;
    },
  };
}

/** Fields of a record: each has a type, and perhaps a default. */
export type Fields = Record<string, { kind: Kind; otherwise?: unknown }>;

/** Return the type of objects with these fields; `make` returns the record, or raises FieldError. */
export function record(fields: Fields, make: (values: never) => unknown = (values) => values): Kind {
  return {
    expected: "an object",
    fits: isObject,
    read: (value, where, problems) => {
      const given = value as JsonObject;
      const before = problems.length;
      const result: Record<string, unknown> = {};
      for (const [name, field] of Object.entries(fields)) {
        if (!("otherwise" in field) && !(name in given)) problems.push(`${inner(where, name)} is missing`);
        result[name] = field.otherwise;
      }
      for (const name of Object.keys(given)) {
        if (!Object.hasOwn(fields, name)) problems.push(`${inner(where, name)} is unknown`);
      }
      for (const [name, part] of Object.entries(given)) {
        const field = Object.hasOwn(fields, name) ? fields[name] : undefined;
        if (field) result[name] = readValue(field.kind, part, inner(where, name), problems);
      }
      if (problems.length > before) return null;
      try {
        return make(result as never);
      } catch (error) {
        if (!(error instanceof FieldError)) throw error;
        problems.push(error.message.replace(/\.$/, ""));
        return null;
      }
    },
  };
}

/** Return a JSON value as a record; raise FieldError with the first few problems. */
export function readFields<T>(kind: Kind, value: Json): T {
  const problems: string[] = [];
  const result = readValue(kind, value, "", problems);
  if (problems.length) {
    const more = problems.length > LISTED ? `; and ${problems.length - LISTED} more` : "";
    throw new FieldError(problems.slice(0, LISTED).join("; ") + more);
  }
  return result as T;
}

function readValue(kind: Kind, value: Json, where: string, problems: string[]): unknown {
  if (kind.fits(value)) return kind.read(value, where, problems);
  problems.push(`${where || "it"} is ${found(value)}, expected ${kind.expected}`);
  return null;
}

function found(value: Json): string {
  if (Array.isArray(value)) return "a list";
  return isObject(value) ? "an object" : shown(value);
}

function inner(where: string, name: string): string {
  const known = (/^[A-Za-z_]\w*$/.test(name) ? name : quoted(name)).slice(0, 40);
  return where ? `${where}.${known}` : known;
}
