// Two continuations of the text, A and B, which the model or somebody writes, and which are compared.
import { about, byId, element, grouped } from "./dom.js";
import { TextView, classOf } from "./text_view.js";
import { NO_SCORE, Tokens } from "./tokens.js";

const PAUSE = 150; // milliseconds without a key, after which a continuation is scored
const valueOf = (id, least, most) => Math.min(most, Math.max(least, Number(byId(id).value) || 0));
const superscript = (digits) => digits.replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);

class Branch {
  scores = null; // {total, scored, bytes}, once there are some
  isDrawing = false;
  field = element("textarea");
  figure = element("span", "bits");
  generate = element("button", "wide", "Generate");
  add = element("button", "wide", "Add to text");
  #seed = element("input");
  #pause = 0;

  constructor(owner, side, number) {
    Object.assign(this, { owner, side });
    const shown = element("div", "shown");
    this.view = new TextView(shown, (span, token, next) => (span.className = this.#classOf(token, next)), true);
    this.field.ariaLabel = `Continuation ${side}`;
    Object.assign(this.field, { placeholder: number ? "… or write another one." : "What comes next?", spellcheck: false, rows: 3 });
    Object.assign(this.#seed, { type: "number", min: 0, step: 1, value: number + 1 });
    const seed = element("label", "seed", "seed ", this.#seed);
    seed.title = "The same seed draws the same tokens, here and in Python";
    this.node = element(
      "article",
      "branch",
      element("header", "", element("h3", "", side), this.figure),
      element("div", "sheet", shown, this.field),
      element("div", "group", this.generate, this.add, seed),
    );
    this.generate.onclick = () => (this.isDrawing ? this.#stop() : this.#draw());
    this.add.onclick = () => this.#addToText();
    this.field.oninput = () => this.#onWritten();
  }

  #classOf(token, next) {
    const { mode } = this.owner.writing.reader;
    return classOf(this.view.tokens, mode === "word" ? "word" : "token", token, next); // entropy is not known here
  }

  // Shows a text that has no scores yet.
  show(text) {
    this.scores = null;
    const bits = Uint16Array.of(NO_SCORE);
    this.view.set(text ? new Tokens({ text, start: [0, text.length], bits, scored: 0 }) : Tokens.none());
  }

  #draw() {
    byId("problem").hidden = true;
    const sampling = { temperature: valueOf("temperature", 0, 5), seed: Math.abs(Math.round(Number(this.#seed.value))) };
    this.isDrawing = true;
    this.field.value = "";
    this.show("");
    const options = { maxTokens: Math.round(valueOf("length", 1, 2000)), sampling };
    this.owner.link.send({ kind: "generate", side: this.side, options });
    this.owner.show();
  }

  halt() {
    if (this.isDrawing) this.owner.link.send({ kind: "stop", side: this.side });
    this.isDrawing = false;
  }

  #stop() {
    this.halt();
    this.score();
    this.owner.show();
  }

  #onWritten() {
    this.halt();
    this.show(this.field.value);
    clearTimeout(this.#pause);
    this.#pause = setTimeout(() => this.score(), PAUSE);
    this.owner.show();
  }

  score() {
    clearTimeout(this.#pause);
    if (this.field.value) this.owner.link.send({ kind: "continuation", side: this.side, text: this.field.value });
  }

  #addToText() {
    const { writing } = this.owner;
    const addition = this.field.value;
    this.field.value = "";
    writing.write(writing.tokens.text + addition);
    writing.editor.scrollIntoView({ block: "end" });
  }

  take({ text, start, bits, ...scores }) {
    // A field ends lines with newlines only. If the texts differ otherwise, more was written meanwhile.
    if (this.field.value !== text.replace(/\r\n?/g, "\n")) return;
    this.scores = scores;
    this.view.set(new Tokens({ text, start, bits }));
    this.owner.show();
  }

  refresh(canWrite, isLikelier) {
    const { scores } = this;
    this.generate.textContent = this.isDrawing ? "Stop" : "Generate";
    this.generate.disabled = !canWrite || !about.graphs.includes("generate");
    this.field.disabled = !canWrite;
    this.add.disabled = !this.field.value || this.isDrawing || !this.owner.writing.isWriting;
    this.node.classList.toggle("likelier", isLikelier);
    this.figure.replaceChildren();
    if (!scores) return;
    const [units, unit] = about.hasBytes ? [scores.bytes, "byte"] : [scores.scored, "token"];
    const mean = (scores.total / Math.max(1, units)).toFixed(2);
    this.figure.append(element("b", "", `${scores.total.toFixed(1)} bits`), ` · ${mean} per ${unit}`);
  }
}

export class Branches {
  constructor(writing, link) {
    Object.assign(this, { writing, link });
    this.all = ["A", "B"].map((side, number) => new Branch(this, side, number));
    byId("pair").append(...this.all.map(({ node }) => node));
  }

  of(side) {
    return this.all.find((branch) => branch.side === side);
  }

  // The text has changed: what was written after it is scored again.
  renew() {
    for (const branch of this.all) {
      branch.halt();
      branch.show(branch.field.value);
      branch.score();
    }
    this.show();
  }

  takeDrawn({ side, text }) {
    const branch = this.of(side);
    if (!branch.isDrawing) return;
    branch.field.value = text;
    branch.show(text);
  }

  takeIdle({ side, isLast }) {
    const branch = this.of(side);
    if (!branch || !isLast) return;
    branch.isDrawing = false;
    this.show();
  }

  show() {
    const canWrite = this.link.isReady && (this.writing.tokens.n > 0 || this.writing.before > 0);
    const [a, b] = this.all.map(({ scores }) => scores?.total);
    const areBoth = a !== undefined && b !== undefined;
    const [likelier, other] = a <= b ? this.all : this.all.toReversed();
    for (const branch of this.all) branch.refresh(canWrite, areBoth && a !== b && branch === likelier);
    byId("branches").classList.toggle("used", this.all.some(({ field }) => field.value));
    byId("verdict").textContent = areBoth ? verdict(likelier.side, other.side, Math.abs(a - b)) : "";
  }
}

function verdict(likelier, other, bits) {
  if (bits < 0.05) return "Both are equally likely here.";
  const times = 2 ** bits;
  const number = times < 1e6 ? grouped(times < 10 ? +times.toFixed(1) : Math.round(times)) : `2${superscript(bits.toFixed(0))}`;
  return `${likelier} is likelier than ${other} by ${bits.toFixed(1)} bits: the model finds it ${number} times as probable.`;
}
