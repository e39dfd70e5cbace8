// The document's text and numbers, unpacked from the blocks of this page (written by packing.py).
const byId = (id) => document.getElementById(id);
const about = JSON.parse(byId("about").textContent);
const NO_SCORE = 0xffff;
const STEPS = 100; // in a bit
const N = about.tokens;

const bits = new Uint16Array(N); // of each token, in hundredths; NO_SCORE: it has no context
const entropy = new Uint16Array(N); // of the prediction of each, the same
const start = new Uint32Array(N + 1); // where each token begins in `text`
const details = new Array(about.chunks.length); // what more is known of a chunk's tokens, once somebody looked
let text = "";
let labels = {};

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  // The next column: whole numbers of `size` bytes, the lowest bytes of all first.
  take(count, size) {
    const values = new (size === 1 ? Uint8Array : size === 2 ? Uint16Array : Uint32Array)(count);
    for (let shift = 0; shift < 8 * size; shift += 8) {
      for (let i = 0; i < count; i++) values[i] |= this.bytes[this.at + i] << shift;
      this.at += count;
    }
    return values;
  }
}

async function unpacked(id) {
  const binary = atob(byId(id).textContent);
  byId(id).remove(); // it is read once
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(inflated).arrayBuffer());
}

async function readDocument() {
  const blocks = await Promise.all(about.chunks.map((_, number) => unpacked(`main-${number}`)));
  labels = JSON.parse(new TextDecoder().decode(await unpacked("labels")));
  const parts = [];
  let token = 0;
  let at = 0;
  blocks.forEach((bytes, number) => {
    const [tokens, units, widthBytes] = about.chunks[number];
    const reader = new Reader(bytes);
    const codes = reader.take(units, 2);
    for (let i = 0; i < units; i += 8192) parts.push(String.fromCharCode(...codes.subarray(i, i + 8192)));
    const widths = reader.take(tokens, widthBytes);
    bits.set(reader.take(tokens, 2), token);
    entropy.set(reader.take(tokens, 2), token);
    for (let i = 0; i < tokens; i++) {
      start[token++] = at;
      at += widths[i];
    }
  });
  start[N] = at;
  text = parts.join("");
}

// Reads the chunk of a token unless that was done; afterwards details[chunk] is there.
async function readDetail(token) {
  const chunk = Math.floor(token / about.chunkTokens);
  details[chunk] ??= unpacked(`detail-${chunk}`).then((bytes) => {
    const [tokens] = about.chunks[chunk];
    const reader = new Reader(bytes);
    const found = {
      ids: reader.take(tokens, about.idBytes),
      rank: reader.take(tokens, about.idBytes),
      seen: reader.take(tokens, 4),
      topIds: Array.from({ length: about.top }, () => reader.take(tokens, about.idBytes)),
      topRoots: Array.from({ length: about.top }, () => reader.take(tokens, 1)),
    };
    for (let i = 1; i < tokens; i++) found.seen[i] += found.seen[i - 1];
    details[chunk] = found;
  });
  await details[chunk];
}

// All that is known of a token of a chunk that was read.
function describe(token) {
  const chunk = details[Math.floor(token / about.chunkTokens)];
  const i = token % about.chunkTokens;
  const surprisal = bits[token] === NO_SCORE ? null : bits[token] / STEPS;
  const alternatives = chunk.topIds
    .map((ids, k) => ({ id: ids[i], probability: (chunk.topRoots[k][i] / 255) ** 2 }))
    .filter(({ probability }) => probability > 0);
  return {
    id: chunk.ids[i],
    rank: chunk.rank[i] + 1,
    entropy: entropy[token] / STEPS,
    seen: chunk.seen[i],
    surprisal,
    alternatives,
  };
}

// The last token that begins at or before a place in the text: the one that covers it.
function tokenAt(place) {
  let low = 0;
  let high = N;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (start[middle] <= place) low = middle;
    else high = middle;
  }
  return low;
}

// At most once in a frame, however often it is asked for.
function soon(action) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      action();
    });
  };
}

// Numbers and characters as people read them.
const grouped = (number) => number.toLocaleString("en-US");

function percent(probability) {
  if (probability >= 0.995) return `${(probability * 100).toFixed(1)} %`;
  if (probability >= 0.0995) return `${(probability * 100).toFixed(0)} %`;
  if (probability >= 0.00995) return `${(probability * 100).toFixed(1)} %`;
  return probability >= 0.0001 ? `${(probability * 100).toFixed(2)} %` : "< 0.01 %";
}

function odds(surprisal) {
  const one = 2 ** surprisal;
  return one < 1e6 ? `1 in ${grouped(one < 10 ? +one.toFixed(1) : Math.round(one))}` : `1 in 2^${surprisal.toFixed(0)}`;
}

// What would not show, or would rearrange its surroundings: control characters, marks of direction, lone surrogates,
// which stand for bytes that are not UTF-8.
const HIDDEN =
  /[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\p{Surrogate}|\p{Noncharacter_Code_Point}/gu;

const NAMES =
  "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US".split(" ");

function glyph(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return NAMES[code];
  if (code === 0x7f) return "DEL";
  if (code >= 0xdc80 && code <= 0xdcff) return `\\x${(code & 0xff).toString(16)}`;
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

const unixLines = (string) => string.replaceAll("\r\n", "\n"); // a line ends in one way, however it is written
const legible = (string) => unixLines(string).replace(HIDDEN, glyph);
const plural = (many, unit) => `${grouped(many)} ${unit}${many === 1 ? "" : "s"}`;

function label(string) {
  const some = string.slice(0, 100); // a word may be the whole document
  const shown = [...legible(some.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣"))];
  return shown.length > 40 ? `${shown.slice(0, 39).join("")}…` : shown.join("") || "∅";
}
