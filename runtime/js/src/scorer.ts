/** Score whole documents, one after another. */

import { ArgumentError, OptionError } from "./errors.js";
import type { EvaluationSettings } from "./evaluation.js";
import type { Memory } from "./memory.js";
import { counted, shown } from "./messages.js";
import type { Engine } from "./engine.js";
import { asDocument, isText, TokenReader, type Document, type Documents, type DocumentSource } from "./documents.js";
import { detailOf, noDetail, numbersOf, Sum, totalScore, warningNotFinite, type TokenScores } from "./scores.js";

/** A scorer of documents; each has its own memory. */
export class Scorer {
  readonly #purpose: "score" | "detail";
  readonly #longestStep: number;

  /**
   * @param top - number of likeliest tokens to list, with rank and entropy; null: none, and no rank.
   * @param bos - id of a token that the model reads before each document, so that its first token has a score, too;
   *     null: the begin token before a text, if the tokenizer's own rule puts it there; false: none.
   */
  constructor(
    private readonly engine: Engine,
    private readonly evaluation: EvaluationSettings,
    private readonly top: number | null,
    private readonly bos: number | false | null,
  ) {
    if (typeof bos === "number" && !(Number.isInteger(bos) && bos >= 0 && bos < engine.bundle.model.vocab_size)) {
      throw new OptionError(`bos is ${bos}, expected 0 to ${engine.bundle.model.vocab_size - 1}.`);
    }
    this.#purpose = top === null ? "score" : "detail";
    this.#longestStep = engine.longestStep(this.#purpose, evaluation.segmentLen);
  }

  /** Yield the scores of every document's tokens, step by step. */
  async *tokens(documents: Documents): AsyncGenerator<TokenScores> {
    if (this.top !== null) await this.engine.checkTop(this.top);
    let number = 0;
    for await (const given of documents as AsyncIterable<DocumentSource | Document>) {
      const document = asDocument(given, number);
      const reader = new TokenReader(document, this.engine.tokenizer, this.engine.bundle.model.vocab_size);
      const memory = await this.engine.newMemory(this.evaluation);
      try {
        const { adds_begin: addsBegin, begin } = this.engine.bundle.tokenizer;
        const own = addsBegin && isText(document.source) ? (begin?.id ?? null) : null;
        const bos = this.bos === false ? null : (this.bos ?? own);
        yield* this.#document(document.name, number, bos, reader, memory);
      } finally {
        memory.release();
        await reader.close();
      }
      number += 1;
    }
  }

  async *#document(
    name: string,
    number: number,
    bos: number | null,
    reader: TokenReader,
    memory: Memory,
  ): AsyncGenerator<TokenScores> {
    const { bidirectional } = this.evaluation.document;
    const longest = this.evaluation.longestDocument;
    let held = bos;
    const before = held === null ? 0 : 1;
    if (longest !== null && !this.evaluation.restart && (await reader.has(longest + 1 - before))) {
      this.#refuseLonger(name, bos !== null);
    }
    let position = 0; // index of the next target
    let first: number | null = null;
    if (held === null) {
      const ids = (await reader.take(1)).ids;
      held = first = ids[0] ?? null;
      position = ids.length;
    }
    const nats = new Sum();
    let warned = false;
    const part = (scored: Partial<TokenScores>, ended: boolean): TokenScores => {
      const summary = ended
        ? totalScore(name, reader.counts, position, before ? 0 : 1, nats.value, this.evaluation)
        : null;
      const none = { index: [], tokens: [], starts: [], ends: [], logProbs: new Float32Array(0), context: [] };
      const scores = {
        document: name,
        number,
        ...none,
        ...(this.top === null ? {} : noDetail()),
        ...scored,
        summary,
        first,
      };
      first = null;
      return scores;
    };
    if (held === null || !(await reader.has(1))) {
      yield part({}, true);
      return;
    }
    for (let ended = false; !ended;) {
      if (memory.room === 0) {
        this.#refuseLonger(name, bos !== null);
        memory.restart();
      }
      const most = Math.min(this.#longestStep, memory.room);
      const piece = await reader.take(most);
      if (bidirectional && piece.ids.length === most) this.#refuseLonger(name, bos !== null);
      const targets = piece.ids.slice();
      const tokens = [held, ...piece.ids.slice(0, -1)];
      held = piece.ids.at(-1) as number;
      if (bidirectional && most > targets.length) {
        tokens.push(held); // its prediction is dropped
        targets.push(0);
      }
      const context = memory.context(tokens.length).slice(0, piece.ids.length);
      const outputs = await this.engine.step(this.#purpose, memory, tokens, targets);
      const all = numbersOf(outputs, "log_prob", "float32", tokens.length);
      if (!all.every(Number.isFinite)) {
        memory.restart(true);
        if (!warned) this.engine.warn(warningNotFinite(name, position + piece.ids.length));
        warned = true;
      }
      const logProbs = all.slice(0, piece.ids.length);
      for (const logProb of logProbs) nats.add(-logProb);
      const index = piece.ids.map((_, at) => position + at);
      position += piece.ids.length;
      ended = !(await reader.has(1));
      const detail = this.top === null ? {} : detailOf(outputs, piece.ids.length, this.top);
      const { starts, ends } = piece;
      yield part({ index, tokens: piece.ids, starts, ends, logProbs, context, ...detail }, ended);
    }
  }

  /** Raise TooLongError for a document with more tokens than can be scored, unless it may restart. */
  #refuseLonger(name: string, hasBos: boolean): void {
    const longest = this.evaluation.longestDocument ?? 0;
    const withBos = hasBos ? " with the one before it" : "";
    this.evaluation.checkLength(longest + 1, name, `more than ${counted(longest)} tokens${withBos}`);
  }
}

/** Refuse one document where a list is expected: a text would be scored letter by letter. */
export function several(documents: unknown, method: string): Documents {
  const isList =
    typeof documents === "object" &&
    documents !== null &&
    !(documents instanceof Blob) &&
    !ArrayBuffer.isView(documents) &&
    !(documents instanceof ReadableStream) &&
    !("source" in documents) &&
    (Symbol.iterator in documents || Symbol.asyncIterator in documents);
  if (isList) return documents as Documents;
  throw new ArgumentError(
    `${method}: expected a list of documents, found ${shown(documents)}.`,
    `Give a list: model.${method}([document])`,
  );
}
