// Files: short texts to write on, books to read, and saved states to go on after.
const LONGEST_FILE = 32 << 20; // bytes
const SHORT_FILE = 4_000; // bytes; such a text goes into the field, a longer one is first read, with its curve
const EXAMPLE =
  "The ferry was late, so we waited on the pier and counted gulls. One of them had learned to open the lids of " +
  "sandwich boxes. It lifted a corner, looked round, and took the cheese. Nobody had ever taught it to do that; it " +
  "had watched us, all summer, from the roof of the ticket office.\n\nWhen the ferry came at last, the captain laughed " +
  "and said that the gull was called Archimedes.";

// Shows a book, which cannot be changed, and watches its numbers come.
function readBook(file) {
  hideProblem();
  if (file.size > LONGEST_FILE) {
    showProblem(`${file.name}: ${grouped(file.size)} bytes, but this page reads at most ${grouped(LONGEST_FILE)}. Give a part of it.`);
    return;
  }
  setWriting(false);
  editor.value = "";
  showEmpty();
  setBase(null);
  forgetBranches();
  byId("new").disabled = false;
  showTitle(file.name);
  showState(`Reading ${file.name}`);
  sendDocument({ kind: "book", file });
}

function showTitle(name) {
  document.querySelector("h1").textContent = legible(name);
  document.title = legible(name);
}

// A page without text, until there is one.
function showEmpty() {
  totals.bytes = { all: 0, first: 0, dropped: 0 };
  const none = () => new Uint16Array(0);
  setTokens({ text: "", start: new Uint32Array(1), bits: none(), entropy: none(), scored: 0 }, 0);
}

function stopReading() {
  setWriting(true);
  showEmpty();
  setBase(null);
  sendText();
}

// Puts a book into the field, if it is short enough.
function writeOn() {
  const words = text;
  setWriting(true);
  showEmpty();
  editor.value = words;
  onWritten();
  editor.focus();
}

const canBeWritten = (words) => words.length <= LONGEST_WRITTEN && words.search(/[\0-\x08\r\x0b-\x1f]|\p{Surrogate}/u) < 0;

function startNew() {
  hideProblem();
  editor.value = "";
  stopReading();
  byId("new").disabled = true;
  forgetBranches();
  refresh();
  editor.focus();
}

async function readFile(file) {
  if (file.name.endsWith(".safetensors")) {
    hideProblem();
    if (!isWriting()) stopReading();
    setBase(file);
    sendText();
    byId("new").disabled = false;
    forgetBranches();
    return;
  }
  const words = file.size <= SHORT_FILE ? await shortText(file) : null;
  if (words === null) readBook(file);
  else write(words);
}

// The text of a file, or null if the field could not show it as it is.
async function shortText(file) {
  try {
    const words = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await file.arrayBuffer());
    return canBeWritten(words) ? words : null;
  } catch {
    return null;
  }
}

async function saveState() {
  try {
    const { raw } = await ask({ kind: "save", side: "state" });
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
    if (file) readFile(file);
  };
  byId("example").onclick = () => {
    write(EXAMPLE);
    editor.focus();
  };
  byId("new").onclick = startNew;
  byId("edit").onclick = writeOn;
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
    if (file && link.isReady) readFile(file);
  });
}
