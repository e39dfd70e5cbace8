/** SHA-256 of bytes, for pages that may not use SubtleCrypto. */

const ROUNDS = 64;

/** Return the SHA-256 of bytes. Browsers lack SubtleCrypto on pages of plain HTTP, except those of the same machine. */
export function plainSha256(data: Uint8Array): Uint8Array<ArrayBuffer> {
  const [first, constants] = numbers();
  const state = first.slice();
  const size = data.length;
  const tail = new Uint8Array(size % 64 < 56 ? 64 : 128);
  const whole = size - (size % 64);
  tail.set(data.subarray(whole));
  tail[size - whole] = 0x80;
  new DataView(tail.buffer).setBigUint64(tail.length - 8, BigInt(size) * 8n);
  const words = new Int32Array(ROUNDS);
  const blocks = [new DataView(data.buffer, data.byteOffset, whole), new DataView(tail.buffer)];
  for (const view of blocks) {
    for (let start = 0; start < view.byteLength; start += 64) addBlock(state, words, constants, view, start);
  }
  const digest = new Uint8Array(32);
  state.forEach((word, index) => new DataView(digest.buffer).setInt32(4 * index, word));
  return digest;
}

function addBlock(state: Int32Array, w: Int32Array, constants: Int32Array, view: DataView, start: number): void {
  const turn = (x: number, n: number): number => (x >>> n) | (x << (32 - n));
  for (let t = 0; t < 16; t++) w[t] = view.getInt32(start + 4 * t);
  for (let t = 16; t < ROUNDS; t++) {
    const [x, y] = [w[t - 15] as number, w[t - 2] as number];
    const [s0, s1] = [turn(x, 7) ^ turn(x, 18) ^ (x >>> 3), turn(y, 17) ^ turn(y, 19) ^ (y >>> 10)];
    w[t] = (w[t - 16] as number) + s0 + (w[t - 7] as number) + s1;
  }
  let [a, b, c, d, e, f, g, h] = state as unknown as [number, number, number, number, number, number, number, number];
  for (let t = 0; t < ROUNDS; t++) {
    const s1 = turn(e, 6) ^ turn(e, 11) ^ turn(e, 25);
    const t1 = (h + s1 + ((e & f) ^ (~e & g)) + (constants[t] as number) + (w[t] as number)) | 0;
    const s0 = turn(a, 2) ^ turn(a, 13) ^ turn(a, 22);
    const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    [a, b, c, d, e, f, g, h] = [(t1 + t2) | 0, a, b, c, (d + t1) | 0, e, f, g];
  }
  [a, b, c, d, e, f, g, h].forEach((word, index) => {
    state[index] = (state[index] as number) + word;
  });
}

/** Return the first state and the constants of all rounds: 32 bits of the square and cube roots of primes. */
function numbers(): [Int32Array, Int32Array] {
  const primes: number[] = [];
  for (let n = 2; primes.length < ROUNDS; n++) if (primes.every((prime) => n % prime)) primes.push(n);
  const bits = (prime: number, power: bigint): number => {
    // The integer root of prime * 2^(32 * power) has 32 bits after the point.
    const target = BigInt(prime) << (32n * power);
    let root = BigInt(Math.floor(prime ** (1 / Number(power)) * 2 ** 32));
    while (root ** power > target) root -= 1n;
    while ((root + 1n) ** power <= target) root += 1n;
    return Number(BigInt.asIntN(32, root));
  };
  return [
    Int32Array.from(primes.slice(0, 8), (prime) => bits(prime, 2n)),
    Int32Array.from(primes, (prime) => bits(prime, 3n)),
  ];
}
