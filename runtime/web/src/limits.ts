/** Bounds for reading one untrusted file. */

import type { ErrorClass } from "./errors.js";
import { counted } from "./messages.js";

/** The most that a reader may use for one file. */
export interface Limits {
  bytes: number;
  operations: number;
}

/** The rest of the limits while one file is read. */
export class Budget {
  readonly #limits: Limits;
  #bytes: number;
  #operations: number;
  readonly name: string;
  readonly error: ErrorClass;

  /** Start with all of `limits` left for the file `name`; raise `error` if a limit is exceeded. */
  constructor(limits: Limits, name: string, error: ErrorClass) {
    this.#limits = limits;
    this.#bytes = limits.bytes;
    this.#operations = limits.operations;
    this.name = name;
    this.error = error;
  }

  /** Count bytes before they are allocated, and operations before they run. */
  charge(size: number, operations = 1): void {
    this.#bytes -= size;
    this.#operations -= operations;
    if (this.#bytes < 0) throw this.#exceeded(`${counted(this.#limits.bytes)} bytes of memory`);
    if (this.#operations < 0) throw this.#exceeded(`${counted(this.#limits.operations)} operations`);
  }

  #exceeded(limit: string): Error {
    return new this.error(
      `${this.name}: reading it would take more than ${limit}.`,
      "Check where the file comes from.",
    );
  }
}
