/** Read the wire format of protocol buffers. */

/**
 * Yield the fields of a message: the number of each, and its value or the bytes of it.
 *
 * @throws Error - the bytes are not a message.
 */
export function* fields(data: Uint8Array): Generator<[number: number, value: number | Uint8Array]> {
  let at = 0;
  const varint = (): number => {
    let value = 0;
    for (let factor = 1; ; factor *= 128) {
      const byte = data[at++];
      if (byte === undefined) throw new Error("a number has no end");
      value += (byte & 127) * factor;
      if (byte < 128) return value;
    }
  };
  const sizes: Record<number, () => number> = { 1: () => 8, 2: varint, 5: () => 4 };
  while (at < data.length) {
    const tag = varint();
    const number = Math.floor(tag / 8);
    if (tag % 8 === 0) {
      yield [number, varint()];
      continue;
    }
    const end = (sizes[tag % 8]?.() ?? Infinity) + at;
    if (!(end <= data.length)) throw new Error(`the field at byte ${at} has no end`);
    yield [number, data.subarray(at, end)];
    at = end;
  }
}
