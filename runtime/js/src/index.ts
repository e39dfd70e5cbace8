/**
 * Run xlexport bundles on ONNX Runtime, in browsers and in Node.
 *
 *     import { load } from "xlruntime";
 *
 *     const model = await load("bundle");
 *     const stream = await model.stream();
 *     const { logProbs } = await stream.feed("Call me Ishmael. "); // natural logarithms, one a token
 */

export type { Bundle, Feed, Graph, MemoryEntry, Progress } from "./bundle.js";
export * from "./errors.js";
export type { EvaluationSettings, Ring, RingSizes, Setting, Settings, SettingValue } from "./evaluation.js";
export type { CheckResult } from "./known_answers.js";
export { load, Model, type BundlePlace, type LoadOptions, type ScoreOptions } from "./model.js";
export type { Device } from "./onnxruntime.js";
export { Sampling, type SamplingOptions } from "./sampling_options.js";
export type { Document, Documents, DocumentSource } from "./documents.js";
export { bits, type Detail, type DocumentScore, type Scores, type StreamScores, type TokenScores } from "./scores.js";
export { FilesSource, UrlSource, type Source } from "./source.js";
export type { Ended } from "./generation.js";
export { Stream, type FeedOptions, type GenerateOptions, type GenerateTextOptions, type Piece } from "./stream.js";
export type { StepArrays, StepStream } from "./step_stream.js";
export type { Libraries } from "./tokenizers/libraries.js";
export { TextCounts, type Ids, type Tokenizer, type TokenPiece } from "./tokenizers/tokenizer.js";
