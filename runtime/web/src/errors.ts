/**
 * Errors of the package, with the names of Python's `xlruntime`.
 *
 *     XlruntimeError
 *     ├── BundleError                  a bundle is broken, changed or too new
 *     │   └── BundleNotFoundError      the bundle, or its manifest, is missing
 *     ├── ProviderError                ONNX Runtime, or the chosen device, is missing
 *     ├── StateError                   a saved state is damaged or does not fit
 *     ├── TokenError                   token ids are outside the vocabulary
 *     ├── TextError                    text cannot be scored
 *     ├── VocabularyError              symbols or rules do not form a vocabulary
 *     ├── OptionError                  a setting is out of range
 *     └── ArgumentError                an argument is of another kind than expected
 *
 * Every message is one line: the place, the problem, the expected and found values, and a repair if there is one.
 */

/** The base of all errors that this package raises on purpose. */
export class XlruntimeError extends Error {
  override name = "XlruntimeError";
  /** The message without the repair. */
  readonly problem: string;
  /** What the user can do about it; null if nothing is known. */
  readonly repair: string | null;

  constructor(problem: string, repair: string | null = null, cause?: unknown) {
    super(repair === null ? problem : `${problem} ${repair}`, cause === undefined ? undefined : { cause });
    this.problem = problem;
    this.repair = repair;
  }
}

/** A bundle has a broken manifest, a file that differs from the manifest, or a newer format version. */
export class BundleError extends XlruntimeError {
  override name = "BundleError";
}

/** The place does not lead to a bundle. */
export class BundleNotFoundError extends BundleError {
  override name = "BundleNotFoundError";
}

/** ONNX Runtime or the chosen device is missing. */
export class ProviderError extends XlruntimeError {
  override name = "ProviderError";
}

/** A saved stream is damaged, or was saved from another bundle or under other settings. */
export class StateError extends XlruntimeError {
  override name = "StateError";
}

/** Token ids lie outside the vocabulary. */
export class TokenError extends XlruntimeError {
  override name = "TokenError";
}

/** Text is not valid UTF-8, too long or empty, or the bundle has no tokenizer for it. */
export class TextError extends XlruntimeError {
  override name = "TextError";
}

/** Symbols are empty, duplicate or not of the vocabulary's kind; the message lists all problems. */
export class VocabularyError extends XlruntimeError {
  override name = "VocabularyError";
}

/** A setting is out of range, or settings contradict each other; the message lists all problems. */
export class OptionError extends XlruntimeError {
  override name = "OptionError";
}

/** An argument is of another kind than expected, such as one text instead of a list of texts. */
export class ArgumentError extends XlruntimeError {
  override name = "ArgumentError";
}

/** The class of an error that a reader raises. */
export type ErrorClass = new (problem: string, repair?: string | null, cause?: unknown) => XlruntimeError;
