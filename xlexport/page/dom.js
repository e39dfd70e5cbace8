// Elements of a page, the data that is packed in it, and characters and numbers as people read them.
export const byId = (id) => document.getElementById(id);
export const about = JSON.parse(byId("about").textContent);

export async function unpacked(id) {
  const binary = atob(byId(id).textContent);
  byId(id).remove(); // it is read once
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(inflated).arrayBuffer());
}

export async function unpackedJson(id) {
  return JSON.parse(new TextDecoder().decode(await unpacked(id)));
}

// Runs what shows a page, and says so if it fails.
export async function showPage(show) {
  try {
    await show();
    document.documentElement.classList.add("ready");
  } catch (error) {
    byId("problem").hidden = false;
    byId("problem").textContent = `This page cannot be shown here: ${error.message}. A browser of 2024 or later is needed.`;
    throw error;
  }
}

export function element(tag, className = "", ...content) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...content);
  return node;
}

// Runs an action at most once a frame, however often it is asked for.
export function soon(action) {
  let isWaiting = false;
  return () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => {
      isWaiting = false;
      action();
    });
  };
}

// The last of `count` places for which `holds`, if it holds up to some place and not after it; 0 if for none.
export function lastWhere(count, holds) {
  let low = 0;
  let high = count;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (holds(middle)) low = middle;
    else high = middle;
  }
  return low;
}

// How many values of a sorted list are less than `value`.
export function lowerBound(sorted, value) {
  return sorted.length && sorted[0] < value ? lastWhere(sorted.length, (place) => sorted[place] < value) + 1 : 0;
}

export const clamp = (share) => Math.min(1, Math.max(0, share));
export const grouped = (number) => number.toLocaleString("en-US");
export const plural = (many, unit) => `${grouped(many)} ${unit}${many === 1 ? "" : "s"}`;
export const capitalized = (words) => words[0].toUpperCase() + words.slice(1);

// Characters that would not show, or would rearrange the text around them: control characters, marks of direction, and
// lone surrogates, which stand for bytes that are not UTF-8.
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

const unixLines = (string) => string.replaceAll("\r\n", "\n");
export const legible = (string) => unixLines(string).replace(HIDDEN, glyph);

// A token or a word on one line.
export function label(string) {
  const beginning = string.slice(0, 100); // a word may be the whole document
  const characters = [...legible(beginning.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣"))];
  return characters.length > 40 ? `${characters.slice(0, 39).join("")}…` : characters.join("") || "∅";
}

// Puts a text into an element, with the names of hidden characters in small letters.
export function fill(span, raw) {
  const string = unixLines(raw);
  if (string === "\n") span.classList.add("line");
  let place = 0;
  for (const { 0: character, index } of string.matchAll(HIDDEN)) {
    span.append(string.slice(place, index), element("i", "", glyph(character)));
    place = index + character.length;
  }
  span.append(string.slice(place));
}

export function percent(probability) {
  if (probability < 0.0001) return "< 0.01 %";
  const digits = probability >= 0.995 || (probability >= 0.00995 && probability < 0.0995) ? 1 : probability >= 0.0995 ? 0 : 2;
  return `${(probability * 100).toFixed(digits)} %`;
}

export function odds(surprisal) {
  const one = 2 ** surprisal;
  return one < 1e6 ? `1 in ${grouped(one < 10 ? +one.toFixed(1) : Math.round(one))}` : `1 in 2^${surprisal.toFixed(0)}`;
}
