/** Draw tokens from logits, by the rules 30 to 33 of the format. */

import type { Sampling } from "./sampling_options.js";

const BITS = (1n << 64n) - 1n;

/** A generator SplitMix64. */
export class Random {
  #state: bigint;

  /** Begin with the seed of a rule; null: with another one each time. */
  constructor({ seed }: Sampling) {
    this.#state = seed ?? (globalThis.crypto.getRandomValues(new BigUint64Array(1))[0] as bigint);
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

/** Draw one token id from logits, after `recent` tokens. */
export function draw(
  rule: Sampling,
  logits: Float32Array,
  random: { next(): number },
  recent: readonly number[] = [],
): number {
  const penalty = rule.repetitionPenalty;
  const scores = Float64Array.from(logits);
  for (const token of penalty === 1 ? [] : recent) {
    const own = logits[token] as number; // each token once, however often it came
    scores[token] = own < 0 ? own * penalty : own / penalty;
  }
  const likeliest = scores.reduce((best, score, token) => (score > (scores[best] as number) ? token : best), 0);
  if (rule.temperature === 0) return likeliest;
  const largest = scores[likeliest] as number;
  const weights = scores.map((score) => Math.exp((score - largest) / rule.temperature));
  const tokens = keptOf(rule, weights);
  const goal = random.next() * cumulated(tokens, weights);
  return cut(tokens, weights, (sum) => sum > goal).at(-1) as number;
}

/** Return the tokens that may be drawn: the likeliest first, equal ones by id; all in order if there is no cut. */
function keptOf(rule: Sampling, weights: Float64Array): number[] {
  const { topK, minP } = rule;
  const topP = rule.topP === 1 ? null : rule.topP;
  const all = Array.from(weights, (_, token) => token);
  if (topK === null && topP === null && minP === 0) return all;
  // Only candidates are sorted: to sort a large vocabulary takes longer than many steps. The less likely tokens have
  // together less than 1 - topP, so none of them is needed.
  const k = Math.min(topK ?? all.length, all.length);
  const part = ((1 - (topP ?? 1)) / all.length) * cumulated(all, weights);
  const least = k < all.length ? (weights.toSorted()[all.length - k] as number) : Math.max(part, minP);
  const weight = (token: number): number => weights[token] as number;
  const candidates = all.filter((token) => weight(token) >= least);
  const kept = candidates.sort((a, b) => weight(b) - weight(a) || a - b).slice(0, k);
  const goal = (topP ?? 0) * cumulated(k < all.length ? kept : all, weights);
  const likely = topP === null ? kept : cut(kept, weights, (sum) => sum >= goal);
  return likely.filter((token) => weight(token) >= minP); // the likeliest one has 1
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
