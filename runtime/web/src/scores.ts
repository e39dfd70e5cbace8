/** The results of scoring: scores of tokens as they become known, and totals. */

import type { EvaluationSettings, SettingValue } from "./evaluation.js";
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

/** Return the bits of natural logarithms of probabilities. */
export function bits(logProbs: Iterable<number>): number {
  let nats = 0;
  for (const logProb of logProbs) nats -= logProb;
  return nats / Math.LN2;
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
  logProbSum: number,
  evaluation: EvaluationSettings,
): DocumentScore {
  const scored = Math.max(tokens - unscored, 0);
  const nats = 0 - logProbSum;
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
