// The page comes to life: what is clicked, typed and scrolled.
function fillHeader() {
  byId("figures").replaceChildren(
    ...about.figures.map(([name, value]) => element("div", "", element("dt", "", name), element("dd", "", value))),
  );
  const [model, ...notes] = about.notes;
  byId("model").textContent = model;
  byId("notes").replaceChildren(...notes.map((note) => element("p", "", note)));
  const whole = ratio(0, BINS);
  byId("chart-title").textContent = `${perUnit[0].toUpperCase()}${perUnit.slice(1)} along the document`;
  chart.canvas.setAttribute(
    "aria-label",
    `Curve of ${perUnit} along the document; ${whole === null ? "nothing" : whole.toFixed(3)} in all. Click to go there.`,
  );
}

function drawPanels() {
  const seen = visibleTokens();
  chart.draw();
  chart.show(seen);
  strip.draw();
  strip.show(seen);
}

// What counts as surprising, in tenths of a bit: at first what about one token in two hundred reaches.
const threshold = { input: byId("threshold"), value: 0 };

threshold.set = (tenths) => {
  threshold.value = Math.min(+threshold.input.max, Math.max(1, Math.round(tenths)));
  threshold.input.value = threshold.value;
  const many = histogram.subarray(threshold.value).reduce((a, b) => a + b, 0);
  const words = `≥ ${(threshold.value / 10).toFixed(1)} bits: ${grouped(many)}`;
  byId("surprising").textContent = words;
  threshold.input.setAttribute("aria-valuetext", words);
};

threshold.prepare = () => {
  for (let token = 0; token < N; token++) {
    if (bits[token] !== NO_SCORE) histogram[Math.min(histogram.length - 1, Math.floor(bits[token] / 10))]++;
  }
  threshold.input.min = 0;
  threshold.input.max = about.ceiling.token * 10;
  let value = histogram.length;
  for (let many = 0; value > 1 && many < N / 200; ) many += histogram[--value];
  threshold.set(Math.min(value, about.ceiling.token * 10));
};

async function select(token) {
  mark(token);
  const words = await card.show(token, true);
  byId("live").textContent = words;
}

async function goTo(token, where) {
  card.hide();
  await reveal(token, where);
}

// The marked token while it is in the window: keys go on from there, and else from what is seen.
function here() {
  const box = view.current >= 0 ? spanOf(view.current)?.getBoundingClientRect() : undefined;
  const isSeen = box && box.bottom > byId("tools").getBoundingClientRect().bottom && box.top < innerHeight;
  return isSeen ? view.current : -1;
}

// Another key may come while the window still moves: then that one decides what is selected.
async function goToAndSelect(token) {
  mark(token);
  await goTo(token);
  if (view.current === token) await select(token);
}

async function goToSurprising(step) {
  const from = here();
  let token = from >= 0 ? from + step : step > 0 ? visibleTokens()[0] : visibleTokens()[1];
  const enough = threshold.value * 10;
  while (token >= 0 && token < N && !(bits[token] !== NO_SCORE && bits[token] >= enough)) token += step;
  if (token < 0 || token >= N) {
    byId("live").textContent = step > 0 ? "No more below." : "No more above.";
    return;
  }
  await goToAndSelect(token);
}

// Without upper case and accents, as long as before. Korean syllables and Japanese voiced ones stay as they are.
function fold(string) {
  const plain = (character) => {
    const folded = character.normalize("NFD").replace(/[^\P{M}\u3099\u309a]+$/u, "").toLowerCase();
    return folded.length === 1 ? folded : character;
  };
  return string.replace(/[^\0-\x7f]/g, plain).replace(/[A-Z]+/g, (letters) => letters.toLowerCase());
}

let folded = ""; // the text, once somebody searches it

function search() {
  const query = byId("query").value.normalize("NFC");
  if (query === view.query) return;
  view.query = query;
  view.hits = [];
  view.hit = -1;
  view.hitLength = query.length;
  if (query) {
    folded ||= fold(text);
    const wanted = fold(query);
    for (let at = folded.indexOf(wanted); at >= 0; at = folded.indexOf(wanted, at + wanted.length)) view.hits.push(at);
  }
  byId("found").textContent = query ? grouped(view.hits.length) : "";
  redraw();
  strip.draw();
  strip.show(visibleTokens());
}

async function goToHit(step) {
  search(); // what was typed last may not have been looked for yet
  const many = view.hits.length;
  if (!many) return;
  if (view.hit < 0) {
    const from = lowerBound(view.hits, start[visibleTokens()[0]]);
    view.hit = (step > 0 ? from : from - 1 + many) % many;
  } else {
    view.hit = (view.hit + step + many) % many;
  }
  byId("found").textContent = `${grouped(view.hit + 1)} of ${grouped(many)}`;
  redraw();
  await goTo(tokenAt(view.hits[view.hit]));
}

function setMode(mode) {
  view.mode = mode;
  document.querySelector(`[name=mode][value=${mode}]`).checked = true;
  threshold.input.hidden = mode !== "token"; // it is on the scale of tokens
  drawLegend();
  redraw();
}

const DARK = matchMedia("(prefers-color-scheme: dark)");
const theme = { before: undefined }; // what it was before printing
const PRINTED = 100_000; // tokens up to which documents are printed whole

function setTheme(name) {
  if (name === undefined) delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  themeChanged();
}

function changeTheme() {
  const { theme: chosen } = document.documentElement.dataset;
  const isDark = chosen ? chosen === "dark" : DARK.matches;
  setTheme(isDark ? "light" : "dark");
}

function themeChanged() {
  readPalette();
  drawPanels();
}

async function changeFont() {
  const [token] = visibleTokens();
  document.documentElement.classList.toggle("fixed");
  estimateHeights();
  await reveal(token, "start");
}

function move(step) {
  const marked = here();
  const from = marked >= 0 ? marked : visibleTokens()[0] - step;
  const token = Math.min(N - 1, Math.max(0, from + step));
  const span = spanOf(token);
  const box = span?.getBoundingClientRect();
  const isSeen = box && box.top > byId("tools").getBoundingClientRect().bottom && box.bottom < innerHeight;
  return isSeen ? select(token) : goToAndSelect(token);
}

const KEYS = {
  n: () => goToSurprising(1),
  p: () => goToSurprising(-1),
  "[": () => threshold.set(threshold.value - 5),
  "]": () => threshold.set(threshold.value + 5),
  "/": () => byId("query").focus(),
  c: () => setMode({ token: "word", word: "entropy", entropy: "token" }[view.mode]),
  f: changeFont,
  t: changeTheme,
  "?": () => byId("help").showModal(),
  Escape: () => {
    card.hide();
    mark(-1);
  },
};

function listenToKeys() {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
    if (event.target === byId("query")) {
      if (event.key === "Escape") textNode.focus({ preventScroll: true });
      return;
    }
    const isInText = event.target === textNode || event.target === document.body;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const action = step && isInText ? () => move(step) : KEYS[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  strip.canvas.addEventListener("keydown", (event) => {
    const [first, last] = visibleTokens();
    const page = Math.max(1, last - first);
    const target = { ArrowUp: first - N / 100, ArrowDown: first + N / 100, PageUp: first - page, PageDown: last, Home: 0, End: N - 1 }[event.key];
    if (target === undefined) return;
    event.preventDefault();
    goTo(Math.round(Math.min(N - 1, Math.max(0, target))), "start");
  });
}

function listenToPointer() {
  const tokenUnder = (event) => {
    const span = event.target.closest("[data-t]");
    if (!span) return -1;
    const token = +span.dataset.t;
    const end = unitEnd(token, blockOf(token).end);
    let best = token; // of several tokens in one character the most surprising
    for (let other = token + 1; other < end; other++) if (bits[other] > bits[best]) best = other;
    return best;
  };
  textNode.addEventListener("pointerover", (event) => {
    const token = event.pointerType === "touch" ? -1 : tokenUnder(event);
    if (token >= 0) card.show(token, false);
  });
  textNode.addEventListener("pointerleave", () => card.pinned || card.hide());
  textNode.addEventListener("click", (event) => {
    const token = tokenUnder(event);
    if (token < 0 || getSelection().type === "Range") return;
    if (card.pinned && token === view.current) KEYS.Escape();
    else select(token);
  });
  const goAlong = (event) => goTo(Math.floor(clamp(event.offsetY / strip.canvas.clientHeight) * (N - 1)));
  strip.canvas.addEventListener("pointerdown", (event) => {
    strip.canvas.setPointerCapture(event.pointerId);
    goAlong(event);
  });
  strip.canvas.addEventListener("pointermove", (event) => event.buttons && goAlong(event));
  const share = (event) => clamp((event.offsetX - chart.left) / (chart.canvas.clientWidth - chart.left - chart.right));
  chart.canvas.addEventListener("pointermove", (event) => chart.show(visibleTokens(), event.offsetX));
  chart.canvas.addEventListener("pointerleave", () => chart.show(visibleTokens()));
  chart.canvas.addEventListener("click", (event) => goTo(Math.floor(share(event) * (N - 1))));
}

const clamp = (share) => Math.min(1, Math.max(0, share));

function listenToControls() {
  byId("previous").onclick = KEYS.p;
  byId("next").onclick = KEYS.n;
  byId("font").onclick = changeFont;
  byId("theme").onclick = changeTheme;
  byId("keys").onclick = KEYS["?"];
  threshold.input.oninput = () => threshold.set(+threshold.input.value);
  byId("modes").onchange = (event) => setMode(event.target.value);
  byId("query").oninput = soon(search);
  byId("search").onsubmit = (event) => event.preventDefault();
  byId("query").onkeydown = (event) => {
    if (event.key === "Enter") goToHit(event.shiftKey ? -1 : 1);
  };
}

function listenToWindow() {
  addEventListener("scroll", soon(() => {
    const seen = visibleTokens();
    strip.show(seen);
    card.place();
    if (chart.canvas.getBoundingClientRect().bottom > 0) chart.show(seen);
  }), { passive: true });
  let width = textNode.clientWidth;
  addEventListener("resize", soon(() => {
    if (textNode.clientWidth !== width) estimateHeights();
    width = textNode.clientWidth;
    drawPanels();
    card.place();
  }));
  DARK.addEventListener("change", themeChanged);
  addEventListener("beforeprint", prepareToPrint);
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("printing", "partly");
    setTheme(theme.before);
    const near = blocks.filter(isNear);
    blocks.forEach(erase);
    near.forEach(draw);
  });
}

// On white, whole documents or what is around the window.
function prepareToPrint() {
  const root = document.documentElement;
  root.classList.add("printing");
  theme.before = root.dataset.theme;
  setTheme("light");
  const middle = blocks.indexOf(blockOf(visibleTokens()[0]));
  const isWhole = N <= PRINTED;
  const printed = isWhole ? blocks : blocks.slice(Math.max(0, middle - 10), middle + 20);
  blocks.forEach(erase);
  printed.forEach(draw);
  root.classList.toggle("partly", !isWhole);
  byId("printed").textContent = isWhole
    ? ""
    : `Tokens ${grouped(printed[0].first)} to ${grouped(printed.at(-1).end - 1)} of ${grouped(N)}, those around the window.`;
  for (const block of blocks) block.node.classList.toggle("unseen", !isWhole);
  for (const { node } of printed) node.classList.remove("unseen");
}

async function open() {
  await readDocument();
  countBins();
  cutBlocks();
  estimateHeights();
  fillHeader();
  threshold.prepare();
  drawLegend();
  themeChanged();
  listenToKeys();
  listenToPointer();
  listenToControls();
  listenToWindow();
  blocks.filter(isNear).forEach(draw);
  document.documentElement.classList.add("ready");
}

open().catch((error) => {
  byId("problem").hidden = false;
  byId("problem").textContent = `This page cannot be shown here: ${error.message}. A browser of 2024 or later is needed.`;
  throw error;
});
