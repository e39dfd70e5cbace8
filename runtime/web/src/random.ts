/** The random numbers of NumPy's `default_rng(seed)`, so that generation with a seed is that of Python. */

const [WORD, MASK32, MASK64, MASK128] = [32n, (1n << 32n) - 1n, (1n << 64n) - 1n, (1n << 128n) - 1n];
const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;
const POOL = 4;
const [INIT_A, MULT_A, INIT_B, MULT_B] = [0x43b0d7e5, 0x931e8875, 0x8b51f9dd, 0x58f38ded];
const [MIX_L, MIX_R] = [0xca01f9dd, 0x4973f715];

/** A generator PCG64 (XSL-RR), seeded as NumPy's `SeedSequence` does. */
export class Random {
  #state = 0n;
  readonly #increment: bigint;

  constructor(seed: bigint) {
    const words = seedWords(seed, 8).map(BigInt);
    const long = (at: number): bigint => (words[at] as bigint) | ((words[at + 1] as bigint) << WORD);
    const pair = (at: number): bigint => (long(at) << 64n) | long(at + 2);
    this.#increment = ((pair(4) << 1n) | 1n) & MASK128;
    this.#advance();
    this.#state = (this.#state + pair(0)) & MASK128;
    this.#advance();
  }

  /** Return a number of at least 0 and below 1, in steps of 2^-53. */
  next(): number {
    this.#advance();
    const turn = this.#state >> 122n;
    const mixed = ((this.#state >> 64n) ^ this.#state) & MASK64;
    const turned = ((mixed >> turn) | (mixed << (64n - turn))) & MASK64;
    return Number(turned >> 11n) / 2 ** 53;
  }

  #advance(): void {
    this.#state = (this.#state * MULTIPLIER + this.#increment) & MASK128;
  }
}

/** Return a seed for a run that need not be repeatable. */
export function anySeed(): bigint {
  return globalThis.crypto.getRandomValues(new BigUint64Array(2)).reduce((seed, part) => (seed << 64n) | part, 0n);
}

/** Return `count` words of 32 bits that a `SeedSequence` of this seed generates. */
function seedWords(seed: bigint, count: number): number[] {
  const entropy: number[] = [];
  for (let rest = seed; rest > 0n; rest >>= WORD) entropy.push(Number(rest & MASK32));
  let hash = INIT_A;
  const hashed = (value: number): number => {
    const before = value ^ hash;
    hash = Math.imul(hash, MULT_A);
    const after = Math.imul(before, hash);
    return after ^ (after >>> 16);
  };
  const mixed = (x: number, y: number): number => {
    const result = Math.imul(MIX_L, x) - Math.imul(MIX_R, y);
    return result ^ (result >>> 16);
  };
  const pool = Array.from({ length: POOL }, (_, at) => hashed(entropy[at] ?? 0));
  for (let from = 0; from < POOL; from++) {
    for (let to = 0; to < POOL; to++) {
      if (from !== to) pool[to] = mixed(pool[to] as number, hashed(pool[from] as number));
    }
  }
  for (const word of entropy.slice(POOL)) {
    for (let to = 0; to < POOL; to++) pool[to] = mixed(pool[to] as number, hashed(word));
  }
  hash = INIT_B;
  return Array.from({ length: count }, (_, at) => {
    const before = (pool[at % POOL] as number) ^ hash;
    hash = Math.imul(hash, MULT_B);
    const after = Math.imul(before, hash);
    return (after ^ (after >>> 16)) >>> 0;
  });
}
