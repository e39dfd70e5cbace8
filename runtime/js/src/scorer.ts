/** Score whole documents, one after another. */

import { ArgumentError, OptionError } from "./errors.js";
import type { EvaluationSettings } from "./evaluation.js";
import type { Memory } from "./memory.js";
import { counted, shown } from "./messages.js";
import type { Engine } from "./engine.js";
import { asDocument, isText, TokenReader, type Document, type Documents, type DocumentSource } from "./documents.js";
import {
  detailOf,
  noDetail,
  numbersOf,
  Sum,
  totalScore,
  warningNotFinite,
  type DocumentScore,
  type TokenScores,
} from "./scores.js";

/**
 * Yield the scores of every document's tokens, step by step; each document has its own memory.
 *
 * @param top - number of likeliest tokens to list, with rank and entropy; null: none, and no rank.
 * @param bos - id of a token that the model reads before each document, so that its first token has a score, too;
 *     null: the begin token before a text, if the tokenizer's own rule puts it there; false: none.
 */
export async function* scoreDocuments(
  engine: Engine,
  evaluation: EvaluationSettings,
  documents: Documents,
  top: number | null,
  bos: number | false | null,
): AsyncGenerator<TokenScores> {
  const { vocab_size: vocabSize } = engine.bundle.model;
  if (typeof bos === "number" && !(Number.isInteger(bos) && bos >= 0 && bos < vocabSize)) {
    throw new OptionError(`bos is ${bos}, expected 0 to ${vocabSize - 1}.`);
  }
  if (top !== null) await engine.checkTop(top);
  let number = 0;
  for await (const given of documents as AsyncIterable<DocumentSource | Document>) {
    const document = asDocument(given, number);
    const reader = new TokenReader(document, engine.tokenizer, vocabSize);
    const memory = await engine.newMemory(evaluation);
    try {
      const { adds_begin: addsBegin, begin } = engine.bundle.tokenizer;
      const own = addsBegin && isText(document.source) ? (begin?.id ?? null) : null;
      const before = bos === false ? null : (bos ?? own);
      for await (const scores of scoreDocument(engine, memory, reader, document.name, before, top)) {
        yield { document: document.name, number, ...scores };
      }
    } finally {
      memory.release();
      await reader.close();
    }
    number += 1;
  }
}

async function* scoreDocument(
  engine: Engine,
  memory: Memory,
  reader: TokenReader,
  name: string,
  bos: number | null,
  top: number | null,
): AsyncGenerator<Omit<TokenScores, "document" | "number">> {
  const { evaluation } = memory.plan;
  const { bidirectional } = evaluation.document;
  const [longest, unscored] = [evaluation.longestDocument, bos === null ? 1 : 0];
  /** Raise TooLongError for a document with more tokens than can be scored, unless it may restart. */
  const refuseLonger = (): void => {
    const withBos = bos === null ? "" : " with the one before it";
    evaluation.checkLength((longest ?? 0) + 1, name, `more than ${counted(longest ?? 0)} tokens${withBos}`);
  };
  if (longest !== null && !evaluation.restart && (await reader.has(longest + unscored))) refuseLonger();
  let first = bos === null ? ((await reader.take(1)).ids[0] ?? null) : null; // until it is shown
  let held = bos ?? first;
  let position = first === null ? 0 : 1; // index of the next target
  const nats = new Sum();
  const total = (): DocumentScore => totalScore(name, reader.counts, position, unscored, nats.value, evaluation);
  if (held === null || !(await reader.has(1))) {
    const none = { index: [], tokens: [], starts: [], ends: [], logProbs: new Float32Array(0), context: [] };
    yield { ...none, ...(top === null ? {} : noDetail()), summary: total(), first };
    return;
  }
  const purpose = top === null ? "score" : "detail";
  const longestStep = engine.longestStep(purpose, evaluation.segmentLen);
  let warned = false;
  for (let ended = false; !ended;) {
    if (memory.room === 0) {
      refuseLonger();
      memory.restart();
    }
    const most = Math.min(longestStep, memory.room);
    const { ids, starts, ends } = await reader.take(most);
    if (bidirectional && ids.length === most) refuseLonger();
    const targets = ids.slice();
    const tokens = [held, ...ids.slice(0, -1)];
    held = ids.at(-1) as number;
    if (bidirectional && most > targets.length) {
      tokens.push(held); // its prediction is dropped
      targets.push(0);
    }
    const context = memory.context(tokens.length).slice(0, ids.length);
    const outputs = await engine.step(purpose, memory, tokens, targets);
    const all = numbersOf(outputs, "log_prob", "float32", tokens.length);
    if (!all.every(Number.isFinite)) {
      memory.restart(true);
      if (!warned) engine.warn(warningNotFinite(name, position + ids.length));
      warned = true;
    }
    const logProbs = all.slice(0, ids.length);
    for (const logProb of logProbs) nats.add(-logProb);
    const index = ids.map((_, at) => position + at);
    position += ids.length;
    ended = !(await reader.has(1));
    const more = top === null ? {} : detailOf(outputs, ids.length, top);
    const summary = ended ? total() : null;
    yield { index, tokens: ids, starts, ends, logProbs, context, ...more, summary, first };
    first = null;
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
