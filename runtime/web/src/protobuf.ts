/** Read the wire format of protocol buffers: fields and the places of their values, without their meaning. */

const LONGEST_VARINT = 10;
const LARGEST_TAG = 2 ** 32;

/** A field of bytes: its number, and begin and end of its value. */
export type Field = readonly [number: number, begin: number, end: number];

/** The bytes are not a message. */
export class MessageError extends Error {}

/** A varint: 0; 8 bytes: 1; bytes with their length: 2; 4 bytes: 5. */
type WireType = 0 | 1 | 2 | 5;

/**
 * Return the texts, bytes and messages in the message `data[start:end]`, and its number of fields.
 *
 * @param wanted - numbers of the fields to return; the others are only counted.
 */
export function fields(data: Uint8Array, start: number, end: number, wanted: ReadonlySet<number>): [Field[], number] {
  const found: Field[] = [];
  const count = walk(data, start, end, (number, wireType, first, after) => {
    if (wireType === 2 && wanted.has(number)) found.push([number, first, after]);
  });
  return [found, count];
}

/** Return the last value of a field of numbers in a message; null if it is absent. */
export function numberField(data: Uint8Array, start: number, end: number, wanted: number): number | null {
  let found: number | null = null;
  walk(data, start, end, (number, wireType, first) => {
    if (wireType === 0 && number === wanted) found = varint(data, first, end)[0];
  });
  return found;
}

/** Call `visit` with each field of a message, and return their number. */
function walk(
  data: Uint8Array,
  start: number,
  end: number,
  visit: (number: number, wireType: WireType, first: number, after: number) => void,
): number {
  let count = 0;
  let place = start;
  while (place < end) {
    const begin = place;
    const [tag, value] = varint(data, begin, end);
    if (!(tag >= 8 && tag < LARGEST_TAG))
      throw new MessageError(`no field has number ${tag >>> 3}, as at byte ${begin}`);
    const number = Math.floor(tag / 8);
    let [first, after] = [value, value];
    const wireType = tag % 8;
    if (wireType === 2) {
      const [size, begin] = varint(data, value, end);
      [first, after] = [begin, begin + size];
    } else if (wireType === 0) {
      after = varint(data, value, end)[1];
    } else if (wireType === 1 || wireType === 5) {
      after = value + (wireType === 1 ? 8 : 4);
    } else {
      throw new MessageError(`no field has wire type ${wireType}, as at byte ${begin}`);
    }
    if (after > end) throw new MessageError(`the field at byte ${begin} ends outside its message`);
    visit(number, wireType, first, after);
    count += 1;
    place = after;
  }
  return count;
}

/** Return the number that begins at `start`, and the place of its end. Numbers beyond 2^53 are rounded. */
function varint(data: Uint8Array, start: number, end: number): [number, number] {
  let value = 0;
  let factor = 1;
  for (let place = start; place < Math.min(end, start + LONGEST_VARINT); place++) {
    const byte = data[place] as number;
    value += (byte & 127) * factor;
    if (byte < 128) return [value, place + 1];
    factor *= 128;
  }
  throw new MessageError(`the number at byte ${start} has no end`);
}
