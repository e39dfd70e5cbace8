// What surrounds the text: totals, the scale of colours, the curve along the document, and its overview.
import { about, byId, capitalized, clamp, element, grouped, legible } from "./dom.js";

const perUnit = about.hasBytes ? "bits per byte" : "bits per token";
const POINTS = 1000; // of the curve
const ROWS = 400; // of the overview

export function showHeader() {
  const sides = about.sides.map(([name, model], side) => {
    const letter = about.sides.length > 1 ? [element("b", "", "AB"[side])] : [];
    return element("p", "", ...letter, element("bdi", "", legible(name)), name ? ` · ${model}` : model);
  });
  byId("sides").replaceChildren(...sides);
  byId("notes").replaceChildren(...about.notes.map((note) => element("p", "", legible(note))));
  if (about.figures) showFigures(about.figures);
}

export function showFigures(figures) {
  byId("figures").replaceChildren(
    ...figures.map(([name, value]) => element("div", "", element("dt", "", name), element("dd", "", value))),
  );
}

// The scale: a bar for each colour, whose height shows how many there are of it, above its ends in bits.
export function drawLegend(classes, counts, ticks) {
  const most = Math.max(1, ...counts);
  const bars = classes.map((name, place) => {
    const bar = element("i", name);
    bar.style.height = `${8 + 26 * Math.sqrt(counts[place] / most)}px`;
    return bar;
  });
  byId("histogram").replaceChildren(...bars);
  byId("scale").replaceChildren(...ticks.map((tick) => element("span", "", tick)));
}

// The scale of a document.
export function drawScale(measure, mode) {
  const { levels } = about;
  const most = about.ceiling[mode];
  const classes = Array.from({ length: levels }, (_, level) => `l${level}`);
  const counts = classes.map((_, level) => {
    const [from, end] = [level, level + 1].map((edge) => Math.round((edge / levels) * most * 10));
    return measure.reach(from) - (level === levels - 1 ? 0 : measure.reach(end));
  });
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => `${+(share * most).toFixed(1)}`);
  ticks[0] += " bits";
  if (mode !== "entropy") ticks[4] += "+"; // entropy cannot be more than that of a blind guess
  drawLegend(classes, counts, ticks);
}

// Puts an element at a share of the panel's width and height, from its left lower corner.
function placed(node, left, bottom) {
  Object.assign(node.style, { left: `${100 * left}%`, bottom: `${100 * bottom}%` });
  return node;
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
}

// The range of values, without a share of outliers at either end that would flatten the rest.
function range(values, outliers) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  if (!sorted.length) return [0, 1];
  const [low, high] = [outliers, 1 - outliers].map((share) => sorted[Math.round(share * (sorted.length - 1))]);
  return high - low > 1e-6 ? [low, high] : [low - 0.5, high + 0.5];
}

// Where somebody points in a panel, as a share of its width and of its height.
export function shareOf(node, { clientX, clientY }) {
  const { left, top, width, height } = node.getBoundingClientRect();
  return [clamp((clientX - left) / width), clamp((clientY - top) / height)];
}

export const curve = {
  node: byId("plot"),

  draw(measure) {
    const { course, tokens } = measure;
    const nearby = Array.from({ length: POINTS }, (_, x) => course.near((x + 0.5) / POINTS));
    const running = nearby.map((value, x) => (value === null ? null : course.upTo((x + 1) / POINTS)));
    const [low, high] = range(nearby, 0);
    const [bottom, top] = [Math.max(0, low - 0.1 * (high - low)), high + 0.1 * (high - low)];
    const y = (value) => clamp((value - bottom) / (top - bottom));
    const path = (values) =>
      values.map((value, x) => (value === null ? "" : `${x && values[x - 1] !== null ? "L" : "M"}${x} ${1 - y(value)}`)).join("");
    byId("near").setAttribute("d", path(nearby));
    byId("running").setAttribute("d", path(running));
    const step = niceStep((top - bottom) / 5);
    const digits = Math.max(0, Math.ceil(-Math.log10(step)));
    const marks = [];
    for (let value = Math.ceil(bottom / step) * step; value <= top; value += step) {
      marks.push(placed(element("span", "height", element("b", "", value.toFixed(digits))), 0, y(value)));
    }
    const apart = niceStep(tokens.n / (this.node.clientWidth > 500 ? 6 : 3));
    for (let token = 0; token < tokens.n; token += apart) {
      const isLast = token + apart >= tokens.n;
      const name = isLast ? `${grouped(token)} ${about.unit}s` : grouped(token);
      marks.push(placed(element("span", isLast ? "place last" : "place", element("b", "", name)), token / tokens.n, 0));
    }
    byId("marks").replaceChildren(...marks);
    Object.assign(this, { n: tokens.n, nearby });
    const mean = course.upTo();
    byId("chart-title").textContent = `${capitalized(perUnit)} along the document`;
    byId("chart").ariaLabel = `Curve of ${perUnit} along the document; ${mean === null ? "nothing" : mean.toFixed(3)} in all. Click to go there.`;
  },

  // Shows which part of the document the window has.
  show([first, last]) {
    placed(byId("seen"), first / this.n, 0).style.width = `max(3px, ${(100 * (last - first)) / this.n}%)`;
  },

  // Shows the figure under the pointer, or none.
  point(share) {
    byId("pointer").hidden = share === null;
    if (share === null) return;
    const value = this.nearby[Math.min(POINTS - 1, Math.floor(share * POINTS))];
    const name = `${value === null ? "–" : value.toFixed(3)} at ${about.unit} ${grouped(Math.round(share * this.n))}`;
    placed(byId("pointer"), share, 0).replaceChildren(element("b", share > 0.8 ? "before" : share < 0.2 ? "behind" : "", name));
  },
};

export const overview = {
  node: byId("strip"),

  draw({ course, tokens }, hits) {
    const window = Math.max((3 / ROWS) * course.bins, (30 / tokens.n) * course.bins);
    const means = Array.from({ length: ROWS }, (_, row) => course.near((row + 0.5) / ROWS, window));
    const [low, high] = range(means, 0.01);
    const bars = means.map((mean) => {
      const share = mean === null ? null : clamp((mean - low) / (high - low));
      // The first colours are hardly there on the page, so the bars begin above them.
      const bar = element("i", share === null ? "" : `l${2 + Math.round(share * (about.levels - 3))}`);
      if (share !== null) bar.style.width = `${30 + 70 * share}%`;
      return bar;
    });
    byId("bars").replaceChildren(...bars);
    const rows = new Set(hits.map((place) => Math.round((place / tokens.text.length) * ROWS)));
    byId("hits").replaceChildren(...[...rows].map((row) => placed(element("i"), 0, 1 - row / ROWS)));
  },

  // Shows which part of the document the window has.
  show([first, last], n) {
    const share = first / Math.max(1, n);
    placed(byId("window"), 0, 1 - last / n).style.top = `${100 * share}%`;
    this.node.ariaValueNow = Math.round(100 * share);
    this.node.ariaValueText = `token ${grouped(first)} of ${grouped(n)}, ${Math.round(100 * share)} %`;
  },
};
