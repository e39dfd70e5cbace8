// What the scripts of all pages share: packed blocks, elements, and characters as people read them.
const byId = (id) => document.getElementById(id);
const about = JSON.parse(byId("about").textContent);

async function unpacked(id) {
  const binary = atob(byId(id).textContent);
  byId(id).remove(); // it is read once
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(inflated).arrayBuffer());
}

function element(tag, className, ...content) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...content);
  return made;
}

// Numbers and characters as people read them.
const grouped = (number) => number.toLocaleString("en-US");

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

function fill(span, given) {
  const string = unixLines(given);
  if (string === "\n") span.classList.add("line");
  let place = 0;
  for (const { 0: character, index } of string.matchAll(HIDDEN)) {
    const pill = document.createElement("i");
    pill.textContent = glyph(character);
    span.append(string.slice(place, index), pill);
    place = index + character.length;
  }
  span.append(string.slice(place));
}
