// The text that somebody writes, or a book. Between a key and the worker's answer, the tokens are adapted here.
import { about, byId, grouped, legible, lowerBound, plural } from "./dom.js";
import { showFigures } from "./panels.js";
import { NO_SCORE, STEPS, Tokens } from "./tokens.js";

const LONGEST_WRITTEN = 40_000; // characters; longer texts are read like books
const LONGEST_FILE = 32 << 20; // bytes
const SHORT_FILE = 4_000; // bytes; such a text goes into the field, a longer one is first read, with its curve
const NO_BYTES = { all: 0, first: 0, dropped: 0 };
const canBeWritten = (text) => text.length <= LONGEST_WRITTEN && text.search(/[\0-\x08\r\x0b-\x1f]|\p{Surrogate}/u) < 0;
const bar = byId("bar");

export function showState(text) {
  if (byId("state").textContent !== text) byId("state").textContent = text;
}

export function showProblem(text, isLoaded = true) {
  byId("problem").textContent = text;
  byId("problem").hidden = false;
  bar.hidden = true;
  if (!isLoaded) showState("Not loaded");
}

export class Writing {
  editor = byId("editor");
  isDone = true; // everything has its numbers
  before = 0; // tokens that were read before the text
  onChange = () => undefined; // called after the text has changed
  #bytes = NO_BYTES;
  #timer = 0;
  #lasted = 0; // milliseconds of the last refresh

  constructor(reader, link) {
    Object.assign(this, { reader, link });
  }

  get tokens() {
    return this.reader.tokens;
  }

  get isWriting() {
    return this.reader.view.isField;
  }

  setWriting(isOn) {
    this.reader.view.isField = isOn;
    document.body.classList.toggle("writing", isOn);
    document.body.classList.toggle("reading", !isOn);
    if (isOn) this.#showTitle(about.title);
    this.editor.hidden = !isOn;
    this.reader.view.node.tabIndex = isOn ? -1 : 0;
  }

  #showTitle(name) {
    document.querySelector("h1").textContent = document.title = legible(name);
  }

  // A page without text, until there is one.
  showEmpty() {
    this.#bytes = NO_BYTES;
    this.reader.set(Tokens.none());
  }

  // Writes a text into the field, as if somebody had typed it.
  write(text) {
    if (!this.isWriting) this.#stopReading();
    this.editor.value = text;
    this.onWritten();
  }

  onWritten() {
    const { value } = this.editor;
    if (value.length > LONGEST_WRITTEN) {
      this.#readBook(new File([value], "pasted text"));
      return;
    }
    const { tokens, first } = adapted(this.tokens, value);
    this.reader.set(tokens, first);
    byId("new").disabled = !value && !this.before;
    this.#refreshSoon();
    this.#send();
    this.onChange();
  }

  #send() {
    byId("problem").hidden = true;
    this.isDone = false;
    this.reader.view.node.ariaBusy = "true";
    this.link.sendDocument({ kind: "text", text: this.tokens.text });
  }

  #stopReading() {
    this.setWriting(true);
    this.showEmpty();
    this.link.setBase(null);
    this.#send();
  }

  startNew() {
    this.editor.value = "";
    this.#stopReading();
    byId("new").disabled = true;
    this.onChange();
    this.refresh();
    this.editor.focus();
  }

  // Puts a book into the field.
  edit() {
    const { text } = this.tokens;
    this.setWriting(true);
    this.showEmpty();
    this.editor.value = text;
    this.onWritten();
    this.editor.focus();
  }

  // Shows a book, which cannot be changed, and watches its numbers come.
  #readBook(file) {
    byId("problem").hidden = true;
    if (file.size > LONGEST_FILE) {
      showProblem(`${file.name}: ${grouped(file.size)} bytes, but this page reads at most ${grouped(LONGEST_FILE)}. Give a part of it.`);
      return;
    }
    this.setWriting(false);
    this.editor.value = "";
    this.showEmpty();
    this.link.setBase(null);
    this.onChange();
    byId("new").disabled = false;
    this.#showTitle(file.name);
    showState(`Reading ${file.name}`);
    this.link.sendDocument({ kind: "book", file });
  }

  // Opens a saved state, to go on after it, a short text, to change it, or a book.
  async open(file) {
    if (file.name.endsWith(".safetensors")) {
      if (!this.isWriting) this.#stopReading();
      this.link.setBase(file);
      this.#send();
      byId("new").disabled = false;
      this.onChange();
      return;
    }
    const text = file.size <= SHORT_FILE ? await shortText(file) : null;
    if (text === null) this.#readBook(file);
    else this.write(text);
  }

  // Takes the tokens' places, and how many keep their scores; those at the end keep their old colours meanwhile.
  takeTokens({ text, start, bytes, position, bits: knownBits, entropy: knownEntropy }) {
    const { tokens, link } = this;
    const n = start.length - 1;
    const kept = knownBits.length;
    const after = Math.max(0, Math.min(tokens.n - kept, n - kept, tokens.n - tokens.scored - 1));
    const merged = (known, old) => {
      const values = new Uint16Array(n).fill(NO_SCORE);
      if (text === undefined && after > 0) values.set(old.subarray(tokens.n - after, tokens.n), n - after);
      values.set(known);
      return values;
    };
    link.good = link.base.file;
    Object.assign(this, { before: position, isDone: false });
    this.#bytes = bytes;
    const [bits, entropy] = [merged(knownBits, tokens.bits), merged(knownEntropy, tokens.entropy)];
    const next = new Tokens({ text: text ?? tokens.text, start, bits, entropy, scored: kept });
    this.reader.set(next, Math.min(kept, tokens.scored)); // before it, nothing has changed on the page
    this.#refreshSoon();
  }

  takeScores({ first, bits, entropy, taken }) {
    const { tokens, reader } = this;
    tokens.bits.set(bits, first);
    if (entropy.length) tokens.entropy.set(entropy, first);
    tokens.scored = taken;
    tokens.forget();
    reader.view.redraw(first, taken);
    if (reader.card.token >= first && reader.card.token < taken) reader.card.hide();
    this.#refreshSoon();
  }

  takeDone() {
    this.isDone = true;
    this.refresh();
  }

  // What failed was a document: the page goes on with what it had before.
  takeFailure() {
    this.isDone = true;
    this.showProgress();
    if (this.link.base.file !== this.link.good) {
      this.link.setBase(this.link.good); // the state cannot be read, so the text follows what it followed before
      this.link.sendDocument({ kind: "text", text: this.tokens.text });
    } else if (!this.isWriting && !this.tokens.n) {
      this.setWriting(true);
    }
  }

  // Shows the figures, the scale and the panels, the less often the longer they take.
  #refreshSoon() {
    this.#timer ||= setTimeout(() => this.refresh(), Math.max(40, 12 * this.#lasted));
  }

  refresh() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    const begin = performance.now();
    showFigures(this.#figures());
    this.reader.refresh();
    this.showProgress();
    this.#lasted = performance.now() - begin;
  }

  #figures() {
    const { scored, bits: values, start, n } = this.tokens;
    const number = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
    const known = values.subarray(0, scored).filter((value) => value !== NO_SCORE);
    const many = known.length;
    const bits = known.reduce((a, b) => a + b, 0) / STEPS;
    const { all, first, dropped } = this.#bytes;
    const bytes = this.isDone
      ? all - dropped - (many < scored ? first : 0)
      : this.tokens.byteLength(many < scored ? start[1] : 0, start[scored]);
    const perplexity = 2 ** (bits / many);
    return [
      ...(about.hasBytes ? [["bits per byte", number(many ? bits / bytes : NaN, 3)]] : []),
      ...(about.unit === "byte" ? [] : [["bits per token", number(bits / many, 3)]]),
      [`perplexity per ${about.unit}`, many ? perplexity.toLocaleString("en-US", { maximumSignificantDigits: 4 }) : "–"],
      ["bits", many ? grouped(Math.round(bits)) : "–"],
      ["tokens", grouped(n)],
    ];
  }

  showProgress() {
    const { n, scored, text } = this.tokens;
    this.reader.view.node.ariaBusy = String(!this.isDone);
    if (!this.link.isReady) return;
    const isBusy = !this.isDone && n - scored > 300;
    bar.hidden = !isBusy;
    bar.value = n ? scored / n : 0;
    byId("edit").hidden = this.isWriting || isBusy || !canBeWritten(text);
    const before = this.before ? `, after ${plural(this.before, "token")} read before` : "";
    showState(isBusy ? `${grouped(scored)} of ${plural(n, "token")}` : `Ready, ${plural(this.link.threads, "thread")}${before}`);
  }
}

// Returns the tokens after a key, and the first that is not as it was. Those before and after the edit stay, and what
// is new has no score yet.
function adapted({ text, start, bits, entropy, scored, n: many }, written) {
  const most = Math.min(text.length, written.length);
  let before = 0;
  while (before < most && text[before] === written[before]) before++;
  let after = 0;
  while (after < most - before && text[text.length - 1 - after] === written[written.length - 1 - after]) after++;
  const first = lowerBound(start.subarray(1, many + 1), before + 1); // tokens that end before the edit
  const last = Math.max(first, lowerBound(start.subarray(0, many), text.length - after)); // the first behind it
  const shift = written.length - text.length;
  const isNew = Number(start[last] + shift > start[first]);
  const joined = (values, middle) => [...values.subarray(0, first), ...(isNew ? [middle] : []), ...values.subarray(last)];
  const moved = Uint32Array.from(joined(start, start[first]), (place, token) => place + (token >= first + isNew ? shift : 0));
  const [newBits, newEntropy] = [bits, entropy].map((values) => Uint16Array.from(joined(values, NO_SCORE)));
  return { tokens: new Tokens({ text: written, start: moved, bits: newBits, entropy: newEntropy, scored: Math.min(scored, first) }), first };
}

// The text of a file, or null if the field could not show it as it is.
async function shortText(file) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await file.arrayBuffer());
    return canBeWritten(text) ? text : null;
  } catch {
    return null;
  }
}
