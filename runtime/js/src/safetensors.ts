/** Tensors on the CPU, and files of them in the format safetensors. */

import { list, map, object, record, text, whole, type Checked } from "./fields.js";
import { readJson } from "./json.js";

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

/** A tensor on the CPU. */
export interface HostTensor {
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly data: Numbers;
}

type ArrayType = { new (size: number): Numbers; new (buffer: ArrayBuffer): Numbers; BYTES_PER_ELEMENT: number };

const Halves = ((globalThis as Record<string, unknown>)["Float16Array"] ?? Uint16Array) as ArrayType;
/** Name in a file and type of array of each dtype. */
const DTYPES: Readonly<Record<string, readonly [string, ArrayType]>> = {
  float16: ["F16", Halves],
  float32: ["F32", Float32Array],
  float64: ["F64", Float64Array],
  bool: ["BOOL", Uint8Array],
  int8: ["I8", Int8Array],
  int16: ["I16", Int16Array],
  int32: ["I32", Int32Array],
  int64: ["I64", BigInt64Array],
  uint8: ["U8", Uint8Array],
  uint16: ["U16", Uint16Array],
  uint32: ["U32", Uint32Array],
  uint64: ["U64", BigUint64Array],
};
/** Names of all dtypes. */
export const DTYPE_NAMES: readonly string[] = Object.keys(DTYPES);

const ENTRY = record({ dtype: text, shape: list(whole(0)), data_offsets: list(whole(0), 2) });
type Entry = Checked<typeof ENTRY> & { readonly data_offsets: readonly [number, number] };

function arrayType(dtype: string): ArrayType {
  return (DTYPES[dtype] as (typeof DTYPES)[string])[1];
}

/** Return the bytes of one number. */
export function bytesOf(dtype: string): number {
  return arrayType(dtype).BYTES_PER_ELEMENT;
}

/** Return an array of zeros. */
export function zeros(dtype: string, size: number): Numbers {
  return new (arrayType(dtype))(size);
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
export function allFinite({ data, dtype }: HostTensor): boolean {
  if (!dtype.startsWith("float")) return true;
  if (data instanceof Uint16Array) return data.every((bits) => (bits & 0x7c00) !== 0x7c00);
  return (data as Float32Array).every(Number.isFinite);
}

/** Return the bytes of an array. */
export function bytes(array: Numbers): Uint8Array<ArrayBuffer> {
  return new Uint8Array(array.buffer as ArrayBuffer, array.byteOffset, array.byteLength);
}

/**
 * Read a file.
 *
 * @returns The tensors by name in the order of their data, the texts of the metadata, and all data.
 * @throws Error - the bytes are not such a file.
 */
export function readSafetensors(raw: Uint8Array): {
  tensors: Map<string, HostTensor>;
  metadata: Record<string, string>;
  data: Uint8Array;
} {
  const size = Number(new DataView(raw.buffer, raw.byteOffset, raw.byteLength).getBigUint64(0, true));
  if (size > raw.length - 8) throw new Error("its header is cut off");
  const header = readJson(raw.subarray(8, 8 + size));
  object(header, "its header");
  const { __metadata__: metadata = {}, ...entries } = header as Record<string, Entry>;
  map(text)(metadata, "its metadata");
  map(ENTRY)(entries, "its tensors");
  const data = raw.subarray(8 + size);
  const tensors = new Map<string, HostTensor>();
  const inOrder = Object.entries(entries).sort(([, a], [, b]) => a.data_offsets[0] - b.data_offsets[0]);
  let end = 0;
  for (const [name, { dtype: short, shape, data_offsets: offsets }] of inOrder) {
    const dtype = DTYPE_NAMES.find((one) => DTYPES[one]?.[0] === short);
    if (dtype === undefined || offsets[0] !== end || offsets[1] - end !== product(shape) * bytesOf(dtype)) {
      throw new Error("its tensors do not fill it, each with the size of its shape");
    }
    end = offsets[1];
    tensors.set(name, { dtype, shape, data: new (arrayType(dtype))(data.slice(offsets[0], end).buffer) });
  }
  if (end !== data.length) throw new Error("it has bytes that belong to no tensor");
  return { tensors, metadata: metadata as unknown as Record<string, string>, data };
}

/** Return the beginning of a file: the size of a JSON object, and the object: metadata and places of tensors. */
export function safetensorsHeader(
  metadata: Readonly<Record<string, string>>,
  tensors: ReadonlyMap<string, HostTensor>,
): Uint8Array {
  const header: Record<string, unknown> = { __metadata__: metadata };
  let end = 0;
  for (const [name, { dtype, shape, data }] of tensors) {
    header[name] = { dtype: DTYPES[dtype]?.[0], shape, data_offsets: [end, (end += data.byteLength)] };
  }
  const encoded = new TextEncoder().encode(JSON.stringify(header));
  const padded = new Uint8Array(8 + Math.ceil(encoded.length / 8) * 8).fill(0x20);
  new DataView(padded.buffer).setBigUint64(0, BigInt(padded.length - 8), true);
  padded.set(encoded, 8);
  return padded;
}

/** Return bytes that follow one another as one array. */
export function joined(parts: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const all = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let place = 0;
  for (const part of parts) {
    all.set(part, place);
    place += part.length;
  }
  return all;
}

/** Return a number as the 16 bits of a float16, rounded to the nearest even one. */
function halfBits(value: number): number {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (size >= 65520) return sign | 0x7c00;
  const exponent = Math.max(Math.floor(Math.log2(size || 1)), -14);
  const steps = size / 2 ** (exponent - 10);
  const whole = Math.floor(steps);
  const rest = steps - whole;
  const rounded = rest > 0.5 || (rest === 0.5 && whole % 2 === 1) ? whole + 1 : whole;
  return sign | (rounded + (exponent + 14) * 1024);
}
