/** Files of tensors in the format safetensors. */

import { bytesOf, numbersIn, product, type Numbers } from "./arrays.js";
import { isObject, parse, type Json, type JsonObject } from "./json.js";
import { counted, named, shown } from "./messages.js";

/** A tensor on the CPU. */
export interface HostTensor {
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly data: Numbers;
}

/** The bytes are not a safetensors file. */
export class SafetensorsError extends Error {}

const SHORT: Record<string, string> = { BOOL: "bool", F16: "float16", F32: "float32", F64: "float64" };
for (const size of [8, 16, 32, 64]) {
  SHORT[`I${size}`] = `int${size}`;
  SHORT[`U${size}`] = `uint${size}`;
}
const LONG = Object.fromEntries(Object.entries(SHORT).map(([short, dtype]) => [dtype, short]));

/**
 * Read a file.
 *
 * @param read - parses the header, within bounds.
 * @returns The tensors by name, and the texts of the metadata.
 * @throws SafetensorsError - the bytes are not such a file.
 */
export function readSafetensors(
  raw: Uint8Array,
  read: (header: Uint8Array) => Json = (header) => parse(new TextDecoder().decode(header)),
): { tensors: Record<string, HostTensor>; metadata: JsonObject } {
  const view = new DataView(raw.buffer, raw.byteOffset, raw.byteLength);
  const size = raw.length < 8 ? 0 : Number(view.getBigUint64(0, true));
  if (raw.length < 8 || size > raw.length - 8) {
    const follow = counted(Math.max(raw.length - 8, 0));
    throw new SafetensorsError(`its header has ${counted(size)} bytes, but only ${follow} follow`);
  }
  const header = read(raw.subarray(8, 8 + size));
  if (!isObject(header)) throw new SafetensorsError("its header is not an object");
  const metadata = header["__metadata__"];
  const tensors = Object.create(null) as Record<string, HostTensor>;
  const places: [number, number][] = [];
  for (const [name, entry] of Object.entries(header)) {
    if (name === "__metadata__") continue;
    const dtype = isObject(entry) ? entry["dtype"] : null;
    if (!isObject(entry) || typeof dtype !== "string" || !Object.hasOwn(SHORT, dtype)) {
      throw new SafetensorsError(`${named(name)} is of type ${shown(dtype)}, which no state has`);
    }
    const [shape, offsets] = [entry["shape"], entry["data_offsets"]];
    if (!isSizes(shape) || !isSizes(offsets) || offsets.length !== 2) {
      throw new SafetensorsError(`${named(name)} has no shape or place`);
    }
    const kind = SHORT[dtype] as string;
    const [begin, end] = offsets as [number, number];
    if (end - begin !== product(shape) * bytesOf(kind) || end > raw.length - 8 - size) {
      throw new SafetensorsError(`${named(name)} has another size than its shape`);
    }
    places.push([begin, end]);
    const data = numbersIn(kind, raw.slice(8 + size + begin, 8 + size + end).buffer);
    tensors[name] = { dtype: kind, shape, data };
  }
  places.sort(([a, x], [b, y]) => a - b || x - y);
  let last = 0;
  for (const [begin, end] of places) {
    if (begin !== last) throw new SafetensorsError("its tensors overlap or leave gaps");
    last = end;
  }
  if (last !== raw.length - 8 - size) throw new SafetensorsError("it has bytes that belong to no tensor");
  return { tensors, metadata: isObject(metadata) ? metadata : {} };
}

/** Return the beginning of a file: the length of a JSON object, and the object: metadata and places of tensors. */
export function safetensorsHeader(metadata: JsonObject, tensors: ReadonlyMap<string, HostTensor>): Uint8Array {
  const header: JsonObject = { __metadata__: metadata };
  let end = 0;
  for (const [name, array] of tensors) {
    const begin = end;
    end += array.data.byteLength;
    header[name] = { dtype: LONG[array.dtype] as string, shape: [...array.shape], data_offsets: [begin, end] };
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const padded = new Uint8Array(8 + text.length + ((8 - (text.length % 8)) % 8)).fill(0x20);
  new DataView(padded.buffer).setBigUint64(0, BigInt(padded.length - 8), true);
  padded.set(text, 8);
  return padded;
}

function isSizes(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((size) => typeof size === "number" && size >= 0);
}
