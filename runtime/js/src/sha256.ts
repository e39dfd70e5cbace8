/** SHA-256 of bytes, by SubtleCrypto where the page may use it. */

/** Return the SHA-256 of bytes as hexadecimal digits. */
export async function sha256(data: Uint8Array<ArrayBuffer>): Promise<string> {
  const subtle = globalThis.crypto?.subtle as SubtleCrypto | undefined;
  const digest = subtle ? new Uint8Array(await subtle.digest("SHA-256", data)) : plainSha256(data);
  return [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return the SHA-256 of bytes. Browsers lack SubtleCrypto on pages of plain HTTP, except those of the same machine. */
export function plainSha256(data: Uint8Array): Uint8Array<ArrayBuffer> {
  const primes: number[] = [];
  for (let n = 2; primes.length < 64; n++) if (primes.every((prime) => n % prime)) primes.push(n);
  const bits = (root: number): number => ((root % 1) * 2 ** 32) | 0; // 32 bits after the point
  const constants = Int32Array.from(primes, (prime) => bits(Math.cbrt(prime)));
  const state = Int32Array.from(primes.slice(0, 8), (prime) => bits(Math.sqrt(prime)));
  const whole = data.length - (data.length % 64);
  const tail = new Uint8Array(data.length - whole < 56 ? 64 : 128);
  tail.set(data.subarray(whole));
  tail[data.length - whole] = 0x80;
  new DataView(tail.buffer).setBigUint64(tail.length - 8, BigInt(data.length) * 8n);
  const w = new Int32Array(64);
  for (const view of [new DataView(data.buffer, data.byteOffset, whole), new DataView(tail.buffer)]) {
    for (let start = 0; start < view.byteLength; start += 64) addBlock(state, w, constants, view, start);
  }
  const digest = new DataView(new ArrayBuffer(32));
  state.forEach((word, index) => digest.setInt32(4 * index, word));
  return new Uint8Array(digest.buffer);
}

function addBlock(state: Int32Array, w: Int32Array, constants: Int32Array, view: DataView, start: number): void {
  const turn = (x: number, n: number): number => (x >>> n) | (x << (32 - n));
  for (let t = 0; t < 16; t++) w[t] = view.getInt32(start + 4 * t);
  for (let t = 16; t < 64; t++) {
    const [x, y] = [w[t - 15] as number, w[t - 2] as number];
    const [s0, s1] = [turn(x, 7) ^ turn(x, 18) ^ (x >>> 3), turn(y, 17) ^ turn(y, 19) ^ (y >>> 10)];
    w[t] = (w[t - 16] as number) + s0 + (w[t - 7] as number) + s1;
  }
  let [a, b, c, d, e, f, g, h] = state as unknown as [number, number, number, number, number, number, number, number];
  for (let t = 0; t < 64; t++) {
    const s1 = turn(e, 6) ^ turn(e, 11) ^ turn(e, 25);
    const t1 = (h + s1 + ((e & f) ^ (~e & g)) + (constants[t] as number) + (w[t] as number)) | 0;
    const s0 = turn(a, 2) ^ turn(a, 13) ^ turn(a, 22);
    const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    [a, b, c, d, e, f, g, h] = [(t1 + t2) | 0, a, b, c, (d + t1) | 0, e, f, g];
  }
  [a, b, c, d, e, f, g, h].forEach((word, index) => (state[index] = (state[index] as number) + word));
}
