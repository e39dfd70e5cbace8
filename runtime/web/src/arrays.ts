/** Types and sizes of tensors. */

import { FieldError } from "./fields.js";
import { named, shown } from "./messages.js";

/** The numbers of a tensor. float16 are 16 bits each, in a Uint16Array if JavaScript lacks Float16Array. */
export type Numbers =
  | Float32Array
  | Float64Array
  | Int8Array
  | Int16Array
  | Int32Array
  | BigInt64Array
  | Uint8Array
  | Uint16Array
  | Uint32Array
  | BigUint64Array;

type Maker = { new (size: number): Numbers; new (buffer: ArrayBuffer): Numbers; BYTES_PER_ELEMENT: number };

const Halves = ((globalThis as Record<string, unknown>)["Float16Array"] ?? Uint16Array) as Maker;
const MAKERS: Record<string, Maker> = {
  float16: Halves,
  float32: Float32Array,
  float64: Float64Array,
  bool: Uint8Array,
  int8: Int8Array,
  int16: Int16Array,
  int32: Int32Array,
  int64: BigInt64Array,
  uint8: Uint8Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  uint64: BigUint64Array,
};
/** The largest size of an axis. */
export const LARGEST_AXIS = 2 ** 31 - 1;

/** An axis of a shape: a size, or the name of a free one. */
export type Axis = number | string;

/** Refuse a type or shape that no array can have. */
export function checkKind(name: string, dtype: string, shape: readonly Axis[]): void {
  if (!Object.hasOwn(MAKERS, dtype)) {
    const every = Object.keys(MAKERS).join(", ");
    throw new FieldError(`the dtype of ${named(name)} is ${shown(dtype)}, expected one of ${every}`);
  }
  const wrong = shape.find((axis) => !axis || (typeof axis === "number" && !(axis >= 1 && axis <= LARGEST_AXIS)));
  if (wrong !== undefined) {
    throw new FieldError(`an axis of ${named(name)} is ${shown(wrong)}, expected a name or 1 to ${LARGEST_AXIS}`);
  }
}

/** Return the bytes of one number. */
export function bytesOf(dtype: string): number {
  return (MAKERS[dtype] as Maker).BYTES_PER_ELEMENT;
}

/** Return an array of zeros. */
export function zeros(dtype: string, size: number): Numbers {
  return new (MAKERS[dtype] as Maker)(size);
}

/** Return the numbers in a buffer. */
export function numbersIn(dtype: string, buffer: ArrayBuffer): Numbers {
  return new (MAKERS[dtype] as Maker)(buffer);
}

/** Return the product of the sizes of all axes. */
export function product(sizes: readonly number[]): number {
  return sizes.reduce((all, size) => all * size, 1);
}

/** Write a number of float32 into an array of any type of floats. */
export function setFloat(array: Numbers, place: number, value: number): void {
  if (array instanceof Uint16Array) array[place] = halfBits(value);
  else (array as Float32Array)[place] = value;
}

/** Return whether all numbers of a tensor are finite. */
export function allFinite(array: Numbers, dtype: string): boolean {
  if (!dtype.startsWith("float")) return true;
  if (array instanceof Uint16Array) return array.every((bits) => (bits & 0x7c00) !== 0x7c00);
  return (array as Float32Array).every(Number.isFinite);
}

/** Return the bytes of an array. */
export function bytes(array: Numbers): Uint8Array<ArrayBuffer> {
  return new Uint8Array(array.buffer as ArrayBuffer, array.byteOffset, array.byteLength);
}

/** Return a number as the 16 bits of a float16, rounded to the nearest even one. */
function halfBits(value: number): number {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (Number.isNaN(size)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  const exponent = Math.max(Math.floor(Math.log2(size || 1)), -14);
  const steps = size / 2 ** (exponent - 10);
  const whole = Math.floor(steps);
  const rest = steps - whole;
  const rounded = rest > 0.5 || (rest === 0.5 && whole % 2 === 1) ? whole + 1 : whole;
  return sign | (rounded + (exponent + 14) * 1024);
}
