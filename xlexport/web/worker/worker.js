// The model, in a worker: it opens the bundle, reads what the page sends, and answers with numbers.
import * as onnxruntime from "../onnxruntime/ort.wasm.min.mjs";
import * as xlruntime from "../xlruntime/browser.js";
import { aligned, continued, decoded, tokenize } from "./places.js";
import { hundredths, StreamDocument, FullDocument } from "./open_document.js";

const MOST_THREADS = 4; // more gain little in steps of a few tokens
const open = { xlruntime, model: null, offsets: "bytes" };
let about = null;
let openDocument = null;
let base = { number: 0, position: 0 }; // what was read before the document: nothing, or a saved state
let version = 0; // of the document that is being scored
let isBroken = false; // this document cannot be scored
let given = null; // the newest document that the page has sent, until it is taken
const tasks = []; // what waits for the end of the document
const running = new Map(); // by side, the number of the newest task; older ones end
let isWorking = false;

const post = (message, ...moved) => postMessage(message, moved);
const whatFailed = (error) => (error instanceof Error ? error.message : String(error)).split("\n", 1)[0];

/** Let messages of the page in. */
const channel = new MessageChannel();
const turn = () =>
  new Promise((done) => {
    channel.port1.onmessage = done;
    channel.port2.postMessage(null);
  });

const takers = {
  async open(message) {
    about = message.about;
    open.offsets = about.offsets;
    const libraries = {};
    if (about.offsets === "none") libraries.tokenizers = await import("../tokenizers/tokenizers.min.mjs");
    // Without isolation a browser has only one thread for WebAssembly. With several, ONNX Runtime 1.30 never finishes to
    // open a bundle's graphs in Firefox 153.
    const hasThreads = globalThis.crossOriginIsolated && !navigator.userAgent.includes("Firefox");
    const threads = hasThreads ? Math.min(MOST_THREADS, navigator.hardwareConcurrency || 1) : 1;
    await loadAll();
    open.model = await xlruntime.load(new URL("../bundle", import.meta.url), {
      onnxruntime,
      threads,
      libraries,
      onProgress: ({ loaded, total }) => post({ kind: "progress", loaded, total }),
      onWarning: (text) => post({ kind: "warning", text }),
    });
    await restart(0, null);
    post({ kind: "ready", threads, isWhole: isWhole() });
    work();
  },
  text: (message) => take(message),
  book: (message) => take(message),
  describe({ id, token }) {
    const facts = { id: openDocument.ids[token], ...openDocument.table.of(token) };
    const labels = Object.fromEntries([facts, ...facts.alternatives].map((one) => [one.id, labelOf(one.id)]));
    post({ kind: "described", id, facts, labels });
  },
  generate: (message) => queue(message, generate),
  continuation: (message) => queue(message, scoreContinuation),
  stop: ({ side }) => running.set(side, (running.get(side) ?? 0) + 1),
  save: (message) => queue(message, save),
};

addEventListener("message", async ({ data }) => {
  try {
    await takers[data.kind](data);
  } catch (error) {
    post({ kind: "failed", task: data.kind, id: data.id, message: whatFailed(error) });
  }
});

function take(message) {
  given = message;
  work();
}

function queue(message, action) {
  const number = (running.get(message.side) ?? 0) + 1;
  running.set(message.side, number);
  const isCurrent = () => running.get(message.side) === number && given === null;
  tasks.push(async () => {
    try {
      if (isCurrent() && !isBroken) await action(message, isCurrent);
    } catch (error) {
      post({ kind: "failed", task: message.kind, side: message.side, message: whatFailed(error) });
    } finally {
      post({ kind: "idle", side: message.side, isLast: running.get(message.side) === number });
    }
  });
  work();
}

/** Do what is to do: first the newest document, then its next step, then what waits for its end. */
async function work() {
  if (isWorking || open.model === null) return;
  isWorking = true;
  for (let job = next(); job; job = next()) {
    await job();
    await turn();
  }
  isWorking = false;
}

function next() {
  if (given !== null) {
    const document = given;
    given = null;
    return () => onDocument(() => read(document));
  }
  if (openDocument !== null && !openDocument.isDone && !isBroken) return () => onDocument(advance);
  return tasks.shift();
}

async function onDocument(action) {
  try {
    await action();
  } catch (error) {
    isBroken = true;
    post({ kind: "failed", task: "document", version, message: whatFailed(error) });
  }
}

/** Load what the package loads when it is used: the server may be out of reach then. */
async function loadAll() {
  try {
    await Promise.all(["scorer", "state"].map((name) => import(`../xlruntime/${name}.js`)));
  } catch (error) {
    throw new Error("The files of this page cannot be loaded. Reload it.", { cause: error });
  }
}

const isWhole = () => open.model.bundle.document.full_document;

/** Begin a document, after the stream of a saved state if a file has one. */
async function restart(number, file) {
  const { model } = open;
  const top = "detail" in model.bundle.graphs ? about.top : null;
  const state = file === null ? null : await bytesOf(file);
  const stream = isWhole() ? null : state === null ? await model.stream() : await model.restore(state);
  await stream?.flush(); // the document gives ids, which end a text that the state holds
  await openDocument?.close();
  openDocument = stream === null ? new FullDocument(model, top) : new StreamDocument(stream, top);
  base = { number, position: stream?.position ?? 0 };
}

async function read(document) {
  version = document.version;
  isBroken = false;
  const { number, file } = document.base;
  if (number !== base.number) await restart(number, file);
  const isBook = document.kind === "book";
  const { ids, text, start, bytes } = await tokenize(open, isBook ? await bytesOf(document.file) : document.text, isBook);
  const kept = await openDocument.set(ids);
  const [bits, entropy] = [openDocument.table.bits.slice(0, kept), openDocument.table.entropy.slice(0, kept)];
  const found = { start, bytes, bits, entropy, position: base.position, ...(isBook ? { text } : {}) };
  post({ kind: "tokens", version, ...found }, start.buffer, bits.buffer, entropy.buffer);
  if (openDocument.isDone) post({ kind: "done", version });
}

async function bytesOf(file) {
  try {
    return new Uint8Array(await file.arrayBuffer());
  } catch (error) {
    throw new Error(`${file.name}: could not be read (${whatFailed(error)}).`, { cause: error });
  }
}

async function advance() {
  const first = await openDocument.step();
  const { taken, table } = openDocument;
  const [bits, entropy] = [table.bits.slice(first, taken), table.entropy.slice(first, taken)];
  post({ kind: "scores", version, first, bits, entropy, taken }, bits.buffer, entropy.buffer);
  if (openDocument.isDone) post({ kind: "done", version });
}

async function generate({ side, options }, isCurrent) {
  const ids = [];
  for await (const id of openDocument.generate(options)) {
    if (!isCurrent()) return;
    ids.push(id);
    post({ kind: "drawn", side, text: open.model.tokenizer.decode(ids) });
    await turn();
    if (!isCurrent()) return;
  }
  await scoreBranch(side, ids, open.model.tokenizer.decode(ids));
}

async function scoreContinuation({ side, text }) {
  const { tokenizer } = open.model;
  const ids = open.offsets === "ids" ? (await tokenize(open, text, false)).ids : tokenizer.encodePiece(text, openDocument.last);
  await scoreBranch(side, ids, text);
}

async function scoreBranch(side, ids, text) {
  const { logProbs } = await openDocument.continuation(ids);
  const unscored = new Array(ids.length - logProbs.length).fill(hundredths(NaN)); // a document's first token
  const bits = Uint16Array.from([...unscored, ...Array.from(logProbs, (value) => hundredths(-value))]);
  const total = xlruntime.bits(logProbs);
  const raw = new TextEncoder().encode(text);
  const isByByte = open.offsets === "bytes" && raw.length === ids.length;
  const start = isByByte ? decoded(raw).after : aligned(open.model.tokenizer, Array.from(ids), text);
  post({ kind: "branch", side, text, start, bits, total, scored: logProbs.length, bytes: raw.length });
}

async function save({ id }) {
  const raw = await openDocument.save();
  post({ kind: "saved", id, raw }, raw.buffer);
}

/** Return the text of a token; bytes are written as in a document. */
function labelOf(id) {
  const { tokenizer, bundle } = open.model;
  if (bundle.tokenizer.kind !== "bytes") return open.offsets === "none" ? continued(tokenizer, id, id) : tokenizer.decode([id]);
  const byte = id - bundle.tokenizer.first_id;
  return byte >= 0 && byte < 256 ? decoded(Uint8Array.of(byte)).text : "";
}
