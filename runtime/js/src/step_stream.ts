/** Streams of step models: arrays of numbers in and out, for rows that each have a memory of their own. */

import type { Feed, Graph } from "./bundle.js";
import type { Engine } from "./engine.js";
import { ArgumentError, OptionError, TooLongError } from "./errors.js";
import type { EvaluationSettings } from "./evaluation.js";
import { Memory } from "./memory.js";
import { listed, shown } from "./messages.js";
import { inTurn, type OrtTensor, type Tensors } from "./onnxruntime.js";
import { allFinite, product, zeros, type HostTensor, type Numbers } from "./safetensors.js";

/** Arrays by the names of inputs or outputs, in the order (rows, steps, …). Booleans are 0 and 1 in a Uint8Array. */
export type StepArrays = Record<string, Numbers>;

/** An input or output: its type, and the shape and size of one step of a row. */
export type Layout = { name: string; dtype: string; sizes: readonly number[]; size: number };

/**
 * Independent rows of any number of steps at constant memory.
 *
 * Methods wait for each other, so that calls take effect in their order. If one fails, the stream is as it was before it.
 */
export class StepStream {
  readonly #alone = inTurn();
  #memory: Memory;
  readonly #inputs: readonly Layout[];
  readonly #outputs: readonly Layout[];

  private constructor(
    private readonly engine: Engine,
    memory: Memory,
  ) {
    this.#memory = memory;
    const { inputs, outputs } = engine.bundle.graphs["run"] as Graph;
    this.#inputs = layoutsOf(inputs);
    this.#outputs = layoutsOf(outputs);
  }

  /** Use `Model.stepStream`. */
  static async open(engine: Engine, evaluation: EvaluationSettings, rows: number | null): Promise<StepStream> {
    engine.choices("run"); // refuses a language model
    const other = engine.bundle.memory.find(({ layout }) => layout !== "state");
    if (other) throw new OptionError(`${engine.where}: a step model's memories are states, found a ${other.layout}.`);
    const batch = rows ?? engine.bundle.graphs["run"]?.fixed["batch"] ?? 1;
    return new StepStream(engine, await engine.newMemory(evaluation, evaluation.capacity, batch));
  }

  /** Use `Model.restoreStepStream`. */
  static async restore(engine: Engine, raw: Uint8Array): Promise<StepStream> {
    engine.choices("run");
    const { readState } = await import("./state.js"); // few streams are saved
    const { evaluation, counters, tensors } = await readState(engine.bundle, raw, "the state");
    const stream = await StepStream.open(engine, evaluation, counters.position.length);
    stream.#memory.load(tensors, counters);
    return stream;
  }

  /** Number of batch rows. */
  get rows(): number {
    return this.#memory.plan.rows;
  }

  /** Steps that each row has read since its reset. */
  get position(): readonly number[] {
    return this.#memory.positions;
  }

  /** The `capacity` of saved states: `segment_len`. */
  get capacity(): number {
    return this.#memory.plan.capacity;
  }

  /** Bytes of the carried memory, which does not grow. */
  get nbytes(): number {
    return this.#memory.nbytes;
  }

  /**
   * Read any number of steps, as many on each row, and return all outputs of these steps.
   *
   * @param inputs - an array for each input, of its type; it is copied at once.
   * @throws ArgumentError - inputs are missing, unknown, of another type or size, or have numbers that are not finite;
   *     lists all problems.
   * @throws TooLongError - a row would have more steps than the model reads.
   */
  async run(inputs: Readonly<StepArrays>): Promise<StepArrays> {
    const [given, S] = this.#checked(inputs);
    return this.#alone(async () => {
      this.#checkLength(S);
      let before = this.#memory.copy();
      try {
        return await this.#steps(given, S);
      } catch (error) {
        [this.#memory, before] = [before, this.#memory];
        throw error;
      } finally {
        before.release();
      }
    });
  }

  /** Return an independent stream at the same place. The memory is shared, and never copied. */
  async fork(): Promise<StepStream> {
    return this.#alone(async () => new StepStream(this.engine, this.#memory.copy()));
  }

  /**
   * Begin anew, on one row or on all.
   *
   * @throws ArgumentError - there is no such row.
   */
  async reset(row: number | null = null): Promise<void> {
    if (row !== null && !(Number.isInteger(row) && row >= 0 && row < this.rows)) {
      throw new ArgumentError(`the stream: row is ${shown(row)}, expected 0 to ${this.rows - 1}.`);
    }
    await this.#alone(async () => {
      const { plan, offset, length, positions } = this.#memory;
      const isBegun = (at: number): boolean => row === null || at === row;
      const [old, fresh] = [await this.#memory.arrays(), await new Memory(plan).arrays()];
      for (const [name, { dtype, shape, data }] of old) {
        const first = this.#rowsOf((fresh.get(name) as HostTensor).data);
        const rows = this.#rowsOf(data).map((one, at) => (isBegun(at) ? (first[at] as Numbers) : one));
        old.set(name, { dtype, shape, data: concatenated(dtype, rows) });
      }
      const history = positions.map((position, at) => (isBegun(at) ? 0 : position));
      this.#memory.load(old, { offset, length, history, capacity: plan.capacity });
    });
  }

  /** Return the state (a safetensors file), from which `Model.restoreStepStream` goes on, here and in other runtimes. */
  async save(): Promise<Uint8Array<ArrayBuffer>> {
    return this.#alone(async () => {
      const { writeState } = await import("./state.js");
      const noText = { held: new Uint8Array(0), begun: false };
      return writeState(this.engine.bundle, this.#memory, null, this.position, noText);
    });
  }

  /** Free the memory of the stream. Only buffers on a GPU need this; JavaScript frees all others. */
  async close(): Promise<void> {
    await this.#alone(async () => this.#memory.release());
  }

  /** Return copies of the inputs, which the caller may change at once, and how many steps they have. */
  #checked(inputs: Readonly<StepArrays>): [Map<string, Numbers>, number] {
    const given = new Map<string, Numbers>();
    const unknown = Object.keys(inputs ?? {}).filter((name) => !this.#inputs.some((input) => input.name === name));
    const problems = unknown.length ? [`unknown ${listed(unknown)}`] : [];
    let S = 0;
    for (const { name, dtype, sizes, size } of this.#inputs) {
      const [array, { constructor: Type }] = [inputs?.[name], zeros(dtype, 0)];
      const steps = (array instanceof Type ? (array as Numbers).length : 0) / (this.rows * size);
      if (Number.isInteger(steps)) S ||= steps;
      if (S && steps === S) {
        const data = concatenated(dtype, [array as Numbers]);
        const isOdd = dtype === "bool" ? data.some((value) => value > 1) : !allFinite({ dtype, data, shape: [] });
        if (isOdd) problems.push(`${name} has numbers that are not ${dtype === "bool" ? "0 or 1" : "finite"}`);
        given.set(name, data);
      } else {
        const is = `${Object.prototype.toString.call(array).slice(8, -1)} of ${array?.length ?? 0} numbers`;
        problems.push(`${name} is ${is}, expected ${Type.name} of ${[this.rows, S || "steps", ...sizes].join(" × ")}`);
      }
    }
    if (S && !problems.length) return [given, S];
    throw new ArgumentError(`the stream: ${problems.join("; ")}.`, "Give an array for each input, of as many steps.");
  }

  /** Refuse steps beyond those that the model reads after a reset. */
  #checkLength(S: number): void {
    const most = this.#memory.plan.evaluation.document.max_positions ?? Infinity;
    const row = this.position.findIndex((position) => position + S > most);
    if (row < 0) return;
    throw new TooLongError(
      `the stream: row ${row} has read ${this.position[row]} of at most ${most} steps, and ${S} more are given.`,
      "Reset the row before.",
    );
  }

  /** Run the graphs part by part, and return the outputs of all steps. */
  async #steps(given: ReadonlyMap<string, Numbers>, S: number): Promise<StepArrays> {
    const { evaluation, runtime } = this.#memory.plan;
    const longest = this.engine.longestStep("run", evaluation.segmentLen);
    const parts: Tensors[] = [];
    for (let at = 0; at < S;) {
      const tensor = ({ name, dtype, sizes, size }: Layout, n: number): OrtTensor => {
        const rows = this.#rowsOf(given.get(name) as Numbers).map((row) => row.subarray(at * size, (at + n) * size));
        return runtime.tensor(dtype, concatenated(dtype, rows), [this.rows, n, ...sizes]);
      };
      const part = (n: number): Tensors =>
        Object.fromEntries(this.#inputs.map((input) => [input.name, tensor(input, n)]));
      const [outputs, n] = await this.engine.runGraph("run", this.#memory, Math.min(S - at, longest), part);
      parts.push(Object.fromEntries(this.#outputs.map(({ name }) => [name, outputs[name] as OrtTensor])));
      at += n;
    }
    const whole = ({ name, dtype }: Layout): Numbers => {
      const found = parts.map((part) => this.#rowsOf(part[name]?.data as Numbers));
      return concatenated(
        dtype,
        this.position.flatMap((_, row) => found.map((rows) => rows[row] as Numbers)),
      );
    };
    return Object.fromEntries(this.#outputs.map((output) => [output.name, whole(output)]));
  }

  /** Return the part of an array for each row. */
  #rowsOf(data: Numbers): Numbers[] {
    const size = data.length / this.rows;
    return this.position.map((_, row) => data.subarray(row * size, (row + 1) * size));
  }
}

/** Return the inputs or outputs that have an axis of steps: not memories and counters. */
export function layoutsOf(entries: Readonly<Record<string, Pick<Feed, "dtype" | "shape">>>): Layout[] {
  return Object.entries(entries).flatMap(([name, { dtype, shape = [] }]) => {
    const sizes = shape.slice(2) as number[];
    return dtype === undefined ? [] : [{ name, dtype, sizes, size: product(sizes) }];
  });
}

/** Return a new array of all numbers of some arrays. */
export function concatenated(dtype: string, arrays: readonly Numbers[]): Numbers {
  const all = zeros(
    dtype,
    arrays.reduce((size, array) => size + array.length, 0),
  );
  let place = 0;
  for (const array of arrays) {
    all.set(array as never, place);
    place += array.length;
  }
  return all;
}
