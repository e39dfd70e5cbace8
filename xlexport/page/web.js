// The page on which somebody writes: the field comes at once, the numbers when the model is loaded.
import { Branches } from "./branches.js";
import { about, byId, element, legible } from "./dom.js";
import { Link } from "./link.js";
import { showHeader } from "./panels.js";
import { Reader } from "./reader.js";
import { NO_SCORE, STEPS } from "./tokens.js";
import { Writing, showProblem, showState } from "./writing.js";

const EXAMPLE =
  "The ferry was late, so we waited on the pier and counted gulls. One of them had learned to open the lids of " +
  "sandwich boxes. It lifted a corner, looked round, and took the cheese. Nobody had ever taught it to do that; it " +
  "had watched us, all summer, from the roof of the ticket office.\n\nWhen the ferry came at last, the captain laughed " +
  "and said that the gull was called Archimedes.";
const megabytes = (bytes) => (bytes / 1e6).toFixed(1);

const link = new Link();
const reader = new Reader(async (token) => {
  const { facts, labels } = await link.ask({ kind: "describe", token });
  const bits = (values) => (values[token] === NO_SCORE ? null : values[token] / STEPS);
  return { ...facts, labels, entropy: bits(reader.tokens.entropy), surprisal: bits(reader.tokens.bits) };
});
const writing = new Writing(reader, link);
const branches = new Branches(writing, link);

const takers = {
  progress({ loaded, total }) {
    byId("bar").value = total ? loaded / total : 0;
    const isLast = loaded === total;
    showState(isLast ? "Starting the model" : `Loading the model: ${megabytes(loaded)} of ${megabytes(total)} MB`);
  },
  ready({ threads, isWhole }) {
    Object.assign(link, { isReady: true, threads });
    byId("save").disabled = isWhole;
    byId("save").closest("p").hidden = isWhole;
    writing.refresh();
    branches.show();
    document.documentElement.classList.add("ready");
  },
  tokens(message) {
    writing.takeTokens(message);
    branches.show();
  },
  scores: (message) => writing.takeScores(message),
  done: () => writing.takeDone(),
  drawn: (message) => branches.takeDrawn(message),
  branch: (message) => branches.of(message.side).take(message),
  idle: (message) => branches.takeIdle(message),
  warning: ({ text }) => showProblem(text, link.isReady),
  failed({ task, message, side }) {
    const isLoading = task === "open";
    showProblem(isLoading ? message : legible(message), link.isReady);
    if (side !== undefined) branches.takeIdle({ side, isLast: true });
    else if (!isLoading) writing.takeFailure();
  },
};

async function saveState() {
  try {
    const { raw } = await link.ask({ kind: "save", side: "state" });
    const file = URL.createObjectURL(new Blob([raw], { type: "application/octet-stream" }));
    const anchor = element("a");
    Object.assign(anchor, { href: file, download: "stream.safetensors" });
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(file), 10_000);
  } catch (error) {
    showProblem(error.message);
  }
}

function listenToFiles() {
  byId("open").onclick = () => byId("file").click();
  byId("file").onchange = () => {
    const [file] = byId("file").files;
    byId("file").value = ""; // so that the same file can be chosen again
    if (file) writing.open(file);
  };
  byId("save").onclick = saveState;
  const isFile = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (!isFile(event)) return;
    event.preventDefault();
    byId("drop").hidden = !link.isReady;
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) byId("drop").hidden = true;
  });
  addEventListener("drop", (event) => {
    byId("drop").hidden = true;
    if (!isFile(event)) return;
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    if (file && link.isReady) writing.open(file);
  });
}

function listenToWriting() {
  const { editor } = writing;
  editor.oninput = () => writing.onWritten();
  editor.onkeydown = (event) => {
    if (event.key === "Tab") reader.card.hide();
  };
  reader.view.node.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !writing.isWriting) return;
    event.preventDefault();
    event.stopPropagation();
    const { current, tokens } = reader.view;
    if (current >= 0) editor.setSelectionRange(tokens.start[current], tokens.start[current]);
    reader.keys.Escape();
    editor.focus();
  });
  // The text lies below the field.
  const spanBelow = ({ clientX, clientY }) => document.elementsFromPoint(clientX, clientY).find((node) => node.dataset?.t);
  reader.listenToPointer(byId("sheet"), "pointermove", spanBelow);
  byId("new").onclick = () => writing.startNew();
  byId("edit").onclick = () => writing.edit();
  byId("example").onclick = () => {
    writing.write(EXAMPLE);
    editor.focus();
  };
}

showHeader();
showState(`Loading the model: 0.0 of ${megabytes(about.bundleBytes)} MB`);
if (!about.graphs.includes("detail")) byId("modes").querySelector("[value=entropy]").closest("label").remove();
writing.onChange = () => branches.renew();
reader.onMode = () => branches.all.forEach(({ view }) => view.redraw());
writing.setWriting(true);
writing.showEmpty();
reader.listen();
listenToWriting();
listenToFiles();
link.start(about, takers, (sentence) => showProblem(sentence, false));
writing.refresh();
branches.show();
if (writing.editor.value) writing.onWritten(); // a browser may fill it with what was there before
