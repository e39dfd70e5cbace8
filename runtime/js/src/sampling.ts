/** Draw tokens from logits. */

import { ArgumentError, OptionError } from "./errors.js";
import { refuseOthers } from "./evaluation.js";
import { shown } from "./messages.js";

const BITS = (1n << 64n) - 1n;

/** How tokens are drawn. */
export interface SamplingOptions {
  /** Divisor of the logits; 0 takes the likeliest token. */
  temperature?: number;
  /** Draw only from the k likeliest tokens. */
  topK?: number | null;
  /** Draw only from the likeliest tokens that together reach this part of the probability. */
  topP?: number | null;
  /** Seed of the random draws, 0 to 2^64 - 1; null: another one for each run. */
  seed?: number | bigint | null;
}

/** A generator SplitMix64. */
export class Random {
  #state: bigint;

  constructor(seed: bigint) {
    this.#state = seed;
  }

  /** Return a number of at least 0 and below 1, in steps of 2^-53. */
  next(): number {
    this.#state = (this.#state + 0x9e3779b97f4a7c15n) & BITS;
    let z = this.#state;
    z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & BITS;
    z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & BITS;
    z ^= z >> 31n;
    return Number(z >> 11n) / 2 ** 53;
  }
}

/** The rule for drawing tokens: from probabilities at `temperature`, cut by `topK`, then by `topP`. */
export class Sampling {
  readonly temperature: number;
  readonly topK: number | null;
  readonly topP: number | null;
  readonly seed: bigint | null;

  /**
   * @throws ArgumentError - not an object.
   * @throws OptionError - unknown names, or values that are out of range; lists all of them.
   */
  constructor(options: SamplingOptions = {}) {
    if (typeof options !== "object" || options === null) {
      throw new ArgumentError(`sampling is ${shown(options)}, expected an object.`);
    }
    const { temperature = 1, topK = null, topP = null, seed = null, ...others } = options;
    refuseOthers("sampling", others, "temperature, topK, topP, seed");
    const problems = [];
    if (!(temperature >= 0)) problems.push(`temperature is ${temperature}, at least 0 is needed`);
    if (topK !== null && !(topK >= 1 && Number.isInteger(topK)))
      problems.push(`top_k is ${topK}, at least 1 is needed`);
    if (topP !== null && !(topP > 0 && topP <= 1)) {
      problems.push(`top_p is ${topP}, expected more than 0 and at most 1`);
    }
    const isWhole = typeof seed === "bigint" || Number.isSafeInteger(seed);
    if (seed !== null && !(isWhole && seed >= 0 && seed <= BITS)) {
      problems.push(`seed is ${seed}, expected 0 to 2^64 - 1 (a bigint beyond 2^53)`);
    }
    if (problems.length) throw new OptionError(`sampling: ${problems.join("; ")}.`);
    this.temperature = temperature;
    this.topK = topK;
    this.topP = topP;
    this.seed = seed === null ? null : BigInt(seed);
  }

  /** Return the generator of one run, for `draw`. */
  random(): Random {
    return new Random(this.seed ?? (globalThis.crypto.getRandomValues(new BigUint64Array(1))[0] as bigint));
  }

  /** Draw one token id from logits. */
  draw(logits: Float32Array, random: Random): number {
    const likeliest = logits.reduce((best, logit, token) => (logit > (logits[best] as number) ? token : best), 0);
    if (this.temperature === 0) return likeliest;
    const largest = logits[likeliest] as number;
    const weights = Float64Array.from(logits, (logit) => Math.exp((logit - largest) / this.temperature));
    const tokens = this.#kept(weights);
    const goal = random.next() * cumulated(tokens, weights);
    return cut(tokens, weights, (sum) => sum > goal).at(-1) as number;
  }

  /** Return the tokens that may be drawn: the likeliest first, equal ones by id; all in order if there is no cut. */
  #kept(weights: Float64Array): number[] {
    const { topK } = this;
    const topP = this.topP === 1 ? null : this.topP;
    const all = Array.from(weights, (_, token) => token);
    if (topK === null && topP === null) return all;
    // Only candidates are sorted: to sort a large vocabulary takes longer than many steps. The less likely tokens have
    // together less than 1 - topP, so none of them is needed.
    const k = Math.min(topK ?? all.length, all.length);
    const part = ((1 - (topP ?? 1)) / all.length) * cumulated(all, weights);
    const least = topK === null ? part : (weights.toSorted()[all.length - k] as number);
    const weight = (token: number): number => weights[token] as number;
    const candidates = all.filter((token) => weight(token) >= least);
    const kept = candidates.sort((a, b) => weight(b) - weight(a) || a - b).slice(0, k);
    if (topP === null) return kept;
    const goal = topP * cumulated(topK === null ? all : kept, weights);
    return cut(kept, weights, (sum) => sum >= goal);
  }
}

function cumulated(tokens: readonly number[], weights: Float64Array): number {
  return tokens.reduce((sum, token) => sum + (weights[token] as number), 0);
}

/** Return the first tokens, up to the one whose cumulated weight is enough. */
function cut(tokens: number[], weights: Float64Array, isEnough: (sum: number) => boolean): number[] {
  let sum = 0;
  const place = tokens.findIndex((token) => isEnough((sum += weights[token] as number)));
  return place < 0 ? tokens : tokens.slice(0, place + 1);
}
