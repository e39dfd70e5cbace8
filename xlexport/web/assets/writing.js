// The text that somebody writes, and its tokens. Between a key and the worker's answer, the tokens are adapted here.
const editor = byId("editor");
const LONGEST_WRITTEN = 40_000; // characters; longer texts are read like books
const totals = { bytes: { all: 0, first: 0, dropped: 0 }, isDone: true, before: 0 };

const isWriting = () => view.isWriting;

function setWriting(isOn) {
  view.isWriting = isOn;
  document.body.classList.toggle("writing", isOn);
  document.body.classList.toggle("reading", !isOn);
  if (isOn) showTitle(about.title);
  editor.hidden = !isOn;
  textNode.tabIndex = isOn ? -1 : 0;
}

// Replaces the tokens: `from` is the first that is not as it was.
function setTokens(next, from) {
  card.hide();
  details.clear();
  mark(-1);
  const block = blocks.length ? blocks.indexOf(blockOf(Math.min(from, Math.max(0, N - 1)))) : 0;
  const kept = from === 0 ? 0 : block;
  ({ text, start, bits, entropy, scored } = next);
  N = bits.length;
  forgetMeasures();
  folded = "";
  if (view.query) findHits();
  cutBlocks(kept);
  if (!isWriting()) estimateHeights();
  blocks.slice(kept).filter(isNear).forEach(draw);
}

// After a key: the tokens before and after the edit stay, and what is new has no score yet.
function adapt(written) {
  const most = Math.min(text.length, written.length);
  let before = 0;
  while (before < most && text[before] === written[before]) before++;
  let after = 0;
  while (after < most - before && text[text.length - 1 - after] === written[written.length - 1 - after]) after++;
  const first = lowerBound(start.subarray(1, N + 1), before + 1); // tokens that end before the edit
  const last = Math.max(first, lowerBound(start.subarray(0, N), text.length - after)); // the first behind it
  const shift = written.length - text.length;
  const isNew = (last < N ? start[last] + shift : written.length) > (first < N ? start[first] : text.length);
  const n = first + Number(isNew) + N - last;
  const joined = (Kind, values, middle, end) => {
    const made = new Kind(n + end.length);
    made.set(values.subarray(0, first));
    if (isNew) made[first] = middle;
    made.set(values.subarray(last, N), first + Number(isNew));
    made.set(end, n);
    return made;
  };
  const begin = first < N ? start[first] : text.length;
  const moved = joined(Uint32Array, start, begin, [written.length]);
  for (let token = first + Number(isNew); token < n; token++) moved[token] += shift;
  setTokens(
    {
      text: written,
      start: moved,
      bits: joined(Uint16Array, bits, NO_SCORE, []),
      entropy: joined(Uint16Array, entropy, NO_SCORE, []),
      scored: Math.min(scored, first),
    },
    first,
  );
}

// What the worker found: the tokens' places, and how many keep their scores. Those at the end keep their colours meanwhile.
function takeTokens({ text: read, start: places, bytes, position, bits: knownBits, entropy: knownEntropy }) {
  const n = places.length - 1;
  const kept = knownBits.length;
  const after = Math.max(0, Math.min(N - kept, n - kept, N - scored - 1));
  const merged = (known, old) => {
    const made = new Uint16Array(n).fill(NO_SCORE);
    if (read === undefined && after > 0) made.set(old.subarray(N - after, N), n - after);
    made.set(known);
    return made;
  };
  link.good = link.base.file;
  Object.assign(totals, { bytes, before: position, isDone: false });
  const from = Math.min(kept, scored); // before it, nothing has changed on the page
  const numbers = { bits: merged(knownBits, bits), entropy: merged(knownEntropy, entropy) };
  setTokens({ text: read ?? text, start: places, ...numbers, scored: kept }, from);
  refreshSoon();
}

function takeScores({ first, bits: newBits, entropy: newEntropy, taken }) {
  bits.set(newBits, first);
  if (newEntropy.length) entropy.set(newEntropy, first);
  scored = taken;
  forgetMeasures();
  details.clear();
  for (const block of blocks) {
    if (!block.drawn || block.end <= first || block.first >= taken) continue;
    block.drawn = false;
    draw(block);
  }
  if (card.token >= first && card.token < taken) card.hide();
  refreshSoon();
}

function takeDone() {
  totals.isDone = true;
  refresh();
}

// The figures, the scale and the panels, the less often the longer they take.
let refreshing = 0;
let lasted = 0;

function refreshSoon() {
  if (refreshing) return;
  refreshing = setTimeout(refresh, Math.max(40, 12 * lasted));
}

function refresh() {
  clearTimeout(refreshing);
  refreshing = 0;
  const begin = performance.now();
  document.documentElement.classList.toggle("short", isShort());
  showFigures(figuresNow());
  drawLegend();
  setThreshold(measure().enough);
  if (!isShort()) nameCourse();
  drawPanels();
  showProgress();
  lasted = performance.now() - begin;
}

function figuresNow() {
  const number = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "–");
  let sum = 0;
  let many = 0;
  for (let token = 0; token < scored; token++) {
    if (bits[token] === NO_SCORE) continue;
    sum += bits[token];
    many += 1;
  }
  const unscored = many < scored ? totals.bytes.first : 0;
  const bytes = totals.isDone ? totals.bytes.all - unscored - totals.bytes.dropped : byteLength(many < scored ? start[1] : 0, start[scored]);
  const isByByte = about.unit === "byte";
  const perplexity = 2 ** (sum / STEPS / many);
  return [
    ...(about.hasBytes ? [["bits per byte", number(many ? sum / STEPS / bytes : NaN, 3)]] : []),
    ...(isByByte ? [] : [["bits per token", number(sum / STEPS / many, 3)]]),
    [`perplexity per ${about.unit}`, many ? perplexity.toLocaleString("en-US", { maximumSignificantDigits: 4 }) : "–"],
    ["bits", many ? grouped(Math.round(sum / STEPS)) : "–"],
    ["tokens", grouped(N)],
  ];
}

function showProgress() {
  if (!link.isReady) return;
  const isBusy = !totals.isDone && N - scored > 300;
  byId("bar").hidden = !isBusy;
  byId("bar").value = N ? scored / N : 0;
  byId("edit").hidden = isWriting() || isBusy || !canBeWritten(text);
  const before = totals.before ? `, after ${plural(totals.before, "token")} read before` : "";
  if (isBusy) showState(`${grouped(scored)} of ${plural(N, "token")}`);
  else showState(`Ready, ${plural(link.threads, "thread")}${before}`);
}

function sendText() {
  hideProblem();
  sendDocument({ kind: "text", text });
}

function onWritten() {
  if (editor.value.length > LONGEST_WRITTEN) {
    readBook(new File([editor.value], "pasted text"));
    return;
  }
  adapt(editor.value);
  byId("new").disabled = !text && !totals.before;
  refreshSoon();
  sendText();
  forgetBranches();
}

// Writes a text into the field, as if somebody had typed it.
function write(words) {
  if (!isWriting()) stopReading();
  editor.value = words;
  onWritten();
}

// The element of the token at which an event points: the text lies below the field.
function spanBelow({ clientX, clientY }) {
  return document.elementsFromPoint(clientX, clientY).find((node) => node.dataset?.t !== undefined);
}

function listenToWriting() {
  editor.addEventListener("input", onWritten);
  editor.addEventListener("keydown", (event) => {
    if (event.key === "Tab") card.hide();
  });
  textNode.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !isWriting()) return;
    event.preventDefault();
    event.stopPropagation();
    if (view.current >= 0) editor.setSelectionRange(start[view.current], start[view.current]);
    KEYS.Escape();
    editor.focus();
  });
}
