/** Draw tokens from logits. */

import { OptionError } from "./errors.js";
import { anySeed, Random } from "./random.js";

/** How tokens are drawn. */
export interface SamplingOptions {
  /** Divisor of the logits; 0 takes the likeliest token. */
  temperature?: number;
  /** Draw only from the k likeliest tokens. */
  topK?: number | null;
  /** Draw only from the likeliest tokens that together reach this probability. */
  topP?: number | null;
  /** Seed of the random draws; null: another one for each run. */
  seed?: number | bigint | null;
}

/** The rule for drawing tokens: from probabilities at `temperature`, cut by `topK`, then by `topP`. */
export class Sampling {
  readonly temperature: number;
  readonly topK: number | null;
  readonly topP: number | null;
  readonly seed: bigint | null;

  /** @throws OptionError - values are out of range; lists all of them. */
  constructor({ temperature = 1, topK = null, topP = null, seed = null }: SamplingOptions = {}) {
    const problems = [];
    if (!(temperature >= 0)) problems.push(`temperature is ${temperature}, at least 0 is needed`);
    if (topK !== null && !(topK >= 1 && Number.isInteger(topK)))
      problems.push(`top_k is ${topK}, at least 1 is needed`);
    if (topP !== null && !(topP > 0 && topP <= 1)) {
      problems.push(`top_p is ${topP}, expected more than 0 and at most 1`);
    }
    if (seed !== null && !(seed >= 0 && (typeof seed === "bigint" || Number.isInteger(seed)))) {
      problems.push(`seed is ${seed}, at least 0 is needed`);
    }
    if (problems.length) throw new OptionError(`sampling: ${problems.join("; ")}.`);
    this.temperature = temperature;
    this.topK = topK;
    this.topP = topP;
    this.seed = seed === null ? null : BigInt(seed);
  }

  /** Return the random source of one run, for `draw`. */
  random(): Random {
    return new Random(this.seed ?? anySeed());
  }

  /** Draw one token id from logits. */
  draw(logits: Float32Array, random: Random): number {
    const likeliest = logits.reduce((best, logit, token) => (logit > (logits[best] as number) ? token : best), 0);
    if (this.temperature === 0) return likeliest;
    const top = logits[likeliest] as number;
    const scores = Float64Array.from(logits, (logit) => (logit - top) / this.temperature);
    const probabilities = scores.map(Math.exp);
    const tokens = this.#candidates(scores, probabilities);
    const total = sum(tokens.map((token) => probabilities[token] as number));
    const reached = cumulated(tokens.map((token) => (probabilities[token] as number) / total));
    const last = reached.at(-1) as number;
    const uniform = random.next();
    const place = reached.findIndex((part) => part / last > uniform);
    return tokens[place < 0 ? tokens.length - 1 : place] as number;
  }

  /** Return the tokens that may be drawn: all in order, or likeliest first and equal ones by id. */
  #candidates(scores: Float64Array, probabilities: Float64Array): number[] {
    const V = scores.length;
    const k = Math.min(this.topK ?? V, V);
    if (k === V && this.topP === null) return Array.from({ length: V }, (_, token) => token);
    // Only the candidates are sorted: to sort a large vocabulary takes longer than many steps. The less likely tokens
    // together have less probability than 1 - topP, so none of them is needed.
    const values = k < V ? scores : probabilities;
    const least = k < V ? (scores.toSorted()[V - k] as number) : ((1 - (this.topP ?? 1)) / V) * sum([...probabilities]);
    const tokens: number[] = [];
    values.forEach((value, token) => value >= least && tokens.push(token));
    tokens.sort((a, b) => (scores[b] as number) - (scores[a] as number) || a - b);
    const kept = tokens.slice(0, k);
    if (this.topP === null) return kept;
    const weights = kept.map((token) => probabilities[token] as number);
    const total = sum(k < V ? weights : [...probabilities]);
    const reached = cumulated(weights.map((weight) => weight / total));
    const { topP } = this;
    const place = reached.findIndex((part) => part >= topP);
    return place < 0 ? kept : kept.slice(0, place + 1);
  }
}

function sum(values: number[]): number {
  return values.reduce((all, value) => all + value, 0);
}

function cumulated(values: number[]): number[] {
  let all = 0;
  return values.map((value) => (all += value));
}
