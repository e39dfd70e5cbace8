// Two continuations of the text, A and B, written by the model or by somebody, and compared.
const SIDES = ["A", "B"];
const LEAST_PAUSE = 150; // milliseconds without a key, after which a continuation is scored
const branches = {}; // by side

function makeBranch(side, number) {
  const shown = element("div", "shown");
  const field = element("textarea");
  field.setAttribute("aria-label", `Continuation ${side}`);
  Object.assign(field, { placeholder: number ? "… or write another one." : "What comes next?", spellcheck: false, rows: 3 });
  const figure = element("span", "bits");
  const draw = element("button", "wide", "Generate");
  const add = element("button", "wide", "Add to text");
  const seed = element("input");
  Object.assign(seed, { type: "number", min: 0, step: 1, value: number + 1 });
  const label = element("label", "seed", "seed ", seed);
  label.title = "The same seed draws the same tokens, here and in Python";
  const node = element(
    "article",
    "branch",
    element("header", "", element("h3", "", side), figure),
    element("div", "sheet", shown, field),
    element("div", "group", draw, add, label),
  );
  const branch = { side, node, shown, field, figure, draw, add, seed, found: null, isDrawing: false, pause: 0 };
  draw.onclick = () => (branch.isDrawing ? stopBranch(branch) : drawBranch(branch));
  add.onclick = () => addBranch(branch);
  field.oninput = () => onBranchWritten(branch);
  byId("pair").append(node);
  return branch;
}

function drawBranch(branch) {
  hideProblem();
  const value = (id, least, most) => Math.min(most, Math.max(least, Number(byId(id).value) || 0));
  const options = {
    maxTokens: Math.round(value("length", 1, 2000)),
    sampling: { temperature: value("temperature", 0, 5), seed: Math.abs(Math.round(Number(branch.seed.value))) },
  };
  branch.isDrawing = true;
  branch.field.value = "";
  clearBranch(branch);
  link.worker.postMessage({ kind: "generate", side: branch.side, options });
  showBranches();
}

function stopBranch(branch) {
  link.worker.postMessage({ kind: "stop", side: branch.side });
  branch.isDrawing = false;
  scoreBranch(branch);
  showBranches();
}

function onBranchWritten(branch) {
  if (branch.isDrawing) stopBranch(branch);
  clearBranch(branch);
  branch.shown.textContent = branch.field.value;
  clearTimeout(branch.pause);
  branch.pause = setTimeout(() => scoreBranch(branch), LEAST_PAUSE);
  showBranches();
}

function scoreBranch(branch) {
  clearTimeout(branch.pause);
  if (!branch.field.value) return;
  link.worker.postMessage({ kind: "continuation", side: branch.side, text: branch.field.value });
}

// After the text has changed: what was written by somebody is scored again, behind the new text.
function forgetBranches() {
  for (const branch of Object.values(branches)) {
    if (branch.isDrawing) link.worker?.postMessage({ kind: "stop", side: branch.side });
    branch.isDrawing = false;
    branch.shown.textContent = branch.field.value;
    clearBranch(branch);
    scoreBranch(branch);
  }
  showBranches();
}

function clearBranch(branch) {
  branch.found = null;
  if (!branch.field.value) branch.shown.replaceChildren();
}

function addBranch(branch) {
  const addition = branch.field.value;
  branch.field.value = "";
  write(text + addition);
  editor.scrollIntoView({ block: "end" });
}

function takeDrawn({ side, text: drawn }) {
  const branch = branches[side];
  if (!branch.isDrawing) return;
  branch.field.value = drawn;
  branch.shown.textContent = drawn;
}

function takeBranch(found) {
  const branch = branches[found.side];
  if (branch.field.value !== found.text) return; // more was written meanwhile
  branch.found = found;
  paint(branch.shown, found);
  showBranches();
}

function takeIdle({ side, isLast }) {
  const branch = branches[side];
  if (!branch || !isLast) return;
  branch.isDrawing = false;
  showBranches();
}

// Colours a short text: one element for all tokens of a character.
function paint(node, { text: words, start: places, bits: values }) {
  const spans = [];
  for (let token = 0; token < values.length; ) {
    let next = token + 1;
    while (next < values.length && places[next] === places[token]) next++;
    let sum = 0;
    for (let one = token; one < next; one++) if (values[one] !== NO_SCORE) sum += values[one] / STEPS;
    const level = Math.min(about.levels - 1, Math.floor((sum / about.ceiling.token) * about.levels));
    const from = token ? places[token] : 0;
    spans.push(element("span", `l${level}`, words.slice(from, next < values.length ? places[next] : words.length)));
    token = next;
  }
  node.replaceChildren(...spans);
}

function showBranches() {
  const canWrite = link.isReady && (N > 0 || totals.before > 0);
  for (const branch of Object.values(branches)) {
    const { found, figure, field, node } = branch;
    branch.draw.textContent = branch.isDrawing ? "Stop" : "Generate";
    branch.draw.disabled = !canWrite || !about.graphs.includes("generate");
    field.disabled = !canWrite;
    branch.add.disabled = !field.value || branch.isDrawing || !isWriting();
    figure.replaceChildren();
    if (found) figure.append(element("b", "", `${found.total.toFixed(1)} bits`), ` · ${meanOf(found)}`);
    node.classList.remove("likelier");
  }
  byId("branches").classList.toggle("used", SIDES.some((side) => branches[side].field.value));
  const [a, b] = SIDES.map((side) => branches[side].found);
  byId("verdict").textContent = a && b ? verdict(a, b) : "";
  if (a && b && a.total !== b.total) branches[a.total < b.total ? "A" : "B"].node.classList.add("likelier");
}

const meanOf = ({ total, bytes, scored: many }) =>
  about.hasBytes ? `${(total / Math.max(1, bytes)).toFixed(2)} per byte` : `${(total / Math.max(1, many)).toFixed(2)} per token`;

const superscript = (digits) => digits.replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]);

function verdict(a, b) {
  const difference = Math.abs(a.total - b.total);
  if (difference < 0.05) return "Both are equally likely here.";
  const [one, other] = a.total < b.total ? SIDES : SIDES.toReversed();
  const times = 2 ** difference;
  const often = times < 1e6 ? `${grouped(times < 10 ? +times.toFixed(1) : Math.round(times))} times` : `2${superscript(difference.toFixed(0))} times`;
  return `${one} is likelier than ${other} by ${difference.toFixed(1)} bits: the model finds it ${often} as probable.`;
}
