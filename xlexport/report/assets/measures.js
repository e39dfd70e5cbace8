// What the text can be coloured by: bits of tokens, bits of words, or entropy; and how each runs along the document.
const MOST_BINS = 4096;
let BINS = Math.min(N, MOST_BINS); // of equally many tokens, for the curve and the overview
const binAt = (token) => Math.floor((token / N) * BINS);

// Sums along the document, for means over its passages.
class Course {
  constructor() {
    this.sums = new Float64Array(BINS + 1); // before each bin
    this.units = new Float64Array(BINS + 1); // what they are divided by: bytes, tokens or words
  }

  add(token, value, units) {
    this.sums[binAt(token) + 1] += value / STEPS;
    this.units[binAt(token) + 1] += units;
  }

  close() {
    for (let bin = 1; bin <= BINS; bin++) {
      this.sums[bin] += this.sums[bin - 1];
      this.units[bin] += this.units[bin - 1];
    }
    return this;
  }

  // The mean of bins first … end - 1; null where there is nothing to divide by.
  mean(first, end) {
    const units = this.units[end] - this.units[first];
    return units > 0 ? (this.sums[end] - this.sums[first]) / units : null;
  }

  // The mean around a share of the document, over a window that shows its passages rather than its words.
  near(share, window = Math.max(BINS / 100, (60 / N) * BINS)) {
    const middle = share * BINS;
    const first = Math.max(0, Math.min(BINS - 1, Math.floor(middle - window / 2)));
    return this.mean(first, Math.max(first + 1, Math.min(BINS, Math.ceil(middle + window / 2))));
  }
}

function byteLength(from, to) {
  let bytes = 0;
  for (let place = from; place < to; place++) {
    const code = text.charCodeAt(place);
    const isHalf = code >= 0xd800 && code < 0xe000;
    const isByte = code >= 0xdc80 && code < 0xdd00 && (text.charCodeAt(place - 1) & 0xfc00) !== 0xd800;
    bytes += code < 0x80 || isByte ? 1 : code < 0x800 || isHalf ? 2 : 3;
  }
  return bytes;
}

// The first tokens of all words, and their bits, in hundredths.
function allWords() {
  const firsts = [];
  const values = [];
  for (let token = 0; token < scored; token = wordAt(token).end) {
    firsts.push(token);
    values.push(Math.round(wordAt(token).bits * STEPS));
  }
  return { firsts, values };
}

// By mode, each made when it is first asked for. Item i begins at token firsts[i], without `firsts` it is token i; its
// value is in hundredths of a bit, NO_SCORE where it has none.
const measures = {};
const chosen = {}; // what counts as surprising, by mode, once somebody chose it

function measure(mode = view.mode) {
  if (measures[mode]) return measures[mode];
  const { firsts, values } = mode === "word" ? allWords() : { values: mode === "token" ? bits : entropy };
  const histogram = new Uint32Array(1024); // items by tenths of a bit
  const course = new Course(); // of bits a byte where there are bytes, else of means of items
  const isPerByte = mode === "token" && about.hasBytes;
  for (let item = 0; item < values.length; item++) {
    if (!firsts && values[item] === NO_SCORE) continue;
    histogram[Math.min(histogram.length - 1, Math.floor(values[item] / 10))]++;
    course.add(firsts ? firsts[item] : item, values[item], isPerByte ? byteLength(start[item], start[item + 1]) : 1);
  }
  const made = { firsts, values, histogram, course: course.close(), unit: firsts ? "word" : "token", enough: 0 };
  made.has = (item) => (firsts || values[item] !== NO_SCORE) && values[item] >= made.enough * 10;
  made.itemOf = (token) => (firsts ? lowerBound(firsts, token + 1) - 1 : token);
  made.tokenOf = (item) => (firsts ? shownAt(firsts[item]) : item);
  made.reach = (tenths) => histogram.subarray(tenths).reduce((a, b) => a + b, 0);
  // `enough` is what counts as surprising, in tenths of a bit: at first what about one in two hundred reaches.
  const most = about.ceiling[mode] * 10;
  for (made.enough = most; made.enough > 1 && made.reach(made.enough) < scored / 200; ) made.enough--;
  made.enough = chosen[mode] ?? made.enough;
  return (measures[mode] = made);
}

// After the text or its numbers have changed.
function forgetMeasures() {
  for (const mode of Object.keys(measures)) delete measures[mode];
  BINS = Math.min(N, MOST_BINS);
  known = { first: 0, end: 0 };
}

// The token with which a word begins that is seen: the white space before it counts to it.
function shownAt(token) {
  const { first, end, place } = wordAt(token);
  return Math.min(end - 1, Math.max(first, tokenAt(place)));
}
