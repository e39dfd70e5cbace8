/** Draw tokens one after another, and turn them into text, which ends before the first stop. */

import { draw, Random } from "./sampling.js";
import type { Engine } from "./engine.js";
import { TextError } from "./errors.js";
import type { EvaluationSettings } from "./evaluation.js";
import { counted } from "./messages.js";
import { ruleOf, type Sampling } from "./sampling_options.js";
import type { GenerateOptions, Piece } from "./stream.js";
import { asIds, checkIds, type Tokenizer } from "./tokenizers/tokenizer.js";

const BEFORE = 8; // tokens before new ones that decide how these look: white space between words
const PIECES = 64; // tokens after which a character that is not complete never will be
const REPLACEMENT = "\ufffd";

/** Why a continuation ended: at a token that ends a text or at a stop, or after so many tokens as were asked for. */
export type Ended = "stop" | "length";

/** What draws tokens. */
export interface Drawing {
  engine: Engine;
  /** The tokens before the first draw, as far as they are known. */
  before: readonly number[];
  maxTokens: number;
  rule: Sampling;
  ignoreEos: boolean;
  /** Compute the next logits, and add the token that is drawn from them to the document. */
  step(draw: (logits: Float32Array) => number): Promise<number>;
}

/** Yield ids, each drawn after the ones before it; ids above the tokenizer's size are never drawn. */
export async function* drawIds(drawing: Drawing): AsyncGenerator<number, Ended> {
  const { before, maxTokens, rule, ignoreEos, step } = drawing;
  const { bundle, tokenizer } = drawing.engine;
  const ends = new Set(ignoreEos ? [] : (bundle.tokenizer.ends ?? []).map(({ id }) => id));
  const size = bundle.tokenizer.size ?? tokenizer.size ?? undefined;
  const random = new Random(rule);
  const recent = before.slice(-rule.repetitionWindow);
  for (let drawn = 0; drawn < maxTokens; drawn++) {
    const token = await step((logits) => draw(rule, logits.subarray(0, size), random, recent));
    if (ends.has(token)) return "stop";
    recent.push(token);
    if (recent.length > rule.repetitionWindow) recent.shift();
    yield token;
  }
  return "length";
}

/** Yield the text of drawn tokens as far as it is certain, up to the first stop. */
export async function* drawText(
  drawing: Drawing,
  stop: readonly string[],
  prompt: Piece | null,
): AsyncGenerator<string, Ended> {
  const text = new DrawnText(drawing.engine.tokenizer, drawing.before, stop, typeof prompt === "string" ? prompt : "");
  const ids = drawIds(drawing);
  for (;;) {
    const { done, value } = await ids.next();
    const part = done ? text.end() : text.add(value);
    if (part) yield part;
    if (text.stopped) return "stop";
    if (done) return value;
  }
}

/** Return what continues a document that the model reads in one step: it is read again for each token. */
export async function drawingInFull(
  engine: Engine,
  prompt: Piece,
  { maxTokens, sampling, ignoreEos = false }: GenerateOptions,
  evaluation: EvaluationSettings,
): Promise<Drawing> {
  const rule = ruleOf(maxTokens, sampling);
  const name = "the prompt";
  const isText = typeof prompt === "string" || prompt instanceof Uint8Array;
  const read = isText ? engine.tokenizer.encodePiece(prompt, null, name) : asIds(prompt, name);
  checkIds(read, engine.bundle.model.vocab_size, name);
  if (!read.length) throw new TextError("nothing to continue: the prompt is empty.", "Give a prompt.");
  evaluation.checkLength(read.length + maxTokens, `the prompt and ${counted(maxTokens)} tokens after it`);
  const longest = evaluation.segmentLen;
  const memory = await engine.newMemory(evaluation);
  const step = async (drawn: (logits: Float32Array) => number): Promise<number> => {
    memory.restart();
    const part = read.slice(Math.floor((read.length - 1) / longest) * longest);
    const token = drawn(await engine.logits(memory, part));
    read.push(token);
    return token;
  };
  return { engine, before: read.slice(), maxTokens, rule, ignoreEos, step };
}

/** The text of a continuation, which ends before the first stop in it. */
export class DrawnText {
  /** Whether a stop was found; later tokens have no effect. */
  stopped = false;
  readonly #stops: readonly string[];
  readonly #hold: number; // units that may belong to a stop
  #tokens: number[];
  #shown: number; // tokens whose text is in the text below
  #skipSpace: boolean;
  #text = ""; // that was not returned yet
  #searched = 0; // units of it before which no stop ends

  /** @param prompt - text of the tokens `before`, if known: they do not show the white space that it ended with. */
  constructor(
    private readonly tokenizer: Tokenizer,
    before: readonly number[],
    stops: readonly string[] = [],
    prompt = "",
  ) {
    this.#stops = stops.filter((stop) => stop !== "");
    this.#hold = Math.max(1, ...this.#stops.map(({ length }) => length)) - 1;
    this.#tokens = before.slice(-BEFORE);
    this.#shown = this.#tokens.length;
    this.#skipSpace = /\s$/.test(prompt) && !/\s$/.test(tokenizer.decode(this.#tokens));
  }

  /** Add a token, and return the text that is certain now. */
  add(token: number): string {
    if (this.stopped) return "";
    this.#tokens.push(token);
    this.#take(false);
    return this.#released(this.#text.length - this.#hold);
  }

  /** Return the rest of the text. */
  end(): string {
    if (this.stopped) return "";
    this.#take(true);
    return this.#released(this.#text.length);
  }

  /** Take the text of new tokens, if its last character is complete. */
  #take(isFinal: boolean): void {
    const before = this.tokenizer.decode(this.#tokens.slice(0, this.#shown));
    const whole = this.tokenizer.decode(this.#tokens);
    if (!isFinal && whole.endsWith(REPLACEMENT) && this.#tokens.length - this.#shown < PIECES) return;
    let fresh = whole.startsWith(before)
      ? whole.slice(before.length)
      : this.tokenizer.decode(this.#tokens.slice(this.#shown));
    if (fresh && this.#skipSpace) {
      fresh = fresh.replace(/^ /, "");
      this.#skipSpace = false;
    }
    this.#text += fresh;
    this.#tokens = this.#tokens.slice(-BEFORE);
    this.#shown = this.#tokens.length;
  }

  /** Return the beginning of the text up to a stop, or its certain units. */
  #released(certain: number): string {
    const places = this.#stops
      .map((stop) => this.#text.indexOf(stop, Math.max(0, this.#searched + 1 - stop.length)))
      .filter((place) => place >= 0);
    this.stopped = places.length > 0;
    let end = Math.max(0, this.stopped ? Math.min(...places) : certain);
    if (!this.stopped && /[\ud800-\udbff]/.test(this.#text[end - 1] ?? "")) end -= 1;
    const text = this.#text.slice(0, end);
    this.#text = this.#text.slice(end);
    this.#searched = this.#text.length;
    return text;
  }
}
