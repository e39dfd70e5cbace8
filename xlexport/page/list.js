// A page of several documents, or of two sides. A document is {name, fields, contexts, text, spans, bits, difference,
// values}: `spans` has for each word how far it begins after the one before it, and its length, in UTF-16 units; `bits`
// has the bits of each word for each side, `difference` is A − B, all in steps of a bit, null if a figure is missing.
// A document that is left out is {name, fields, why}.
import { about, byId, element, label, legible, plural, showPage, unpackedJson } from "./dom.js";
import { drawLegend, showHeader } from "./panels.js";
import { TextView, levelOf } from "./text_view.js";
import { theme } from "./theme.js";
import { Tokens } from "./tokens.js";

const isPair = about.sides.length > 1;
const MODES = isPair ? [["difference", "A − B"], ["0", "A"], ["1", "B"]] : [["0", "word"]];
const PIECE = 500; // rows of a table of words that are drawn at once
const MOST_OPENED = 20_000; // words up to which all documents are opened at once
let mode = isPair ? "difference" : "0";

const valuesOf = (shown, of = mode) => (of === "difference" ? shown.difference : shown.bits[+of]);
const ceiling = (of = mode) => about.ceiling[of === "difference" ? "difference" : "word"];
const minus = (string) => string.replace("-", "−");
const isSigned = () => mode === "difference";

function figure(value, digits, isWithSign = false) {
  if (value === null) return "";
  const number = value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return minus(isWithSign && value > 0 ? `+${number}` : number);
}

const ofSteps = (value, isWithSign) => figure(value === null ? null : value / about.steps, 2, isWithSign);

// The classes that colour a value; a negative difference is also underlined, for eyes and paper without colours.
function classesOf(value, most = ceiling()) {
  if (value === null) return "unscored";
  const level = levelOf(Math.abs(value) / about.steps, most);
  return value < 0 ? `c${level}${level ? " minus" : ""}` : `l${level}`;
}

// The scale, with the number of words of each colour in all documents.
function drawScale(documents) {
  const levels = Array.from({ length: about.levels }, (_, level) => level);
  const classes = levels.map((level) => `l${level}`);
  if (isSigned()) classes.unshift(...levels.slice(1).toReversed().map((level) => `c${level}`));
  const counts = new Map(classes.map((name) => [name, 0]));
  for (const value of documents.flatMap((shown) => (shown.why === undefined ? valuesOf(shown) : []))) {
    const name = classesOf(value).split(" ")[0].replace("c0", "l0");
    if (value !== null) counts.set(name, counts.get(name) + 1);
  }
  const most = ceiling();
  const ticks = isSigned() ? [-most, -most / 2, 0, most / 2, most] : [0, most / 4, most / 2, (3 * most) / 4, most];
  const names = ticks.map((value) => minus(`${isSigned() && value > 0 ? "+" : ""}${value}${value ? "" : " bits"}`));
  drawLegend(classes, [...counts.values()], names);
  byId("meaning").textContent = isSigned()
    ? "Warm colours: A finds the word more surprising. Cool colours and dotted lines: B does."
    : "Darker words (brighter on a dark page) are more surprising.";
}

// Calls `draw` for the first of `many` rows at once, and for more when somebody asks for them.
function inPieces(parent, many, draw) {
  let done = 0;
  const more = element("button", "more");
  more.onclick = () => {
    const end = Math.min(many, done + PIECE);
    for (; done < end; done++) draw(done);
    more.textContent = `Show ${plural(Math.min(PIECE, many - done), "more word")} of ${many.toLocaleString("en-US")}`;
    more.hidden = done === many;
  };
  more.onclick();
  if (done < many) parent.append(more);
}

// The words of a document in the text view: unit 2 i + 1 is word i, the units between them are white space.
function drawText(shown) {
  const node = element("div", "text");
  const start = [0];
  for (const length of shown.spans) start.push(start.at(-1) + length);
  if (start.length > 1) start.push(shown.text.length);
  const many = start.length - 1;
  shown.view = new TextView(node, (span, unit, next) => {
    if (unit % 2 === 0 && next === unit + 1) return;
    const word = unit >> 1;
    span.className = `word ${classesOf(valuesOf(shown)[word])}`;
    span.title = describe(shown, word);
  });
  shown.view.set(new Tokens({ text: shown.text, start, bits: new Uint16Array(many) }));
  return node;
}

function describe(shown, word) {
  const sides = shown.bits.map((bits, side) => `${isPair ? `${"AB"[side]}: ` : ""}${ofSteps(bits[word]) || "no score"}`);
  if (isPair) sides.push(`A − B: ${ofSteps(shown.difference[word], true) || "none"}`);
  return `${sides.join(", ")} bits`;
}

function drawTable(shown) {
  const columns = isPair ? ["0", "1", "difference"] : ["0"];
  const heads = ["word", ...(isPair ? ["A, bits", "B, bits", "A − B, bits"] : ["bits"])];
  const body = element("tbody");
  const sums = columns.map((of) => {
    const values = valuesOf(shown, of).filter((value) => value !== null);
    return ofSteps(values.length ? values.reduce((a, b) => a + b, 0) : null, of === "difference");
  });
  const table = element(
    "table",
    "words",
    element("thead", "", element("tr", "", ...heads.map((head) => element("th", "", head)))),
    body,
    element("tfoot", "", element("tr", "", element("td", "", "sum"), ...sums.map((sum) => element("td", "", sum)))),
  );
  const parent = element("div", "", table);
  let place = 0;
  inPieces(parent, shown.bits[0].length, (word) => {
    const from = place + shown.spans[2 * word];
    place = from + shown.spans[2 * word + 1];
    const cells = columns.map((of) => {
      const value = valuesOf(shown, of)[word];
      const isColoured = of === columns.at(-1);
      return element("td", isColoured ? classesOf(value, ceiling(of)) : "", ofSteps(value, of === "difference"));
    });
    body.append(element("tr", "", element("td", "", element("bdi", "", label(shown.text.slice(from, place)))), ...cells));
  });
  return parent;
}

// What the model read before the document, below its text.
function drawContexts({ contexts }) {
  return contexts.map((context, side) => {
    const name = contexts.length > 1 ? `Context of ${"AB"[side]}: ` : "Context: ";
    return element("p", "context", name, element("bdi", "", context ? legible(context) : "none"));
  });
}

function open(shown) {
  if (shown.row || shown.why !== undefined) return;
  const table = element("details", "", element("summary", "", "Words as a table"));
  table.ontoggle = () => {
    if (table.open && table.childElementCount === 1) table.append(drawTable(shown));
  };
  table.open = isPair && shown.bits[0].length <= PIECE;
  const cell = element("td");
  cell.colSpan = 1 + about.fields.length + about.columns.length;
  shown.row = element("tr", "opened", cell);
  shown.body.append(shown.row);
  cell.append(drawText(shown), ...drawContexts(shown), table);
  shown.button.ariaExpanded = "true";
}

function close(shown) {
  shown.row?.remove();
  shown.row = null;
  shown.button?.setAttribute("aria-expanded", "false");
}

function drawDocument(shown) {
  const cell = (name, ...content) => element("td", name, ...content);
  const fields = shown.fields.map((field) => cell("field", element("bdi", "", legible(field))));
  const name = element("bdi", "", legible(shown.name));
  if (shown.why !== undefined) {
    const why = cell("why", legible(`left out: ${shown.why}`));
    why.colSpan = about.columns.length;
    return (shown.body = element("tbody", "", element("tr", "", cell("", name), ...fields, why)));
  }
  shown.button = element("button", "name", name);
  shown.button.ariaExpanded = "false";
  shown.button.onclick = () => (shown.row ? close : open)(shown);
  const numbers = about.columns.map(([title, digits], column) =>
    cell("", figure(shown.values[column], digits, title.startsWith("A − B"))),
  );
  return (shown.body = element("tbody", "", element("tr", "", cell("", shown.button), ...fields, ...numbers)));
}

function drawList(documents) {
  const table = byId("documents");
  // The columns: names, fields of the items, and figures; missing figures come last in either order.
  const keys = [
    ({ name }) => name,
    ...about.fields.map((_, place) => ({ fields }) => fields[place]),
    ...about.columns.map((_, place) => ({ values }) => values?.[place] ?? null),
  ];
  const isNumber = (column) => column > about.fields.length;
  let sorted = null;
  const sortBy = (column) => {
    const isDown = sorted?.column === column ? !sorted.isDown : isNumber(column);
    sorted = { column, isDown };
    const compare = (one, other) => {
      const [a, b] = [one, other].map(keys[column]);
      if (a === null || b === null) return (a === null) - (b === null);
      return (isDown ? -1 : 1) * (isNumber(column) ? a - b : a.localeCompare(b, "en", { numeric: true }));
    };
    table.append(...documents.toSorted(compare).map(({ body }) => body));
    heads.forEach((head, place) => (head.ariaSort = place === column ? (isDown ? "descending" : "ascending") : null));
  };
  const heads = ["document", ...about.fields.map(legible), ...about.columns.map(([title]) => title)].map((title, column) => {
    const button = element("button", "", title);
    button.onclick = () => sortBy(column);
    return element("th", isNumber(column) ? "" : "field", button);
  });
  byId("heads").replaceChildren(...heads);
  table.append(...documents.map(drawDocument));
}

function listen(documents) {
  const choices = MODES.map(([value, title]) => {
    const input = element("input");
    Object.assign(input, { type: "radio", name: "mode", value, checked: value === mode });
    return element("label", "", input, element("span", "", title));
  });
  byId("modes").append(...choices);
  byId("modes").hidden = !isPair;
  byId("modes").onchange = ({ target }) => {
    mode = target.value;
    drawScale(documents);
    for (const shown of documents) if (shown.row) shown.view.redraw();
  };
  const scored = documents.filter(({ why }) => why === undefined);
  byId("all").hidden = scored.length < 2 || scored.reduce((sum, { bits }) => sum + bits[0].length, 0) > MOST_OPENED;
  byId("all").onclick = () => {
    const isOpen = scored.every(({ row }) => row);
    scored.forEach(isOpen ? close : open);
    byId("all").textContent = isOpen ? "Open all" : "Close all";
  };
  byId("theme").onclick = theme.change;
}

showPage(async () => {
  const documents = await unpackedJson("packed");
  showHeader();
  drawList(documents);
  drawScale(documents);
  listen(documents);
  if (documents.length === 1) open(documents[0]);
});
