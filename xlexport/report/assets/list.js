// A page of several documents, or of two sides. A document is {name, contexts, text, spans, bits, partly, difference, values}: `spans` is
// by word how far it begins after the one before it, and how long it is, in UTF-16 units. `bits` has a list by word for
// each side, `difference` is A − B, all in steps of a bit, null if a figure is missing. `partly` has for each side the
// words of which only a part has a score. A document that is left out is {name, why}.
const isPair = about.sides.length > 1;
const MODES = isPair ? [["difference", "A − B"], ["0", "A"], ["1", "B"]] : [["0", "word"]];
const PIECE = { text: 5000, table: 500 }; // words that are drawn at once
const MOST_OPENED = 20_000; // words up to which all documents are opened at once
const view = { mode: MODES[0][0], sorted: -1, isDown: false };
let documents = [];

const valuesOf = (document) => (view.mode === "difference" ? document.difference : document.bits[+view.mode]);
const ceiling = () => about.ceiling[view.mode === "difference" ? "difference" : "word"];
const minus = (string) => string.replace("-", "−");

function figure(value, digits, isSigned = false) {
  if (value === null) return "";
  const shown = value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return minus(isSigned && value > 0 ? `+${shown}` : shown);
}

const ofSteps = (value, isSigned) => figure(value === null ? null : value / about.steps, 2, isSigned);

// The classes that colour a value; a negative difference is also underlined, for eyes and paper without colours.
function classesOf(value, most = ceiling()) {
  if (value === null) return "unscored";
  const level = Math.min(about.levels - 1, Math.floor((Math.abs(value) / about.steps / most) * about.levels));
  return value < 0 ? `c${level}${level ? " minus" : ""}` : `l${level}`;
}

function fillHeader() {
  const sides = about.sides.map(([name, model], side) => {
    const value = element("dd", "", element("bdi", "", legible(name)), name ? ` · ${model}` : model);
    return element("div", "", ...(isPair ? [element("dt", "", "AB"[side])] : []), value);
  });
  byId("sides").replaceChildren(...sides);
  byId("notes").replaceChildren(...about.notes.map((note) => element("p", "", legible(note))));
  byId("figures").replaceChildren(
    ...about.figures.map(([name, value]) => element("div", "", element("dt", "", name), element("dd", "", minus(value)))),
  );
}

function drawLegend() {
  const levels = Array.from({ length: about.levels }, (_, level) => level);
  const isSigned = view.mode === "difference";
  const classes = [...(isSigned ? levels.toReversed().map((level) => `c${level}`) : []), ...levels.map((level) => `l${level}`)];
  byId("ramp").replaceChildren(...classes.map((name) => element("i", name)));
  const top = ceiling();
  const ticks = isSigned ? [-top, -top / 2, 0, top / 2, top] : [0, top / 4, top / 2, (3 * top) / 4, top];
  byId("scale").replaceChildren(
    ...ticks.map((value) => element("span", "", minus(`${isSigned && value > 0 ? "+" : ""}${value}${value ? "" : " bits"}`))),
  );
  byId("meaning").textContent = isSigned
    ? "Warm: A finds the word more surprising. Cool and dotted: B does."
    : "Darker words (brighter on a dark page) are more surprising.";
}

// Draws `many` things, the first of them at once and more when somebody asks for them.
function inPieces(parent, many, size, draw) {
  let done = 0;
  const more = element("button", "more");
  const next = () => {
    const end = Math.min(many, done + size);
    for (; done < end; done++) draw(done);
    more.textContent = `Show ${plural(Math.min(size, many - done), "more word")} of ${grouped(many)}`;
    more.hidden = done === many;
  };
  more.onclick = next;
  next();
  if (done < many) parent.append(more);
}

function drawText(shown) {
  const node = element("div", "block");
  node.dir = "auto";
  const parent = element("div", "", node);
  const values = valuesOf(shown);
  const { spans, text } = shown;
  const partly = new Set(view.mode === "difference" ? [] : shown.partly[+view.mode]);
  let place = 0;
  inPieces(parent, values.length, PIECE.text, (word) => {
    const from = place + spans[2 * word];
    const to = from + spans[2 * word + 1];
    node.append(legible(text.slice(place, from)));
    const span = element("span", classesOf(values[word]));
    if (partly.has(word)) span.classList.add("partly");
    fill(span, text.slice(from, to));
    span.title = shown.bits.map((bits, side) => `${isPair ? `${"AB"[side]}: ` : ""}${ofSteps(bits[word]) || "no score"}`).join(", ");
    if (isPair) span.title += `, A − B: ${ofSteps(shown.difference[word], true) || "none"}`;
    span.title += " bits";
    node.append(span);
    place = to;
    if (word === values.length - 1) node.append(legible(text.slice(place)));
  });
  if (!values.length) node.append(legible(text));
  return parent;
}

function drawTable(shown) {
  const heads = isPair ? ["word", "A, bits", "B, bits", "A − B, bits"] : ["word", "bits"];
  const body = element("tbody");
  const cell = (text, classes = "") => element("td", classes, text);
  const partly = shown.partly.map((words) => new Set(words));
  const [, a, b, difference] = isPair ? shown.values : [, shown.values[1]];
  const sums = isPair ? [figure(a, 2), figure(b, 2), figure(difference, 2, true)] : [figure(a, 2)];
  const table = element(
    "table",
    "words",
    element("thead", "", element("tr", "", ...heads.map((head) => element("th", "", head)))),
    body,
    element("tfoot", "", element("tr", "", cell("sum"), ...sums.map((sum) => cell(sum)))),
  );
  const parent = element("div", "", table);
  let place = 0;
  inPieces(parent, shown.bits[0].length, PIECE.table, (word) => {
    const from = place + shown.spans[2 * word];
    place = from + shown.spans[2 * word + 1];
    const cells = shown.bits.map((bits) => cell(ofSteps(bits[word]), isPair ? "" : classesOf(bits[word])));
    cells.forEach((node, side) => node.classList.toggle("partly", partly[side].has(word)));
    if (isPair) {
      const value = shown.difference[word];
      cells.push(cell(ofSteps(value, true), classesOf(value, about.ceiling.difference)));
    }
    const name = element("bdi", "", label(shown.text.slice(from, place)));
    body.append(element("tr", "", element("td", "", name), ...cells));
  });
  return parent;
}

// What the model read before the document, below its text.
function drawContexts({ contexts }) {
  return contexts.map((context, side) => {
    const which = contexts.length > 1 ? `Context of ${"AB"[side]}: ` : "Context: ";
    return element("p", "context", which, element("bdi", "", context ? legible(context) : "none"));
  });
}

function open(shown) {
  if (shown.row || shown.why !== undefined) return;
  const table = element("details", "", element("summary", "", "Words as a table"));
  table.ontoggle = () => {
    if (table.open && table.childElementCount === 1) table.append(drawTable(shown));
  };
  table.open = isPair && shown.bits[0].length <= PIECE.table;
  const cell = element("td", "", drawText(shown), ...drawContexts(shown), table);
  cell.colSpan = about.columns.length + 1;
  shown.row = element("tr", "opened", cell);
  shown.body.append(shown.row);
  shown.button.setAttribute("aria-expanded", "true");
}

function close(shown) {
  shown.row?.remove();
  shown.row = null;
  shown.button?.setAttribute("aria-expanded", "false");
}

function drawDocument(shown) {
  if (shown.why !== undefined) {
    const why = element("td", "why", legible(`left out: ${shown.why}`));
    why.colSpan = about.columns.length;
    return (shown.body = element("tbody", "", element("tr", "", element("td", "", element("bdi", "", legible(shown.name))), why)));
  }
  shown.button = element("button", "name", element("bdi", "", legible(shown.name)));
  shown.button.setAttribute("aria-expanded", "false");
  shown.button.onclick = () => (shown.row ? close : open)(shown);
  const cells = about.columns.map(([title, digits], column) =>
    element("td", "", figure(shown.values[column], digits, title.startsWith("A − B"))),
  );
  return (shown.body = element("tbody", "", element("tr", "", element("td", "", shown.button), ...cells)));
}

// Sorts by a column, -1 is that of names, or turns the order round; without figures come last.
function sortBy(column) {
  view.isDown = view.sorted === column ? !view.isDown : column >= 0;
  view.sorted = column;
  const sign = view.isDown ? -1 : 1;
  const value = ({ values }) => values?.[column] ?? null;
  const compare = (one, other) => {
    if (column < 0) return sign * one.name.localeCompare(other.name, "en", { numeric: true });
    if (value(one) === null || value(other) === null) return (value(one) === null) - (value(other) === null);
    return sign * (value(one) - value(other));
  };
  byId("documents").append(...documents.toSorted(compare).map(({ body }) => body));
  [...byId("heads").children].forEach((head, n) => {
    if (n === column + 1) head.setAttribute("aria-sort", view.isDown ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
}

function drawList() {
  const heads = ["document", ...about.columns.map(([title]) => title)].map((title, n) => {
    const button = element("button", "", title);
    button.onclick = () => sortBy(n - 1);
    return element("th", "", button);
  });
  byId("heads").replaceChildren(...heads);
  byId("documents").append(...documents.map(drawDocument));
}

function setMode(mode) {
  view.mode = mode;
  drawLegend();
  for (const shown of documents.filter(({ row }) => row)) {
    const [cell] = shown.row.children;
    cell.replaceChild(drawText(shown), cell.firstChild);
  }
}

function listenToControls() {
  const choices = MODES.map(([mode, title]) => {
    const input = element("input");
    Object.assign(input, { type: "radio", name: "mode", value: mode, checked: mode === view.mode });
    return element("label", "", input, element("span", "", title));
  });
  byId("modes").append(...choices);
  byId("modes").hidden = !isPair;
  byId("modes").onchange = (event) => setMode(event.target.value);
  const scored = documents.filter(({ why }) => why === undefined);
  byId("all").hidden = scored.length < 2 || scored.reduce((sum, { bits }) => sum + bits[0].length, 0) > MOST_OPENED;
  byId("all").onclick = () => {
    const isOpen = scored.every(({ row }) => row);
    scored.forEach(isOpen ? close : open);
    byId("all").textContent = isOpen ? "Open all" : "Close all";
  };
  byId("theme").onclick = () => {
    const { dataset } = document.documentElement;
    const isDark = dataset.theme ? dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    dataset.theme = isDark ? "light" : "dark";
  };
}

async function show() {
  documents = JSON.parse(new TextDecoder().decode(await unpacked("packed")));
  fillHeader();
  drawList();
  drawLegend();
  listenToControls();
  if (documents.length === 1) open(documents[0]);
  document.documentElement.classList.add("ready");
}

show().catch((error) => {
  byId("problem").hidden = false;
  byId("problem").textContent = `This page cannot be shown here: ${error.message}. A browser of 2024 or later is needed.`;
  throw error;
});
