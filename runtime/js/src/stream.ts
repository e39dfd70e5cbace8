/** Streams: one document each, with its own memory; they take pieces of any size, and can be saved. */

import { OptionError, TextError } from "./errors.js";
import { refuseOthers, type EvaluationSettings } from "./evaluation.js";
import type { Memory } from "./memory.js";
import { counted } from "./messages.js";
import type { Engine } from "./engine.js";
import type { OrtTensor } from "./onnxruntime.js";
import { Sampling, type SamplingOptions } from "./sampling.js";
import { detailOf, joinDetail, warningNotFinite, type Detail, type StreamScores } from "./scores.js";
import { encode, type Ids } from "./tokenizers/tokenizer.js";

/** The next piece of a document: text, bytes or token ids. */
export type Piece = string | Uint8Array | Ids;

/** What else is returned for each token. */
export interface FeedOptions {
  detail?: number | null;
}

function likeliest(method: string, { detail = null, ...others }: FeedOptions): number | null {
  refuseOthers(method, others, "detail");
  return detail;
}

/** How many tokens are drawn, and how. */
export interface GenerateOptions {
  maxTokens: number;
  sampling?: Sampling | SamplingOptions;
}

/**
 * One document of any length at constant memory.
 *
 * A feed's last token has no target yet: the stream holds it, and runs it when the next token arrives. Methods wait for
 * each other, so that calls take effect in their order. If one fails, the stream is as it was before it.
 */
export class Stream {
  #last: Promise<unknown> = Promise.resolve();
  #held: number | null = null;
  #taken = 0;

  #memory: Memory;

  private constructor(
    private readonly engine: Engine,
    readonly evaluation: EvaluationSettings,
    memory: Memory,
  ) {
    this.#memory = memory;
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
    const { evaluation, counters, tensors } = await readState(engine.bundle, raw, name);
    const stream = await Stream.open(engine, evaluation, capacity ?? counters.capacity);
    stream.#memory.load(tensors, counters);
    stream.#held = counters.pending;
    stream.#taken = counters.position;
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

  /** Slots of the largest ring. */
  get capacity(): number {
    return this.#memory.plan.capacity;
  }

  /** Bytes of the carried memory, which does not grow. */
  get nbytes(): number {
    return this.#memory.nbytes;
  }

  /**
   * Take the next piece of the document, of any length, and return the scores of its tokens.
   *
   * Bytes may be cut anywhere, other text between characters. For a vocabulary of words, cut between words. With a
   * tokenizer.json or a SentencePiece model, the tokens at a cut may differ from the tokens of the whole text.
   *
   * @param options - `detail`: number of likeliest tokens to list for each token, with rank and entropy.
   * @throws OptionError - an unknown name.
   * @throws TokenError - an id is outside the vocabulary.
   * @throws TextError - the text cannot be tokenized, or the document gets longer than the model can read.
   */
  async feed(piece: Piece, options: FeedOptions = {}): Promise<StreamScores> {
    const detail = likeliest("feed", options);
    return this.#changing(() => this.#score(this.#ids(piece), detail));
  }

  /** Return the scores that `feed` would return, without changing the stream: to compare continuations. */
  async scoreContinuation(piece: Piece, options: FeedOptions = {}): Promise<StreamScores> {
    const detail = likeliest("scoreContinuation", options);
    return this.#alone(async () => {
      const before = this.#mark();
      try {
        return await this.#score(this.#ids(piece), detail);
      } finally {
        this.#goBack(before);
      }
    });
  }

  /** Return an independent stream at the same place of the same document. The memory is shared, and never copied. */
  async fork(): Promise<Stream> {
    return this.#alone(async () => {
      const twin = new Stream(this.engine, this.evaluation, this.#memory.copy());
      [twin.#held, twin.#taken] = [this.#held, this.#taken];
      return twin;
    });
  }

  /**
   * Continue the document, after `prompt` if given: yield token ids as they are drawn.
   *
   * Drawn tokens become part of the document: a later feed or generate goes on after them.
   *
   * @throws OptionError - an unknown name, maxTokens is negative, or the sampling is out of range.
   * @throws TextError - there is nothing to continue, or the document could get longer than the model can read.
   */
  async *generate(prompt: Piece | null, options: GenerateOptions): AsyncGenerator<number> {
    const { maxTokens, sampling, ...others } = options;
    refuseOthers("generate", others, "maxTokens or sampling");
    if (!(maxTokens >= 0)) throw new OptionError(`max_tokens is ${maxTokens}, at least 0 is needed.`);
    const rule = sampling instanceof Sampling ? sampling : new Sampling(sampling);
    await this.#changing(async () => {
      const ids = this.#ids(prompt ?? []);
      if (this.#held === null && !ids.length) {
        throw new TextError(
          "nothing to continue: the prompt is empty and the stream has read nothing.",
          "Give a prompt.",
        );
      }
      this.#checkLength(ids.length + maxTokens, `the document with ${counted(maxTokens)} tokens more`);
      const targets = this.#take(ids, "the prompt");
      for (let at = 0; at < targets.length;) at += await this.#runSegment(targets, at).then(({ n }) => n);
    });
    const random = rule.random();
    for (let drawn = 0; drawn < maxTokens; drawn++) {
      yield await this.#changing(async () => {
        this.#makeRoom();
        const token = rule.draw(await this.engine.logits(this.#memory, [this.#held as number]), random);
        this.#held = token;
        this.#taken += 1;
        return token;
      });
    }
  }

  /** Forget the document; the next feed starts a new one. */
  async reset(): Promise<void> {
    await this.#alone(async () => {
      this.#memory.restart(true); // a restored stream may have any numbers
      [this.#held, this.#taken] = [null, 0];
    });
  }

  /** Return the state (a safetensors file), from which `Model.restore` goes on, here and in Python. */
  async save(): Promise<Uint8Array<ArrayBuffer>> {
    return this.#alone(async () => {
      const { writeState } = await import("./state.js");
      return writeState(this.engine.fingerprint, this.#memory, this.#held, this.#taken);
    });
  }

  /** Free the memory of the stream. Only buffers on a GPU need this; JavaScript frees all others. */
  async close(): Promise<void> {
    await this.#alone(async () => this.#memory.release());
  }

  /** Run `call` after all calls before it. */
  async #alone<T>(call: () => Promise<T>): Promise<T> {
    const result = this.#last.then(call);
    this.#last = result.catch(() => undefined);
    return result;
  }

  /** Run `call` alone, and undo what it did if it fails. */
  async #changing<T>(call: () => Promise<T>): Promise<T> {
    return this.#alone(async () => {
      const before = this.#mark();
      try {
        const result = await call();
        before.memory.release();
        return result;
      } catch (error) {
        this.#goBack(before);
        throw error;
      }
    });
  }

  #mark(): { memory: Memory; held: number | null; taken: number } {
    return { memory: this.#memory.copy(), held: this.#held, taken: this.#taken };
  }

  #goBack(before: { memory: Memory; held: number | null; taken: number }): void {
    this.#memory.release();
    ({ memory: this.#memory, held: this.#held, taken: this.#taken } = before);
  }

  #ids(piece: Piece): number[] {
    const { tokenizer, bundle } = this.engine;
    return encode(piece, tokenizer, bundle.model.vocab_size, "the stream", this.#held, this.#taken);
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
    if (k !== null) await this.engine.checkDetail(k);
    const details: Detail[] = [];
    const targets = this.#take(ids, "the document");
    const first = this.#taken;
    const logProbs = new Float32Array(targets.length);
    const context: number[] = [];
    for (let at = 0; at < targets.length;) {
      const { outputs, n, seen } = await this.#runSegment(targets, at, k === null ? "score" : "detail");
      const found = outputs["log_prob"]?.data as Float32Array;
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

  /** Run the next segment of targets, from `at` on. */
  async #runSegment(
    targets: readonly number[],
    at: number,
    purpose = "score",
  ): Promise<{ outputs: Record<string, OrtTensor>; n: number; seen: number[] }> {
    this.#makeRoom();
    const longest = Math.min(this.#memory.maxSegment, this.engine.longestStep(purpose, this.evaluation.segmentLen));
    const segment = targets.slice(at, at + Math.min(longest, this.#memory.room));
    const seen = this.#memory.context(segment.length);
    return { outputs: await this.#run(purpose, segment), n: segment.length, seen };
  }

  /** Run the held token and all of `targets` but the last, which is held in its place. */
  async #run(purpose: string, targets: readonly number[]): Promise<Record<string, OrtTensor>> {
    const tokens = [this.#held as number, ...targets.slice(0, -1)];
    const outputs = await this.engine.step(purpose, this.#memory, tokens, targets);
    this.#held = targets.at(-1) as number;
    this.#taken += targets.length;
    return outputs;
  }
}
