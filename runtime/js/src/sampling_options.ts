/** How tokens are drawn from logits; `sampling.ts` draws them. */

import { ArgumentError, OptionError } from "./errors.js";
import { refuseOthers } from "./evaluation.js";
import { shown } from "./messages.js";

const BITS = (1n << 64n) - 1n;
const LARGEST_PENALTY = 1e9; // farther from 1, products of logits are not finite

/** How tokens are drawn. */
export interface SamplingOptions {
  /** Divisor of the logits; 0 takes the likeliest token. */
  temperature?: number;
  /** Draw only from the k likeliest tokens. */
  topK?: number | null;
  /** Draw only from the likeliest tokens that together reach this part of the probability. */
  topP?: number | null;
  /** Draw only from tokens at least so many times as likely as the likeliest one; 0: from all. */
  minP?: number;
  /** Divisor of the positive logits of recent tokens, and factor of negative ones; above 1, tokens repeat less often. */
  repetitionPenalty?: number;
  /** Number of tokens that count as recent, of the prompt and of what was drawn after it. */
  repetitionWindow?: number;
  /** Seed of the random draws, 0 to 2^64 - 1; null: another one for each run. */
  seed?: number | bigint | null;
}

/** Return the rule by which so many tokens are drawn; raise OptionError if one of them is out of range. */
export function ruleOf(maxTokens: number, sampling: Sampling | SamplingOptions | undefined): Sampling {
  if (!(maxTokens >= 0)) throw new OptionError(`max_tokens is ${maxTokens}, at least 0 is needed.`);
  return sampling instanceof Sampling ? sampling : new Sampling(sampling);
}

/** The rule for drawing tokens: from probabilities at `temperature`, cut by `topK`, then by `topP`, then by `minP`. */
export class Sampling {
  readonly temperature: number;
  readonly topK: number | null;
  readonly topP: number | null;
  readonly seed: bigint | null;
  readonly minP: number;
  readonly repetitionPenalty: number;
  readonly repetitionWindow: number;

  /**
   * @throws ArgumentError - not an object.
   * @throws OptionError - unknown names, or values that are out of range; lists all of them.
   */
  constructor(options: SamplingOptions = {}) {
    if (typeof options !== "object" || options === null) {
      throw new ArgumentError(`sampling is ${shown(options)}, expected an object.`);
    }
    const { temperature = 1, topK = null, topP = null, seed = null, minP = 0, ...more } = options;
    const { repetitionPenalty = 1, repetitionWindow = 64, ...others } = more;
    const names = "temperature, topK, topP, seed, minP, repetitionPenalty, repetitionWindow";
    refuseOthers("sampling", others, names);
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
    if (!(minP >= 0 && minP <= 1)) problems.push(`min_p is ${minP}, expected 0 to 1`);
    if (!(repetitionPenalty >= 1 / LARGEST_PENALTY && repetitionPenalty <= LARGEST_PENALTY)) {
      problems.push(`repetition_penalty is ${repetitionPenalty}, expected 1e-9 to 1e9`);
    }
    if (!(repetitionWindow >= 1 && Number.isInteger(repetitionWindow))) {
      problems.push(`repetition_window is ${repetitionWindow}, at least 1 is needed`);
    }
    if (problems.length) throw new OptionError(`sampling: ${problems.join("; ")}.`);
    this.temperature = temperature;
    this.topK = topK;
    this.topP = topP;
    this.seed = seed === null ? null : BigInt(seed);
    [this.minP, this.repetitionPenalty, this.repetitionWindow] = [minP, repetitionPenalty, repetitionWindow];
  }
}
