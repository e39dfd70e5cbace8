/** The memory of one document: carried tensors, counters of what they hold, and the feeds of a step. */

import { rowAxis, type Bundle, type Feed, type Graph, type MemoryEntry } from "./bundle.js";
import { OutOfMemoryError } from "./errors.js";
import { UNLIMITED, type EvaluationSettings, type RingSizes } from "./evaluation.js";
import { counted } from "./messages.js";
import type { OrtTensor, Runtime, Tensors } from "./onnxruntime.js";
import { bytesOf, product, setFloat, zeros, type HostTensor, type Numbers } from "./safetensors.js";

/** What all memories of one document or stream share. */
export interface MemoryPlan {
  readonly runtime: Runtime;
  readonly entries: Bundle["memory"];
  /** First values of entries, by `first_value`; an entry without one begins with zeros. */
  readonly firstValues: ReadonlyMap<string, HostTensor>;
  /** Outputs of the graph `positions`. */
  readonly constants: Readonly<Tensors>;
  readonly evaluation: EvaluationSettings;
  /** Slots of the largest ring; the others have as many spare slots. */
  readonly capacity: number;
  /** Batch rows: 1 for a document. */
  readonly rows: number;
}

/** Return the value of a feed that depends on settings and slots alone. */
export function settingOf({ feed, ring, setting }: Feed, evaluation: EvaluationSettings, capacity: number): number {
  if (feed === "setting") return Number(evaluation.values[setting as string]);
  return feed === "slots"
    ? evaluation.slots(ring as string, capacity)
    : (evaluation.rings[ring as string] as RingSizes).window;
}

/** A carried tensor, which several memories may hold; it is never changed. */
class Carried {
  #users = 1;

  constructor(readonly tensor: OrtTensor) {}

  hold(): this {
    this.#users += 1;
    return this;
  }

  /** Free a buffer on the GPU with its last user. JavaScript frees all others. */
  leave(): void {
    this.#users -= 1;
    if (this.#users === 0 && this.tensor.location === "gpu-buffer") this.tensor.dispose();
  }
}

/**
 * The carried tensors of one document.
 *
 * A step returns new tensors and leaves the old ones as they were. So a copy shares them, and an error in the middle of
 * a document changes nothing.
 */
export class Memory {
  readonly plan: MemoryPlan;
  /** Rows written to the rings so far. */
  offset = 0;
  /** Kept rows that a query may see, in the ring that keeps the most. */
  length: number;
  /** Number of tokens that each row has read of its document since the last restart. */
  positions: readonly number[];
  readonly #carried: Map<string, Carried>;

  /** Begin a document. */
  constructor(plan: MemoryPlan, carried?: Map<string, Carried>) {
    this.plan = plan;
    this.length = this.#firstLength;
    this.positions = zerosOf(plan);
    const fresh = (entry: MemoryEntry): [string, Carried] => [entry.input, new Carried(firstTensor(plan, entry))];
    this.#carried = carried ?? new Map(plan.entries.map(fresh));
  }

  /** Number of tokens that the only row has read. */
  get position(): number {
    return this.positions[0] as number;
  }

  /** Longest step that does not overwrite rows that its first query sees. */
  get maxSegment(): number {
    return this.#evaluation.maxSegment(this.plan.capacity);
  }

  /** Tokens that can still be read before the document must end or restart. */
  get room(): number {
    const longest = this.#evaluation.longestPart;
    if (longest === null) return UNLIMITED;
    if (this.#evaluation.document.full_document) return this.position > 0 ? 0 : longest;
    return longest - this.position;
  }

  /** Bytes of the carried tensors. */
  get nbytes(): number {
    return bytesOfPlan(this.plan);
  }

  get #evaluation(): EvaluationSettings {
    return this.plan.evaluation;
  }

  get #firstLength(): number {
    return this.#evaluation.document.fresh_memory === "zeros" ? this.#evaluation.mostRows : 0;
  }

  /** Return the inputs of a step of `graph`, with those `given`, whose tokens may see `length` kept rows. */
  feeds(graph: Graph, given: Tensors, length: number): Tensors {
    const { runtime, constants, capacity } = this.plan;
    const number = (value: number): OrtTensor => runtime.int64([value]);
    const ring = (feed: Feed): RingSizes => this.#evaluation.rings[feed.ring as string] as RingSizes;
    const setting = (feed: Feed): OrtTensor => number(settingOf(feed, this.#evaluation, capacity));
    const beyond = Math.max(length - this.#evaluation.mostRows, 0); // within a step of several graphs
    const table: Record<Exclude<Feed["feed"], "source">, (name: string, feed: Feed) => OrtTensor> = {
      tokens: () => given["tokens"] as OrtTensor,
      targets: () => given["targets"] as OrtTensor,
      input: (name) => given[name] as OrtTensor,
      position: () => runtime.int64(this.positions),
      offset: (_, feed) => number(this.offset % this.#evaluation.slots(feed.ring as string, capacity)),
      length: (_, feed) => number(Math.min(length, ring(feed).rows) + beyond),
      window: (_, feed) => setting(feed),
      slots: (_, feed) => setting(feed),
      setting: (_, feed) => setting(feed),
      constant: (name) => constants[name] as OrtTensor,
      memory: (name) => (this.#carried.get(name) as Carried).tensor,
    };
    const inputs = Object.entries(graph.inputs);
    return Object.fromEntries(inputs.map(([name, feed]) => [name, table[feed.feed as keyof typeof table](name, feed)]));
  }

  /** Return how many tokens of its document each query of the next step sees, itself included. */
  context(segmentLen: number): number[] {
    const steps = Array.from({ length: segmentLen }, (_, step) => step + 1);
    if (this.plan.entries.some((entry) => entry.layout === "state")) return steps.map((step) => this.position + step);
    const kept = Math.min(this.position, this.#evaluation.mostRows);
    return steps.map((step) => Math.min(kept + step, this.#evaluation.widestWindow));
  }

  /** Take what a step of `segmentLen` tokens, which saw `length` kept rows, has returned. */
  advance(outputs: Tensors, segmentLen: number, length: number): void {
    for (const { input, output } of this.plan.entries) {
      const tensor = outputs[output];
      if (tensor !== undefined) this.#put(input, tensor);
    }
    this.offset += segmentLen;
    this.length = Math.min(length + segmentLen, this.#evaluation.mostRows);
    this.positions = this.positions.map((position) => position + segmentLen);
  }

  /**
   * Start a new document.
   *
   * States begin with their first value. In rings and windows of an `empty` fresh memory, it is enough to hide the old
   * rows; queries attend to those of `zeros`. `refill` refills in any case, if the old rows may not be finite.
   */
  restart(refill = false): void {
    const all = refill || this.#evaluation.document.fresh_memory === "zeros";
    for (const entry of this.plan.entries) {
      if (all || entry.layout === "state") this.#put(entry.input, firstTensor(this.plan, entry));
    }
    this.length = this.#firstLength;
    this.positions = zerosOf(this.plan);
  }

  /** Return a memory with the same contents, which goes on independently. */
  copy(): Memory {
    const carried = new Map([...this.#carried].map(([name, one]) => [name, one.hold()]));
    const twin = new Memory(this.plan, carried);
    [twin.offset, twin.length, twin.positions] = [this.offset, this.length, this.positions];
    return twin;
  }

  /** Free what only this memory holds. */
  release(): void {
    for (const carried of this.#carried.values()) carried.leave();
    this.#carried.clear();
  }

  /** Return what queries may see of the carried tensors, on the CPU; all other slots have the first value. */
  async arrays(): Promise<Map<string, HostTensor>> {
    const arrays = new Map<string, HostTensor>();
    for (const entry of this.plan.entries) {
      const data = (await this.#carried.get(entry.input)?.tensor.getData()) as Numbers;
      arrays.set(entry.input, { dtype: entry.dtype, shape: sizesOf(this.plan, entry), data: this.#seen(entry, data) });
    }
    return arrays;
  }

  /** Take what queries may see of saved tensors; rows move if the capacity differs. */
  load(
    arrays: ReadonlyMap<string, HostTensor>,
    { offset, length, history, capacity }: Record<"offset" | "length" | "capacity", number> & { history: number[] },
  ): void {
    [this.offset, this.length, this.positions] = [offset, length, history];
    for (const entry of this.plan.entries) {
      const data = this.#seen(entry, (arrays.get(entry.input) as HostTensor).data, capacity);
      this.#put(entry.input, this.plan.runtime.tensor(entry.dtype, data, sizesOf(this.plan, entry)));
    }
  }

  /** Return a copy of numbers of `capacity` slots, in which the slots that no query may see have the first value. */
  #seen(entry: MemoryEntry, saved: Numbers, capacity = this.plan.capacity): Numbers {
    const [axis, sizes] = [rowAxis(entry), sizesOf(this.plan, entry)];
    if (axis === null) return saved;
    const slots = sizes[axis] as number;
    let [old, end] = [slots, slots];
    let kept = this.#evaluation.document.fresh_memory === "zeros" ? slots : Math.min(this.position, slots);
    if (entry.layout === "ring") {
      const symbol = entry.shape[axis] as string;
      [old, end] = [this.#evaluation.slots(symbol, capacity), this.offset];
      kept = Math.min(this.length, (this.#evaluation.rings[symbol] as RingSizes).rows, slots, old);
    }
    const [blocks, inner] = [product(sizes.slice(0, axis)), product(sizes.slice(axis + 1))];
    const data = firstArray(this.plan, entry);
    for (let row = Math.max(end - kept, 0); row < end; row++) {
      for (let block = 0; block < blocks; block++) {
        const from = (block * old + (row % old)) * inner;
        data.set(saved.subarray(from, from + inner) as never, (block * slots + (row % slots)) * inner);
      }
    }
    return data;
  }

  #put(input: string, tensor: OrtTensor): void {
    this.#carried.get(input)?.leave();
    this.#carried.set(input, new Carried(tensor));
  }
}

/** Return the bytes of the carried tensors. */
export function bytesOfPlan(plan: Pick<MemoryPlan, "entries" | "evaluation" | "capacity" | "rows">): number {
  return plan.entries.reduce((sum, entry) => sum + product(sizesOf(plan, entry)) * bytesOf(entry.dtype), 0);
}

/** Return the sizes of all axes of a carried tensor. */
export function sizesOf(plan: Pick<MemoryPlan, "evaluation" | "capacity" | "rows">, entry: MemoryEntry): number[] {
  return entry.shape.map((axis) => {
    if (typeof axis === "number") return axis;
    return axis === "batch" ? plan.rows : plan.evaluation.slots(axis, plan.capacity);
  });
}

function zerosOf({ rows }: MemoryPlan): number[] {
  return new Array<number>(rows).fill(0);
}

function firstTensor(plan: MemoryPlan, entry: MemoryEntry): OrtTensor {
  return plan.runtime.tensor(entry.dtype, firstArray(plan, entry), sizesOf(plan, entry));
}

/** Return the numbers of a fresh tensor: its first value in every slot, or zeros. */
function firstArray(plan: MemoryPlan, entry: MemoryEntry): Numbers {
  const sizes = sizesOf(plan, entry);
  let data: Numbers;
  try {
    data = zeros(entry.dtype, product(sizes));
  } catch (error) {
    const problem = `the memory of ${counted(plan.capacity)} slots is larger than this program may have.`;
    throw new OutOfMemoryError(problem, "Choose a smaller mem_len or segment_len.", error);
  }
  if (entry.first_value === null) return data;
  const value = plan.firstValues.get(entry.first_value)?.data as Float32Array;
  const axis = rowAxis(entry);
  const rows = axis === null ? 1 : (sizes[axis] as number);
  const inner = axis === null ? value.length : product(sizes.slice(axis + 1));
  for (let place = 0; place < data.length; place++) {
    const block = Math.floor(place / (inner * rows)); // axes before the rows; batch rows are equal
    setFloat(data, place, value[(block * inner + (place % inner)) % value.length] as number);
  }
  return data;
}
