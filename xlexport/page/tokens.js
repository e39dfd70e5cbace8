// The tokens of a text with their numbers, the words that they form, and measures of both along the text.
import { about, lastWhere, lowerBound } from "./dom.js";

export const NO_SCORE = 0xffff; // instead of bits: the token has no context, or is not scored yet
export const STEPS = 100; // in a bit
const SPACES = " \t\n\r\v\f";
const MOST_BINS = 4096;

// A text in `n` tokens. Token i begins at place `start[i]`, and start[n] is the end; `bits` and `entropy` are in
// hundredths. The first `scored` tokens have their final numbers.
export class Tokens {
  #word = null; // the last answer of wordAt: a word may be the whole document
  #measures = {};

  constructor({ text, start, bits, entropy, scored = bits.length }) {
    Object.assign(this, { text, start, bits, entropy, scored, n: bits.length });
    this.areLong = text.length > 1.5 * this.n; // longer than characters
  }

  static none() {
    return new Tokens({ text: "", start: new Uint32Array(1), bits: new Uint16Array(0), entropy: new Uint16Array(0) });
  }

  // The numbers have changed.
  forget() {
    this.#word = null;
    this.#measures = {};
  }

  // The token that covers a place: the last one that begins at or before it.
  at(place) {
    return lastWhere(this.n, (token) => this.start[token] <= place);
  }

  slice(first, end) {
    return this.text.slice(this.start[first], this.start[end]);
  }

  isSpace(place) {
    return SPACES.includes(this.text[place] ?? "x");
  }

  // Bits of tokens first … end - 1 together; null if one of them was read without context.
  sum(first, end) {
    let total = 0;
    for (let token = first; token < end; token++) {
      if (this.bits[token] !== NO_SCORE) total += this.bits[token];
      else if (token < this.scored) return null;
    }
    return total / STEPS;
  }

  byteLength(from, to) {
    let bytes = 0;
    for (let place = from; place < to; place++) {
      const code = this.text.charCodeAt(place);
      const isHalf = code >= 0xd800 && code < 0xe000;
      const isByte = code >= 0xdc80 && code < 0xdd00 && (this.text.charCodeAt(place - 1) & 0xfc00) !== 0xd800;
      bytes += code < 0x80 || isByte ? 1 : code < 0x800 || isHalf ? 2 : 3;
    }
    return bytes;
  }

  // Whether what begins at `place` is drawn in one with the text before it, from `unit` on: accents, parts of an emoji
  // or of a flag, and the two characters that end a line in many files.
  #joins(place, unit) {
    const { text } = this;
    if (text[place] === "\n") return text[place - 1] === "\r";
    if (text.charCodeAt(place) < 0x300) return false;
    const character = String.fromCodePoint(text.codePointAt(place));
    if (/[\p{M}\p{Emoji_Modifier}\u200d]/u.test(character) || text[place - 1] === "\u200d") return place > 0;
    return place - unit === 2 && /^\p{RI}{2}$/u.test(text.slice(unit, place + 2));
  }

  // The first token after `token` that is not drawn in one with it.
  unitEnd(token, end) {
    const { start } = this;
    let next = token + 1;
    while (next < end && (start[next + 1] === start[next] || this.#joins(start[next], start[token]))) next++;
    return next;
  }

  // The word of a token: tokens first … end - 1, its text from `place` to `stop`, and its bits (null: not all scored).
  // White space belongs to the word after it, at the end of the document to the one before it.
  wordAt(token) {
    if (this.#word && this.#word.first <= token && token < this.#word.end) return this.#word;
    const { text, start, n } = this;
    const back = (place, isSpace) => {
      while (place > 0 && this.isSpace(place - 1) === isSpace) place--;
      return place;
    };
    const forth = (place, isSpace) => {
      while (place < text.length && this.isSpace(place) === isSpace) place++;
      return place;
    };
    const from = (place) => {
      const covering = this.at(place);
      return start[covering] < place ? covering + 1 : covering;
    };
    let owner = token;
    while (owner > 0 && start[owner] === start[owner + 1]) owner--; // without width: part of the character before it
    let inside = forth(start[owner], true);
    if (inside === text.length) inside = Math.max(0, back(inside, true) - 1);
    const [place, stop] = [back(inside, false), forth(inside, false)];
    const before = back(place, true);
    const first = Math.min(token, before > 0 ? from(before) : 0);
    const end = Math.max(token + 1, forth(stop, true) < text.length ? from(stop) : n);
    return (this.#word = { first, end, place, stop, bits: this.sum(first, end) });
  }

  // The token with which the text of a word begins, behind the white space.
  shownAt(token) {
    const { first, end, place } = this.wordAt(token);
    return Math.min(end - 1, Math.max(first, this.at(place)));
  }

  // What is measured in a mode: `token`, `word` or `entropy`.
  measure(mode) {
    return (this.#measures[mode] ??= new Measure(this, mode));
  }
}

// Values of all tokens or words, how many there are of each size, and how they run along the text.
class Measure {
  constructor(tokens, mode) {
    this.tokens = tokens;
    this.unit = mode === "word" ? "word" : "token";
    this.firsts = null; // the first token of each item, unless item i is token i
    this.values = mode === "token" ? tokens.bits : tokens.entropy; // in hundredths of a bit
    if (mode === "word") this.#takeWords();
    this.none = this.firsts ? -1 : NO_SCORE;
    this.histogram = new Uint32Array(1024); // items by tenths of a bit
    this.course = new Course(tokens.n);
    const isPerByte = mode === "token" && about.hasBytes; // otherwise the course has means of items
    for (let item = 0; item < this.values.length; item++) {
      const value = this.values[item];
      if (value === this.none) continue;
      this.histogram[Math.min(1023, Math.floor(value / 10))]++;
      const units = isPerByte ? tokens.byteLength(tokens.start[item], tokens.start[item + 1]) : 1;
      this.course.add(this.firsts ? this.firsts[item] : item, value / STEPS, units);
    }
    this.course.close();
    // What counts as surprising at first, in tenths of a bit: about one token in two hundred reaches it.
    this.usual = about.ceiling[mode] * 10;
    while (this.usual > 1 && this.reach(this.usual) < tokens.scored / 200) this.usual--;
  }

  #takeWords() {
    this.firsts = [];
    this.values = [];
    for (let token = 0; token < this.tokens.scored; token = this.tokens.wordAt(token).end) {
      const { bits } = this.tokens.wordAt(token);
      this.firsts.push(token);
      this.values.push(bits === null ? -1 : Math.round(bits * STEPS));
    }
  }

  // How many items have at least so many tenths of a bit.
  reach(tenths) {
    return this.histogram.subarray(tenths).reduce((a, b) => a + b, 0);
  }

  has(item, tenths) {
    return this.values[item] !== this.none && this.values[item] >= tenths * 10;
  }

  itemOf(token) {
    return this.firsts ? lowerBound(this.firsts, token + 1) - 1 : token;
  }

  tokenOf(item) {
    return this.firsts ? this.tokens.shownAt(this.firsts[item]) : item;
  }
}

// Sums along a document in bins of equally many tokens, for means over its passages.
class Course {
  constructor(n) {
    this.n = n;
    this.bins = Math.min(n, MOST_BINS);
    this.sums = new Float64Array(this.bins + 1); // before each bin
    this.units = new Float64Array(this.bins + 1); // what they are divided by: bytes, tokens or words
  }

  add(token, value, units) {
    const bin = Math.floor((token / this.n) * this.bins) + 1;
    this.sums[bin] += value;
    this.units[bin] += units;
  }

  close() {
    for (let bin = 1; bin <= this.bins; bin++) {
      this.sums[bin] += this.sums[bin - 1];
      this.units[bin] += this.units[bin - 1];
    }
  }

  // The mean of bins first … end - 1; null if there is nothing to divide by.
  mean(first, end) {
    const units = this.units[end] - this.units[first];
    return units > 0 ? (this.sums[end] - this.sums[first]) / units : null;
  }

  // The mean from the beginning to a share of the document, or of all of it.
  upTo(share = 1) {
    return this.mean(0, Math.min(this.bins, Math.max(1, Math.round(share * this.bins))));
  }

  // The mean around a share of the document: of a hundredth of it, but at least 60 tokens.
  near(share, window = Math.max(this.bins / 100, (60 / this.n) * this.bins)) {
    const middle = share * this.bins;
    const first = Math.max(0, Math.min(this.bins - 1, Math.floor(middle - window / 2)));
    return this.mean(first, Math.max(first + 1, Math.min(this.bins, Math.ceil(middle + window / 2))));
  }
}
