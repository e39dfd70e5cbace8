// What is clicked, typed and scrolled.
function showFigures(figures) {
  byId("figures").replaceChildren(
    ...figures.map(([name, value]) => element("div", "", element("dt", "", name), element("dd", "", value))),
  );
}

function nameCourse() {
  const whole = measure("token").course.mean(0, BINS);
  byId("chart-title").textContent = `${perUnit[0].toUpperCase()}${perUnit.slice(1)} along the document`;
  chart.canvas.setAttribute(
    "aria-label",
    `Curve of ${perUnit} along the document; ${whole === null ? "nothing" : whole.toFixed(3)} in all. Click to go there.`,
  );
}

const FEWEST = 200; // tokens of a document from which on it has a course that can be drawn
const isShort = () => N < FEWEST || view.isWriting; // a curve that appears would move what somebody writes

function drawPanels() {
  if (isShort()) return;
  chart.draw();
  strip.draw();
  showSeen();
}

// Where the window is in the document.
function showSeen() {
  if (isShort()) return;
  const seen = visibleTokens();
  strip.show(seen);
  if (chart.canvas.getBoundingClientRect().bottom > 0) chart.show(seen);
}

const threshold = byId("threshold");

function setThreshold(tenths) {
  const items = measure();
  items.enough = Math.min(about.ceiling[view.mode] * 10, Math.max(1, Math.round(tenths)));
  const words = [plural(items.reach(items.enough), items.unit), `≥ ${items.enough / 10} bits`];
  threshold.max = about.ceiling[view.mode] * 10;
  threshold.value = items.enough;
  threshold.setAttribute("aria-valuetext", words.join(" "));
  byId("surprising").replaceChildren(...words.flatMap((part) => [element("span", "", part), " "]));
}

function chooseThreshold(tenths) {
  setThreshold(tenths);
  chosen[view.mode] = measure().enough;
}

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
  const items = measure();
  const from = here();
  let item = from >= 0 ? items.itemOf(from) + step : items.itemOf(visibleTokens()[step > 0 ? 0 : 1]);
  while (item >= 0 && item < items.values.length && !items.has(item)) item += step;
  if (item < 0 || item >= items.values.length) {
    byId("live").textContent = step > 0 ? "No more below." : "No more above.";
    return;
  }
  await goToAndSelect(items.tokenOf(item));
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

function findHits() {
  const { query } = view;
  view.hits = [];
  view.hit = -1;
  view.hitLength = query.length;
  if (query) {
    folded ||= fold(text);
    const wanted = fold(query);
    for (let at = folded.indexOf(wanted); at >= 0; at = folded.indexOf(wanted, at + wanted.length)) view.hits.push(at);
  }
  byId("found").textContent = query ? grouped(view.hits.length) : "";
}

// Whether there is something new to look for, which then was found.
function search() {
  const query = byId("query").value.normalize("NFC");
  if (query === view.query) return false;
  view.query = query;
  findHits();
  card.hide(); // it is about something else
  redraw();
  if (!isShort()) strip.draw();
  showSeen();
  return true;
}

async function goToHit(step) {
  clearTimeout(view.typing);
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

// Goes to the first place from what is seen, once nothing more is typed for a moment.
function searchSoon() {
  clearTimeout(view.typing);
  view.typing = setTimeout(() => {
    if (search()) goToHit(1);
  }, 200);
}

function setMode(mode) {
  view.mode = mode;
  document.querySelector(`[name=mode][value=${mode}]`).checked = true;
  drawLegend();
  setThreshold(measure().enough);
  redraw();
  if (!isShort()) strip.draw();
  showSeen();
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
  "[": () => chooseThreshold(measure().enough - 5),
  "]": () => chooseThreshold(measure().enough + 5),
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
    if (event.target.matches("textarea, [type=search], [type=number]")) {
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

// `spanAt` finds the element of the token at which an event points; `type` is the event of a pointer over it.
function listenToPointer(node = textNode, type = "pointerover", spanAt = ({ target }) => target.closest("[data-t]")) {
  const tokenUnder = (event) => {
    const span = spanAt(event);
    if (!span) return -1;
    const token = +span.dataset.t;
    const end = unitEnd(token, blockOf(token).end);
    let best = token; // of several tokens in one character the most surprising
    for (let other = token + 1; other < end; other++) if (bits[other] > bits[best]) best = other;
    return best;
  };
  node.addEventListener(type, (event) => {
    const token = event.pointerType === "touch" || event.buttons ? -1 : tokenUnder(event);
    if (token >= 0 && token !== card.token) card.show(token, false);
  });
  node.addEventListener("pointerleave", () => card.pinned || card.hide());
  node.addEventListener("click", (event) => {
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
  threshold.oninput = () => chooseThreshold(+threshold.value);
  byId("modes").onchange = (event) => setMode(event.target.value);
  byId("query").oninput = searchSoon;
  byId("search").onsubmit = (event) => event.preventDefault();
  byId("query").onkeydown = (event) => {
    if (event.key === "Enter") goToHit(event.shiftKey ? -1 : 1);
  };
}

function listenToWindow() {
  addEventListener("scroll", soon(() => {
    showSeen();
    card.place();
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
