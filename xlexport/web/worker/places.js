// Tokens of a text, and where they are in it. Places count UTF-16 units, as pages do.

const PIECE = 65536; // bytes that a tokenizer gets at once
const NEAR = 64; // units after a token in which the next one is looked for

/**
 * Return the text of bytes, and for each number of bytes how many units begin in them. Bytes that are not UTF-8 become
 * lone surrogates, as with Python's `surrogateescape`: byte 0xff is U+DCFF.
 */
export function decoded(raw) {
  const after = new Uint32Array(raw.length + 1);
  const units = new Uint16Array(raw.length); // a character of n bytes has at most n units
  let length = 0;
  for (let at = 0; at < raw.length; ) {
    const [size, code] = character(raw, at);
    if (code > 0xffff) {
      units[length++] = 0xd7c0 + (code >> 10);
      units[length++] = 0xdc00 + (code & 0x3ff);
    } else {
      units[length++] = code;
    }
    for (let byte = 1; byte <= size; byte++) after[at + byte] = length;
    at += size;
  }
  const parts = [];
  for (let at = 0; at < length; at += 8192) parts.push(String.fromCharCode(...units.subarray(at, Math.min(length, at + 8192))));
  return { text: parts.join(""), after };
}

/** Return the size in bytes and the code of the character at a place; a byte that is not UTF-8 counts on its own. */
function character(raw, at) {
  const first = raw[at];
  if (first < 0x80) return [1, first];
  const size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  const lowest = [0, 0, 0x80, 0x800, 0x10000][size];
  let code = first & (0x7f >> size);
  for (let next = 1; next < size; next++) {
    const byte = raw[at + next];
    if (byte === undefined || (byte & 0xc0) !== 0x80) return [1, 0xdc00 + first];
    code = (code << 6) | (byte & 0x3f);
  }
  const isValid = first >= 0xc2 && code >= lowest && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
  return isValid ? [size, code] : [1, 0xdc00 + first];
}

/**
 * Tokenize a text, given as a string or as bytes.
 *
 * @param offsets - what the tokenizer's places count: `bytes`, `characters`, `none`, or `ids` if there is no tokenizer.
 * @param ended - whether the text ends here, or somebody may still write.
 * @returns ids, `start` of each token and of the end, the text, and how many bytes the scores of a whole text cover.
 */
export async function tokenize({ xlruntime, model, offsets }, source, ended) {
  const isText = typeof source === "string";
  const raw = isText ? new TextEncoder().encode(source) : source;
  const whole = isText && offsets !== "bytes" ? null : decoded(raw);
  const text = isText ? source : whole.text;
  if (offsets === "ids") return ofIds(text, model.bundle.model.vocab_size, xlruntime);
  const counts = new xlruntime.TextCounts();
  let ids = [];
  const ends = [];
  for await (const piece of model.tokenizer.read(pieces(raw), "the text", counts)) {
    for (const id of piece.ids) ids.push(id);
    for (const end of piece.ends ?? []) ends.push(end);
  }
  if (!ended) ids = ids.slice(0, model.tokenizer.encodePiece(source, null).length); // without marks of the end
  const bytes = { all: raw.length, first: counts.firstTokenBytes, dropped: counts.droppedBytes };
  if (offsets === "none") return { ids, start: aligned(model.tokenizer, ids, text), text, bytes };
  const after = offsets === "bytes" ? whole.after : charactersAfter(text);
  return { ids, start: startsOf(ids.length, (token) => after[ends[token]], text.length), text, bytes };
}

async function* pieces(raw) {
  for (let at = 0; at < raw.length; at += PIECE) yield raw.subarray(at, at + PIECE);
}

/** Return where tokens begin, from where each ends. Text between two tokens is the later one's. */
function startsOf(n, endOf, length) {
  const start = new Uint32Array(n + 1);
  for (let token = 1; token < n; token++) start[token] = Math.max(start[token - 1], endOf(token - 1));
  start[n] = length;
  return start;
}

function charactersAfter(text) {
  const after = [0];
  let length = 0;
  for (const one of text) after.push((length += one.length));
  return after;
}

/** Find tokens in a text by what they decode to, for libraries that do not say where tokens are. */
export function aligned(tokenizer, ids, text) {
  const ends = [];
  let place = 0;
  ids.forEach((id, token) => {
    const piece = token ? continued(tokenizer, ids[token - 1], id) : tokenizer.decode([id]);
    const bare = piece.trim();
    if (text.startsWith(piece, place)) {
      place += piece.length;
    } else if (bare) {
      const at = text.indexOf(bare, place);
      if (at >= 0 && at < place + NEAR) place = at + bare.length;
    }
    ends.push(place);
  });
  return startsOf(ids.length, (token) => ends[token], text.length);
}

/** Return the text that a token adds after another one: many tokenizers drop the space of a first token. */
export function continued(tokenizer, before, id) {
  const known = tokenizer.decode([before]);
  const both = tokenizer.decode([before, id]);
  return both.startsWith(known) ? both.slice(known.length) : tokenizer.decode([id]);
}

/** Read token ids that are written as numbers. */
function ofIds(text, vocabSize, xlruntime) {
  const ids = [];
  const ends = [];
  for (const { 0: word, index } of text.matchAll(/\S+/g)) {
    const id = /^\d{1,9}$/.test(word) ? Number(word) : NaN;
    if (!(id < vocabSize)) {
      throw new xlruntime.TokenError(
        `the text: token ${ids.length} is ${word.slice(0, 40)}, expected an id from 0 to ${vocabSize - 1}.`,
        "This bundle has no tokenizer, so it takes token ids, with spaces between them.",
      );
    }
    ids.push(id);
    ends.push(index + word.length);
  }
  const bytes = { all: 0, first: 0, dropped: 0 };
  return { ids, start: startsOf(ids.length, (token) => ends[token], text.length), text, bytes };
}
