/** The results of scoring: scores of tokens as they become known, and totals. */

import { BundleGraphError } from "./errors.js";
import type { EvaluationSettings, SettingValue } from "./evaluation.js";
import type { Tensors } from "./onnxruntime.js";
import { product } from "./safetensors.js";
import type { TextCounts } from "./tokenizers/tokenizer.js";

/** Scores of consecutive tokens that a stream read. */
export interface Scores {
  /** Places of the tokens in the document, from 0. */
  index: number[];
  /** Token ids. */
  tokens: number[];
  /** Natural logarithms of the tokens' probabilities. */
  logProbs: Float32Array;
  /** Number of tokens of the document that each prediction attended to. */
  context: number[];
}

/** The detail of predictions: rank, entropy and likeliest tokens. */
export interface Detail {
  /** Rank of each token by probability among all tokens; 1 is the likeliest. */
  rank: number[];
  /** Entropy of each prediction, in nats. */
  entropy: Float32Array;
  /** The likeliest tokens of each prediction, best first. */
  topIds: number[][];
  /** Natural logarithms of their probabilities. */
  topLogProbs: Float32Array[];
}

/** Scores of consecutive tokens that a stream read; with detail if it was asked for. */
export interface StreamScores extends Scores, Partial<Detail> {}

/** Scores of consecutive tokens of one document. */
export interface TokenScores extends Scores, Partial<Detail> {
  /** The document's name; `number` is its place among the documents, from 0. */
  document: string;
  number: number;
  /** Where each token begins and ends in the document; null if the tokenizer does not say. */
  starts: number[] | null;
  ends: number[] | null;
  /** The document's total, in its last part; else null. */
  summary: DocumentScore | null;
  /** The document's first token, in its first part, if it has no context and so no score; else null. */
  first: number | null;
}

/** The score of a whole document. Ratios are null if the divisor is 0. */
export interface DocumentScore {
  document: string;
  tokens: number;
  scoredTokens: number;
  unknownTokens: number;
  words: number;
  chars: number;
  bytes: number;
  droppedChars: number;
  droppedBytes: number;
  scoredChars: number;
  scoredBytes: number;
  nats: number;
  bits: number;
  bitsPerByte: number | null;
  bitsPerChar: number | null;
  bitsPerToken: number | null;
  perplexity: number | null;
  segmentLen: number;
  settings: Readonly<Record<string, SettingValue>>;
}

/** A compensated sum in float64, so that the totals of long documents are exact up to rounding. */
export class Sum {
  #sum = 0;
  #lost = 0;

  add(value: number): void {
    const next = this.#sum + value;
    const [large, small] = Math.abs(this.#sum) >= Math.abs(value) ? [this.#sum, value] : [value, this.#sum];
    this.#lost += large - next + small;
    this.#sum = next;
  }

  get value(): number {
    return Number.isFinite(this.#sum) ? this.#sum + this.#lost : this.#sum;
  }
}

/** Return the bits of natural logarithms of probabilities. */
export function bits(logProbs: Iterable<number>): number {
  const nats = new Sum();
  for (const logProb of logProbs) nats.add(-logProb);
  return nats.value / Math.LN2;
}

/** Return the detail of no tokens. */
export function noDetail(): Detail {
  return { rank: [], entropy: new Float32Array(0), topIds: [], topLogProbs: [] };
}

/** The arrays of the types that outputs have. */
interface Arrays {
  float32: Float32Array;
  int64: BigInt64Array;
}

/**
 * Return the numbers of an output of a step.
 *
 * @throws BundleGraphError - there are not `count` numbers of this type.
 */
export function numbersOf<D extends keyof Arrays>(outputs: Tensors, name: string, dtype: D, count: number): Arrays[D] {
  const tensor = outputs[name];
  if (tensor?.type === dtype && product(tensor.dims) === count) return tensor.data as Arrays[D];
  const problem = `${name} of a graph is not ${count} numbers of ${dtype}.`;
  throw new BundleGraphError(problem, "Convert the checkpoint again.");
}

/** Return the detail of the first `n` predictions of a step, with the `k` likeliest tokens of each. */
export function detailOf(outputs: Tensors, n: number, k: number): Detail {
  const S = outputs["log_prob"]?.dims.at(-1) ?? 0;
  const listed = Math.max(outputs["top_ids"]?.dims.at(-1) ?? 0, k);
  const places = Array.from({ length: n }, (_, at) => at);
  const ids = numbersOf(outputs, "top_ids", "int64", S * listed);
  const values = numbersOf(outputs, "top_log_probs", "float32", S * listed);
  return {
    rank: Array.from(numbersOf(outputs, "rank", "int64", S).slice(0, n), Number),
    entropy: numbersOf(outputs, "entropy", "float32", S).slice(0, n),
    topIds: places.map((at) => Array.from(ids.slice(at * listed, at * listed + k), Number)),
    topLogProbs: places.map((at) => values.slice(at * listed, at * listed + k)),
  };
}

/** Return the last scores, at most `n`. */
export function lastOf(scores: StreamScores, n: number): StreamScores {
  const from = Math.max(0, scores.tokens.length - n);
  return Object.fromEntries(
    Object.entries(scores).map(([name, values]) => [name, (values as number[]).slice(from)]),
  ) as unknown as StreamScores;
}

/** Return the detail of consecutive parts as one. */
export function joinDetail(parts: readonly Detail[]): Detail {
  return {
    rank: parts.flatMap((part) => part.rank),
    entropy: Float32Array.from(parts.flatMap((part) => [...part.entropy])),
    topIds: parts.flatMap((part) => part.topIds),
    topLogProbs: parts.flatMap((part) => part.topLogProbs),
  };
}

/**
 * Return the total of a document that has been read to its end.
 *
 * @param unscored - 1 if the first token had no context, else 0.
 */
export function totalScore(
  document: string,
  counts: TextCounts,
  tokens: number,
  unscored: number,
  nats: number,
  evaluation: EvaluationSettings,
): DocumentScore {
  const scored = Math.max(tokens - unscored, 0);
  const inBits = nats / Math.LN2;
  const [chars, bytes] = unscored ? [counts.firstTokenChars, counts.firstTokenBytes] : [0, 0];
  const scoredChars = Math.max(counts.chars - chars - counts.droppedChars, 0);
  const scoredBytes = Math.max(counts.bytes - bytes - counts.droppedBytes, 0);
  return {
    document,
    tokens,
    scoredTokens: scored,
    unknownTokens: counts.unknownTokens,
    words: counts.words,
    chars: counts.chars,
    bytes: counts.bytes,
    droppedChars: counts.droppedChars,
    droppedBytes: counts.droppedBytes,
    scoredChars,
    scoredBytes,
    nats,
    bits: inBits,
    bitsPerByte: ratio(inBits, scoredBytes),
    bitsPerChar: ratio(inBits, scoredChars),
    bitsPerToken: ratio(inBits, scored),
    perplexity: scored ? Math.exp(nats / scored) : null,
    segmentLen: evaluation.segmentLen,
    settings: evaluation.values,
  };
}

function ratio(amount: number, count: number): number | null {
  return count > 0 ? amount / count : null;
}

/** Return a warning about scores that are not finite. */
export function warningNotFinite(name: string, position: number): string {
  return `${name}: scores that are not finite before token ${position}; its memory was refilled with first values.`;
}
