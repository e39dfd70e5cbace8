/** Strict checks of JSON values: a check gives its value a type, or raises FieldError with the place in the file. */

import { escaped, shown } from "./messages.js";

/** A field is missing, unknown, or of another type. */
export class FieldError extends Error {}

/** Raise FieldError unless the value at `place` has the type `T`. */
export interface Check<T> {
  (value: unknown, place: string): void;
  readonly type?: T;
}
/** The type of the values that a check accepts. */
export type Checked<C> = C extends Check<infer T> ? T : never;

/** Accept values that fit. */
export function is<T>(expected: string, fits: (value: unknown) => boolean): Check<T> {
  return (value, place) => {
    if (!fits(value)) throw new FieldError(`${place || "it"} is ${shown(value)}, expected ${expected}`);
  };
}

export const text = is<string>("text", (value) => typeof value === "string");
export const real = is<number>("a number", (value) => typeof value === "number");
export const truth = is<boolean>("true or false", (value) => typeof value === "boolean");
export const object = is<Record<string, unknown>>(
  "an object",
  (value) => typeof value === "object" && value !== null && !Array.isArray(value),
);

/** Accept texts of a pattern. */
export function like(pattern: RegExp, expected: string): Check<string> {
  return is(expected, (value) => typeof value === "string" && pattern.test(value));
}

/** Accept whole numbers in a range. */
export function whole(least: number, most: number = Number.MAX_SAFE_INTEGER): Check<number> {
  const fits = (value: unknown): boolean =>
    Number.isSafeInteger(value) && (value as number) >= least && (value as number) <= most;
  return is(`a whole number from ${least} to ${most}`, fits);
}

/** Accept one of some texts. */
export function oneOf<T extends string>(...names: readonly T[]): Check<T> {
  return is(names.map((name) => `"${name}"`).join(" or "), (value) => names.includes(value as T));
}

/** Accept null as well. */
export function orNull<T>(check: Check<T>): Check<T | null> {
  return (value, place) => value === null || check(value, place);
}

/** Accept what one of two checks accepts. */
export function either<A, B>(isFirst: (value: unknown) => boolean, first: Check<A>, second: Check<B>): Check<A | B> {
  return (value, place) => (isFirst(value) ? first : second)(value, place);
}

/** Accept lists. */
export function list<T>(check: Check<T>, length?: number): Check<readonly T[]> {
  return (value, place) => {
    if (!Array.isArray(value)) throw new FieldError(`${place} is ${shown(value)}, expected a list`);
    if (length !== undefined && value.length !== length) {
      throw new FieldError(`${place} has ${value.length} entries, expected ${length}`);
    }
    value.forEach((part, index) => check(part, `${place}[${index}]`));
  };
}

/** Accept objects with any names; they lose their prototype, so that each name in them is from the file. */
export function map<T>(check: Check<T>): Check<Readonly<Record<string, T>>> {
  return (value, place) => {
    object(value, place);
    for (const [name, part] of Object.entries(value as object)) check(part, `${place}.${escaped(name)}`);
    Object.setPrototypeOf(value, null);
  };
}

/** Accept objects with exactly these fields; those of `others` may be missing. */
export function record<
  F extends Record<string, Check<unknown>>,
  O extends Record<string, Check<unknown>> = Record<never, never>,
>(
  checks: F,
  others?: O,
): Check<{ readonly [name in keyof F]: Checked<F[name]> } & { readonly [name in keyof O]?: Checked<O[name]> }> {
  const all: Record<string, Check<unknown>> = { ...checks, ...others };
  return (value, place) => {
    object(value, place);
    const inside = (name: string): string => (place ? `${place}.${escaped(name)}` : escaped(name));
    const found = value as Record<string, unknown>;
    const missing = Object.keys(checks).find((name) => !Object.hasOwn(found, name));
    if (missing !== undefined) throw new FieldError(`${inside(missing)} is missing`);
    for (const [name, part] of Object.entries(found)) {
      const check = Object.hasOwn(all, name) ? all[name] : undefined;
      if (check === undefined) throw new FieldError(`${inside(name)} is unknown`);
      check(part, inside(name));
    }
  };
}
