/** Compare the outputs of graphs with the bundle's description: untrusted graphs may return anything. */

import type { Numbers } from "./arrays.js";
import { BundleError } from "./errors.js";
import { named } from "./messages.js";
import type { OrtTensor } from "./onnxruntime.js";
import type { Tensor } from "./spec.js";

const LARGEST_LOG_PROB = 1e-3; // rounding may raise a logarithm of 1 above zero
const ENTROPY_ERROR = 0.01; // in nats, relative to 1 + the largest entropy; float16 rounds as coarsely

/**
 * Raise unless a step returned all outputs with the right types, shapes and ranges. Scores that are not finite pass.
 *
 * @param outputs - the outputs of the graph in `file`, except memory.
 * @throws BundleError - an output differs; the message has the file, the output, and the expected and found values.
 */
export function requireOutputs(
  file: string,
  outputs: readonly Tensor[],
  found: Record<string, OrtTensor>,
  segment: number,
  vocabSize: number,
): void {
  const ranges = rangesOf(vocabSize);
  for (const tensor of outputs) {
    const given = found[tensor.name];
    requireKind(file, tensor, given, { batch: 1, segment });
    const range = ranges[tensor.name];
    if (range && given) requireRange(file, tensor.name, given.data as Numbers, range);
  }
}

/**
 * Raise unless one output has the right type and shape.
 *
 * @param sizes - sizes of named axes; named axes without an entry may have any size.
 */
export function requireKind(
  file: string,
  tensor: Tensor,
  found: OrtTensor | undefined,
  sizes: Record<string, number> = {},
): void {
  if (found === undefined) throw notAsDescribed(file, `output ${named(tensor.name)} is missing`);
  const expected = tensor.shape.map((axis) => (typeof axis === "number" ? axis : sizes[axis]));
  if (
    found.type === tensor.dtype &&
    found.dims.length === expected.length &&
    expected.every((size, axis) => size === undefined || size === found.dims[axis])
  ) {
    return;
  }
  const shape = tensor.shape.map((axis, index) => expected[index] ?? axis).join(" x ") || "scalar";
  const seen = `${found.type} ${found.dims.join(" x ") || "scalar"}`;
  throw notAsDescribed(file, `output ${named(tensor.name)} is ${seen}, expected ${tensor.dtype} ${shape}`);
}

function requireRange(file: string, name: string, values: Numbers, [least, most]: readonly [number, number]): void {
  let [smallest, largest] = [Infinity, -Infinity];
  for (const value of values) {
    const number = Number(value);
    if (least === -Infinity && !Number.isFinite(number)) continue;
    if (number < smallest) smallest = number;
    if (number > largest) largest = number;
  }
  if (smallest >= least && largest <= most) return;
  const unbounded = "logarithms of probabilities, at most 0";
  const expected = least === -Infinity ? unbounded : `${short(least)} to ${short(most)}`;
  const seen = `values from ${short(smallest)} to ${short(largest)}`;
  throw notAsDescribed(file, `output ${name} has ${seen}, expected ${expected}`);
}

function notAsDescribed(file: string, problem: string): BundleError {
  return new BundleError(`${file}: ${problem}.`, "Convert the checkpoint again.");
}

/** Return the smallest and the largest value of known outputs. */
function rangesOf(vocabSize: number): Record<string, readonly [number, number]> {
  const slack = ENTROPY_ERROR * (1 + Math.log(vocabSize));
  return {
    log_prob: [-Infinity, LARGEST_LOG_PROB],
    top_log_probs: [-Infinity, LARGEST_LOG_PROB],
    rank: [1, vocabSize],
    top_ids: [0, vocabSize - 1],
    entropy: [-slack, Math.log(vocabSize) + slack],
  };
}

function short(value: number): string {
  return String(Number(value.toPrecision(6)));
}
