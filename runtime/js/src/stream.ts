/** Streams: one document each, with its own memory; they take pieces of any size, and can be saved. */

import { OptionError, TextError } from "./errors.js";
import { refuseOthers, type EvaluationSettings } from "./evaluation.js";
import type { Drawing, Ended } from "./generation.js";
import { HeldText } from "./held_text.js";
import type { Memory } from "./memory.js";
import { counted } from "./messages.js";
import type { Engine } from "./engine.js";
import { inTurn, type Tensors } from "./onnxruntime.js";
import { ruleOf, type Sampling, type SamplingOptions } from "./sampling_options.js";
import { detailOf, joinDetail, lastOf, numbersOf, warningNotFinite, type Detail, type StreamScores } from "./scores.js";
import { asIds, checkIds, utf8Bytes, type Ids } from "./tokenizers/tokenizer.js";

/** The next piece of a document: text, bytes or token ids. */
export type Piece = string | Uint8Array | Ids;

/** What else is returned for each token. */
export interface FeedOptions {
  top?: number | null;
}

function likeliest(method: string, { top = null, ...others }: FeedOptions): number | null {
  refuseOthers(method, others, "top");
  return top;
}

/** How many tokens are drawn, and how. */
export interface GenerateOptions {
  maxTokens: number;
  sampling?: Sampling | SamplingOptions;
  /** Whether generation goes on after tokens that end a text. */
  ignoreEos?: boolean;
}

/** How a text is continued; it ends before the first of the texts `stop`. */
export interface GenerateTextOptions extends GenerateOptions {
  stop?: readonly string[];
}

const NAME = "the stream";
const NO_BYTES: Uint8Array = new Uint8Array(0);

/**
 * One document of any length at constant memory.
 *
 * A feed's last token has no target yet: the stream holds it, and runs it when the next token arrives. It also holds the
 * end of a text whose tokens may still change, so pieces may be cut anywhere. Methods wait for each other, so that calls
 * take effect in their order. If one fails, the stream is as it was before it.
 */
export class Stream {
  readonly #alone = inTurn();
  #held: number | null = null;
  #taken = 0;
  #text: HeldText;
  #memory: Memory;

  private constructor(
    private readonly engine: Engine,
    readonly evaluation: EvaluationSettings,
    memory: Memory,
  ) {
    this.#memory = memory;
    this.#text = new HeldText(engine.tokenizer, NAME);
  }

  /** Use `Model.stream`. */
  static async open(engine: Engine, evaluation: EvaluationSettings, capacity?: number): Promise<Stream> {
    if (evaluation.document.full_document) {
      throw new OptionError(
        `${engine.where}: this model reads each document in one step and carries no memory, so it cannot stream.`,
        "Use Model.score, Model.scoreTokens or Model.generate on whole documents.",
      );
    }
    const memory = await engine.newMemory(evaluation, capacity);
    if (evaluation.segmentationMatters && memory.maxSegment < evaluation.segmentLen) {
      throw new OptionError(
        `a capacity of ${capacity} slots would cut segments of ${evaluation.segmentLen} tokens, on which the scores ` +
          "depend without same_length.",
        `Give at least ${evaluation.capacity}.`,
      );
    }
    return new Stream(engine, evaluation, memory);
  }

  /** Use `Model.restore`. */
  static async restore(engine: Engine, raw: Uint8Array, capacity?: number, name = "the state"): Promise<Stream> {
    const { readState } = await import("./state.js"); // few streams are saved
    const { evaluation, counters, tensors, held, begun } = await readState(engine.bundle, raw, name);
    const stream = await Stream.open(engine, evaluation, capacity ?? counters.capacity);
    stream.#memory.load(tensors, counters);
    stream.#held = counters.pending;
    stream.#taken = counters.position[0] as number;
    [stream.#text.held, stream.#text.begun] = [held, begun];
    return stream;
  }

  /** Number of tokens taken of the document, the held one included. */
  get position(): number {
    return this.#taken;
  }

  /** Id of the token that is held until the next one arrives; null before the first token. */
  get pending(): number | null {
    return this.#held;
  }

  /** How often a text without a boundary, of more than 4,096 bytes, was cut: the tokens there may be others. */
  get unsettledCuts(): number {
    return this.#text.unsettledCuts;
  }

  /** Slots of the largest ring. */
  get capacity(): number {
    return this.#memory.plan.capacity;
  }

  /** Bytes of the carried memory, which does not grow. */
  get nbytes(): number {
    return this.#memory.nbytes;
  }

  /**
   * Take the next piece of the document, of any length, and return the scores of the tokens that it settles.
   *
   * Pieces may be cut anywhere: the tokens are those of the whole text. What a later piece could still change is held,
   * such as the last word; `preview` shows it, and `flush` ends the text. Token ids end it, too.
   *
   * @param options - `top`: number of likeliest tokens to list for each token, with rank and entropy.
   * @throws OptionError - an unknown name.
   * @throws TokenError - an id is outside the vocabulary.
   * @throws TextError - the text cannot be tokenized, the tokenizer cannot say which tokens a longer text keeps, or the
   *     document gets longer than the model can read.
   */
  async feed(piece: Piece, options: FeedOptions = {}): Promise<StreamScores> {
    const top = likeliest("feed", options);
    const take = (raw: Uint8Array): number[] => this.#text.take(raw, this.#held).ids;
    return this.#changing(() => this.#score(this.#next(piece, take), top));
  }

  /** Take the held text as if the text ended here, and return its scores. A last line stays open until its newline. */
  async flush(options: FeedOptions = {}): Promise<StreamScores> {
    const top = likeliest("flush", options);
    return this.#changing(() => this.#score(this.#end(), top));
  }

  /** Return the scores that `flush` would return, without changing the stream. */
  async preview(options: FeedOptions = {}): Promise<StreamScores> {
    const top = likeliest("preview", options);
    return this.#trying((twin) => twin.#score(twin.#end(), top));
  }

  /**
   * Return the scores of a text as if the document ended after it, without changing the stream: to compare continuations.
   *
   * A token that begins in the held text and ends in this one counts; tokens before it are only read.
   */
  async scoreContinuation(piece: Piece, options: FeedOptions = {}): Promise<StreamScores> {
    const top = likeliest("scoreContinuation", options);
    return this.#trying(async (twin) => {
      let context = twin.#text.copy().end(twin.#held).ids.length;
      const ids = twin.#next(piece, (raw) => {
        const found = twin.#text.continued(twin.#held, raw);
        ({ context } = found);
        return found.ids;
      });
      return lastOf(await twin.#score(ids, top), ids.length - context);
    });
  }

  /** Return an independent stream at the same place of the same document. The memory is shared, and never copied. */
  async fork(): Promise<Stream> {
    return this.#alone(async () => this.#copy());
  }

  /**
   * Continue the document, after `prompt` if given: yield token ids as they are drawn.
   *
   * Drawn tokens become part of the document: a later feed or generate goes on after them. Generation ends at a token
   * that ends a text: it becomes part of the document, too, but is not yielded.
   *
   * @returns why it ended: `stop`, or `length` after `maxTokens`.
   * @throws OptionError - an unknown name, maxTokens is negative, or the sampling is out of range.
   * @throws TextError - there is nothing to continue, or the document could get longer than the model can read.
   */
  async *generate(prompt: Piece | null, options: GenerateOptions): AsyncGenerator<number, Ended> {
    const { drawIds } = await import("./generation.js");
    return yield* drawIds(await this.drawing(prompt, options));
  }

  /** Continue the document as `generate` does, and yield the text, which ends before the first of the texts `stop`. */
  async *generateText(prompt: Piece | null, options: GenerateTextOptions): AsyncGenerator<string, Ended> {
    const { stop = [], ...others } = options;
    const { drawText } = await import("./generation.js");
    return yield* drawText(await this.drawing(prompt, others), stop, prompt);
  }

  /** Use `generate` or `generateText`: reads a prompt, and returns what draws tokens after it. */
  async drawing(prompt: Piece | null, options: GenerateOptions): Promise<Drawing> {
    const { maxTokens, sampling, ignoreEos = false, ...others } = options;
    refuseOthers("generate", others, "maxTokens, sampling or ignoreEos");
    const rule = ruleOf(maxTokens, sampling);
    const before = await this.#changing(async () => {
      const ids = this.#next(prompt ?? NO_BYTES, (raw) => this.#text.end(this.#held, raw).ids);
      const all = this.#held === null ? ids : [this.#held, ...ids];
      if (!all.length) {
        throw new TextError(
          "nothing to continue: the prompt is empty and the stream has read nothing.",
          "Give a prompt.",
        );
      }
      this.#checkLength(ids.length + maxTokens, `the document with ${counted(maxTokens)} tokens more`);
      const targets = this.#take(ids, "the prompt");
      for (let at = 0; at < targets.length;) at += await this.#runSegment(targets, at).then(({ n }) => n);
      this.#text.restart(true);
      return all;
    });
    const step = (draw: (logits: Float32Array) => number): Promise<number> =>
      this.#changing(async () => {
        this.#makeRoom();
        const token = draw(await this.engine.logits(this.#memory, [this.#held as number]));
        this.#held = token;
        this.#taken += 1;
        return token;
      });
    return { engine: this.engine, before, maxTokens, rule, ignoreEos, step };
  }

  /** Forget the document; the next feed starts a new one. */
  async reset(): Promise<void> {
    await this.#alone(async () => {
      this.#memory.restart(true); // a restored stream may have any numbers
      [this.#held, this.#taken] = [null, 0];
      this.#text = new HeldText(this.engine.tokenizer, NAME);
    });
  }

  /** Return the state (a safetensors file, with the held text), from which `Model.restore` goes on, here and in Python. */
  async save(): Promise<Uint8Array<ArrayBuffer>> {
    return this.#alone(async () => {
      const { writeState } = await import("./state.js");
      return writeState(this.engine.bundle, this.#memory, this.#held, [this.#taken], this.#text);
    });
  }

  /** Free the memory of the stream. Only buffers on a GPU need this; JavaScript frees all others. */
  async close(): Promise<void> {
    await this.#alone(async () => this.#memory.release());
  }

  /** Run `call` alone, and undo what it did if it fails. */
  async #changing<T>(call: () => Promise<T>): Promise<T> {
    return this.#alone(async () => {
      const before = this.#copy();
      try {
        return await call();
      } catch (error) {
        [this.#memory, before.#memory] = [before.#memory, this.#memory];
        [this.#held, this.#taken, this.#text] = [before.#held, before.#taken, before.#text];
        throw error;
      } finally {
        before.#memory.release();
      }
    });
  }

  /** Run `call` on a stream at the same place. */
  async #trying<T>(call: (twin: Stream) => Promise<T>): Promise<T> {
    return this.#alone(async () => {
      const twin = this.#copy();
      try {
        return await call(twin);
      } finally {
        twin.#memory.release();
      }
    });
  }

  #copy(): Stream {
    const twin = new Stream(this.engine, this.evaluation, this.#memory.copy());
    [twin.#held, twin.#taken, twin.#text] = [this.#held, this.#taken, this.#text.copy()];
    return twin;
  }

  /** Return the ids of the held text, which ends here, within the vocabulary. */
  #end(): number[] {
    const { ids } = this.#text.end(this.#held);
    checkIds(ids, this.engine.bundle.model.vocab_size, NAME, this.#taken);
    return ids;
  }

  /** Return the next ids of the document, within the vocabulary; `take` gives those of a text, ids end the held one. */
  #next(piece: Piece, take: (raw: Uint8Array) => number[]): number[] {
    const isText = typeof piece === "string" || piece instanceof Uint8Array;
    const ids = isText ? take(utf8Bytes(piece, NAME)) : [...this.#end(), ...asIds(piece, NAME)];
    if (!isText && piece.length) this.#text.restart(false);
    checkIds(ids, this.engine.bundle.model.vocab_size, NAME, this.#taken);
    return ids;
  }

  #checkLength(more: number, name: string): void {
    this.evaluation.checkLength(this.#memory.position + (this.#held === null ? 0 : 1) + more, name);
  }

  /** Hold the first token of a document, and return the rest of `ids` as targets. */
  #take(ids: number[], name: string): number[] {
    this.#checkLength(ids.length, name);
    if (this.#held !== null || !ids.length) return ids;
    this.#held = ids[0] as number;
    this.#taken = 1;
    return ids.slice(1);
  }

  /** If there are no positions left, restart. */
  #makeRoom(): void {
    if (this.#memory.room > 0) return;
    this.#checkLength(1, "the document");
    this.#memory.restart(true);
  }

  /** Score the document's next tokens. */
  async #score(ids: number[], k: number | null): Promise<StreamScores> {
    if (k !== null) await this.engine.checkTop(k);
    const details: Detail[] = [];
    const targets = this.#take(ids, "the document");
    const first = this.#taken;
    const logProbs = new Float32Array(targets.length);
    const context: number[] = [];
    for (let at = 0; at < targets.length;) {
      const { outputs, n, seen } = await this.#runSegment(targets, at, k === null ? "score" : "detail");
      const found = numbersOf(outputs, "log_prob", "float32", n);
      if (k !== null) details.push(detailOf(outputs, n, k));
      logProbs.set(found, at);
      context.push(...seen);
      if (!found.every(Number.isFinite)) {
        this.#memory.restart(true);
        this.engine.warn(warningNotFinite("the stream", this.#taken));
      }
      at += n;
    }
    const scores = { index: targets.map((_, at) => first + at), tokens: targets, logProbs, context };
    return { ...scores, ...(k === null ? {} : joinDetail(details)) };
  }

  /** Run the held token and the next segment of targets, from `at` on, but its last one, which is held then. */
  async #runSegment(
    targets: readonly number[],
    at: number,
    purpose = "score",
  ): Promise<{ outputs: Tensors; n: number; seen: number[] }> {
    this.#makeRoom();
    const longest = Math.min(this.#memory.maxSegment, this.engine.longestStep(purpose, this.evaluation.segmentLen));
    const segment = targets.slice(at, at + Math.min(longest, this.#memory.room));
    const seen = this.#memory.context(segment.length);
    const tokens = [this.#held as number, ...segment.slice(0, -1)];
    const outputs = await this.engine.step(purpose, this.#memory, tokens, segment);
    this.#held = segment.at(-1) as number;
    this.#taken += segment.length;
    return { outputs, n: segment.length, seen };
  }
}
