/** The memory of one document: carried tensors, and counters that describe their contents. */

import { bytesOf, product, setFloat, zeros, type Numbers } from "./arrays.js";
import { symbolOf } from "./contradictions.js";
import { OptionError } from "./errors.js";
import { UNBOUNDED_WINDOW, type EvaluationSettings } from "./evaluation.js";
import { counted } from "./messages.js";
import type { OrtTensor, Runtime } from "./onnxruntime.js";
import type { HostTensor } from "./safetensors.js";
import type { Memory } from "./spec.js";

/** The properties that all memories of one walk share. */
export interface MemoryPlan {
  readonly runtime: Runtime;
  readonly entries: readonly Memory[];
  /** First values of entries, by `first_value`; an entry without one begins with zeros. */
  readonly firstValues: Readonly<Record<string, HostTensor>>;
  /** Graph inputs that depend only on settings and capacities. */
  readonly constants: Readonly<Record<string, OrtTensor>>;
  readonly evaluation: EvaluationSettings;
  /** Slots of the largest ring; the others have as many spare slots. */
  readonly capacity: number;
}

/** A carried tensor, which several memories may hold; it is never changed. */
class Carried {
  readonly tensor: OrtTensor;
  #users = 1;

  constructor(tensor: OrtTensor) {
    this.tensor = tensor;
  }

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
export class DocumentMemory {
  readonly plan: MemoryPlan;
  /** Rows written to the rings so far. */
  offset = 0;
  /** Visible rows in the ring that keeps the most. */
  memoryLength: number;
  /** Number of tokens read of the document since its last restart. */
  position = 0;
  readonly #carried: Map<string, Carried>;

  /** Begin a document. */
  constructor(plan: MemoryPlan, carried?: Map<string, Carried>) {
    this.plan = plan;
    this.memoryLength = this.#firstLength;
    const fresh = (entry: Memory): [string, Carried] => [entry.input, new Carried(firstTensor(plan, entry))];
    this.#carried = carried ?? new Map(plan.entries.map(fresh));
  }

  /** Longest step that does not overwrite rows that its first query sees. */
  get maxSegment(): number {
    return this.#evaluation.maxSegment(this.plan.capacity);
  }

  /** Tokens that can still be read before the document must end or restart. */
  get room(): number {
    const longest = this.#evaluation.longestPart;
    if (longest === null) return UNBOUNDED_WINDOW;
    if (this.#evaluation.rules.whole) return this.position > 0 ? 0 : longest;
    return longest - this.position;
  }

  /** Bytes of the carried tensors. */
  get nbytes(): number {
    return this.plan.entries.reduce((sum, entry) => sum + product(sizesOf(this.plan, entry)) * bytesOf(entry.dtype), 0);
  }

  get #evaluation(): EvaluationSettings {
    return this.plan.evaluation;
  }

  get #firstLength(): number {
    return this.#evaluation.rules.first_memory === "zeros" ? this.#evaluation.mostRows : 0;
  }

  /** Return the inputs of a step: carried tensors, constants, counters and settings. */
  feeds(): Record<string, OrtTensor> {
    const { runtime, constants, capacity } = this.plan;
    const number = (value: number): OrtTensor => runtime.int64([value]);
    const feeds: Record<string, OrtTensor> = { ...constants, position: number(this.position) };
    for (const [symbol, ring] of Object.entries(this.#evaluation.rules.rings)) {
      feeds[ring.offset] = number(this.offset % this.#evaluation.slots(symbol, capacity));
      if (ring.length !== null) {
        feeds[ring.length] = number(Math.min(this.memoryLength, this.#evaluation.rows(symbol)));
      }
      if (ring.window !== null) feeds[ring.window] = number(this.#evaluation.window(symbol));
    }
    for (const [name, value] of Object.entries(this.#evaluation.inputs())) feeds[name] = number(value);
    for (const [name, carried] of this.#carried) feeds[name] = carried.tensor;
    return feeds;
  }

  /** Return how many tokens of its document each query of the next step sees, itself included. */
  context(segmentLen: number): number[] {
    const steps = Array.from({ length: segmentLen }, (_, step) => step + 1);
    if (this.plan.entries.some((entry) => entry.layout === "state")) return steps.map((step) => this.position + step);
    const kept = Math.min(this.position, this.#evaluation.mostRows);
    return steps.map((step) => Math.min(kept + step, this.#evaluation.widestWindow));
  }

  /** Take what a step of `segmentLen` tokens has returned. */
  advance(outputs: Record<string, OrtTensor>, segmentLen: number): void {
    for (const entry of this.plan.entries) this.#put(entry.input, outputs[entry.output] as OrtTensor);
    this.offset += segmentLen;
    this.memoryLength = Math.min(this.memoryLength + segmentLen, this.#evaluation.mostRows);
    this.position += segmentLen;
  }

  /**
   * Start a new document.
   *
   * States begin with their first value. For rings and windows under the `empty` rule, it is enough to hide the old
   * rows. Under `zeros` they are refilled, because queries attend to them. `refill` refills in any case, which is needed
   * if the old rows may not be finite.
   */
  restart(refill = false): void {
    const all = refill || this.#evaluation.rules.first_memory === "zeros";
    for (const entry of this.plan.entries) {
      if (all || entry.layout === "state") this.#put(entry.input, firstTensor(this.plan, entry));
    }
    this.memoryLength = this.#firstLength;
    this.position = 0;
  }

  /** Return a memory with the same contents, which goes on independently. */
  copy(): DocumentMemory {
    const carried = new Map([...this.#carried].map(([name, one]) => [name, one.hold()]));
    const twin = new DocumentMemory(this.plan, carried);
    [twin.offset, twin.memoryLength, twin.position] = [this.offset, this.memoryLength, this.position];
    return twin;
  }

  /** Free what only this memory holds. */
  release(): void {
    for (const carried of this.#carried.values()) carried.leave();
    this.#carried.clear();
  }

  /** Return the carried tensors on the CPU. */
  async arrays(): Promise<Map<string, HostTensor>> {
    const found = new Map<string, HostTensor>();
    for (const entry of this.plan.entries) {
      const tensor = this.#carried.get(entry.input)?.tensor as OrtTensor;
      const data = (await tensor.getData()) as Numbers;
      found.set(entry.input, { dtype: entry.dtype, shape: sizesOf(this.plan, entry), data });
    }
    return found;
  }

  /** Fill the tensors from saved ones of `capacity` slots at `offset`; move rows if this capacity differs. */
  load(arrays: Readonly<Record<string, HostTensor>>, offset: number, capacity: number): void {
    for (const entry of this.plan.entries) {
      const saved = arrays[entry.input] as HostTensor;
      const symbol = symbolOf(entry);
      const sizes = sizesOf(this.plan, entry);
      let data = saved.data;
      if (symbol !== null && capacity !== this.plan.capacity) {
        const slots = this.#evaluation.slots(symbol, this.plan.capacity);
        const savedSlots = this.#evaluation.slots(symbol, capacity);
        const kept = Math.min(this.#evaluation.rows(symbol), slots, savedSlots);
        data = firstArray(this.plan, entry);
        const axis = entry.shape.indexOf(symbol);
        const [outer, inner] = [product(sizes.slice(0, axis)), product(sizes.slice(axis + 1))];
        for (let age = Math.max(offset - kept, 0); age < offset; age++) {
          for (let block = 0; block < outer; block++) {
            const from = (block * savedSlots + (age % savedSlots)) * inner;
            data.set(saved.data.subarray(from, from + inner) as never, (block * slots + (age % slots)) * inner);
          }
        }
      }
      this.#put(entry.input, this.plan.runtime.tensor(entry.dtype, data, sizes));
    }
    this.offset = offset;
  }

  #put(input: string, tensor: OrtTensor): void {
    this.#carried.get(input)?.leave();
    this.#carried.set(input, new Carried(tensor));
  }
}

/** Return the sizes of all axes of a carried tensor. */
export function sizesOf(plan: Pick<MemoryPlan, "evaluation" | "capacity">, entry: Memory): number[] {
  return entry.shape.map((axis) => {
    if (typeof axis === "number") return axis;
    return axis === "batch" ? 1 : plan.evaluation.slots(axis, plan.capacity);
  });
}

/** Return the index of the axis of rows; null for a state. */
export function rowAxis(entry: Memory): number | null {
  if (entry.layout === "ring") return entry.shape.indexOf(symbolOf(entry) as string);
  return entry.layout === "window" ? entry.shape.length - 2 : null;
}

function firstTensor(plan: MemoryPlan, entry: Memory): OrtTensor {
  return plan.runtime.tensor(entry.dtype, firstArray(plan, entry), sizesOf(plan, entry));
}

/** Return the numbers of a fresh tensor: its first value in every slot, or zeros. */
function firstArray(plan: MemoryPlan, entry: Memory): Numbers {
  const sizes = sizesOf(plan, entry);
  let data: Numbers;
  try {
    data = zeros(entry.dtype, product(sizes));
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw new OptionError(
      `the memory of ${counted(plan.capacity)} slots is larger than this program may have.`,
      "Choose a smaller mem_len or segment_len.",
      error,
    );
  }
  const value = entry.first_value === null ? null : (plan.firstValues[entry.first_value]?.data as Float32Array);
  if (value === null) return data;
  const axis = rowAxis(entry);
  const rows = axis === null ? 1 : (sizes[axis] as number);
  const inner = axis === null ? value.length : product(sizes.slice(axis + 1));
  for (let place = 0; place < data.length; place++) {
    const block = Math.floor(place / (inner * rows)); // axes before the rows; the batch has one
    setFloat(data, place, value[block * inner + (place % inner)] as number);
  }
  return data;
}
