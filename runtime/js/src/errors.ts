/**
 * Errors of the package, one class for each code of docs/bundle_format.md, with the names of Python's `xlruntime`.
 *
 * Every message is one line: the place, the problem, the expected and found values, and a hint if there is one.
 * Characters that a terminal cannot show are escaped, and the middle of a long message or hint is left out.
 */

import { bounded } from "./messages.js";

/** The base of all errors that this package raises on purpose. */
export class XlruntimeError extends Error {
  override name = "XlruntimeError";
  /** The word for this kind of error in all runtimes. */
  readonly code: string = "runtime";
  /** The message without the hint. */
  readonly problem: string;
  /** What the user can do about it; null if nothing is known. */
  readonly hint: string | null;

  constructor(problem: string, hint: string | null = null, cause?: unknown) {
    const line = bounded(problem);
    const advice = hint === null ? null : bounded(hint, 450);
    super(advice === null ? line : `${line} ${advice}`, cause === undefined ? undefined : { cause });
    this.problem = line;
    this.hint = advice;
  }
}

/** The base of all problems of a bundle. */
export class BundleError extends XlruntimeError {
  override name = "BundleError";
}

/** The place does not lead to a bundle. */
export class BundleNotFoundError extends BundleError {
  override name = "BundleNotFoundError";
  override readonly code = "bundle_not_found";
}

/** The manifest is of another format, contradicts itself, or requires what this runtime lacks. */
export class BundleFormatError extends BundleError {
  override name = "BundleFormatError";
  override readonly code = "bundle_format";
}

/** A file of the bundle is missing, leads out of the folder, or differs from its digest. */
export class BundleDamagedError extends BundleError {
  override name = "BundleDamagedError";
  override readonly code = "bundle_damaged";
}

/** The bundle is not the one that the caller expects. */
export class BundleMismatchError extends BundleError {
  override name = "BundleMismatchError";
  override readonly code = "bundle_mismatch";
}

/** A graph cannot be loaded or run, or it is not the graph that the manifest describes. */
export class BundleGraphError extends BundleError {
  override name = "BundleGraphError";
  override readonly code = "bundle_graph";
}

/** The base of all problems of a saved stream. */
export class StateError extends XlruntimeError {
  override name = "StateError";
}

/** The bytes are not a saved stream, or differ from what was saved. */
export class StateDamagedError extends StateError {
  override name = "StateDamagedError";
  override readonly code = "state_damaged";
}

/** A stream was saved from another bundle, by another version, or under other settings. */
export class StateMismatchError extends StateError {
  override name = "StateMismatchError";
  override readonly code = "state_mismatch";
}

/** A setting is out of range, or settings contradict each other; the message lists all problems. */
export class OptionError extends XlruntimeError {
  override name = "OptionError";
  override readonly code = "option";
}

/** Token ids lie outside the vocabulary. */
export class TokenError extends XlruntimeError {
  override name = "TokenError";
  override readonly code = "token";
}

/** Text is not valid UTF-8 or empty, or the bundle has no tokenizer that can be used here. */
export class TextError extends XlruntimeError {
  override name = "TextError";
  override readonly code: string = "text";
}

/** A document is longer than the model reads. */
export class TooLongError extends TextError {
  override name = "TooLongError";
  override readonly code = "too_long";
}

/** A vocabulary or a tokenizer's file is not one; the message lists all problems. */
export class VocabularyError extends XlruntimeError {
  override name = "VocabularyError";
  override readonly code = "vocabulary";
}

/** An argument is of another kind than expected, such as one text instead of a list of texts. */
export class ArgumentError extends XlruntimeError {
  override name = "ArgumentError";
  override readonly code = "argument";
}

/** ONNX Runtime or the chosen device is missing. */
export class ProviderError extends XlruntimeError {
  override name = "ProviderError";
  override readonly code = "provider";
}

/** A file cannot be read, such as after a lost connection. */
export class FileError extends XlruntimeError {
  override name = "FileError";
  override readonly code = "file";
}

/** There is too little memory. */
export class OutOfMemoryError extends XlruntimeError {
  override name = "OutOfMemoryError";
  override readonly code = "memory";
}
