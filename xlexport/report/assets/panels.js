// What surrounds the text: totals, legend, the curve along the document, the overview, and the card about a token.
const perUnit = about.hasBytes ? "bits per byte" : "bits per token";

let palette = {}; // colours of the present theme as [r, g, b], for canvases

function readPalette() {
  const probe = document.body.appendChild(element("i"));
  const read = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  };
  palette = { scale: Array.from({ length: about.levels }, (_, level) => read(`l${level}`)) };
  for (const name of ["ink", "quiet", "faint", "accent", "panel"]) palette[name] = read(name);
  probe.remove();
}

const css = ([r, g, b], alpha = 1) => `rgb(${r} ${g} ${b} / ${alpha})`;

// A colour of the scale, 0 to 1, for panels: its first steps are hardly there, so it begins above them.
function shade(share) {
  const place = 2 + Math.min(1, Math.max(0, share)) * (about.levels - 3);
  const low = Math.floor(place);
  const [one, other] = [palette.scale[low], palette.scale[Math.min(low + 1, about.levels - 1)]];
  return css(one.map((value, i) => value + (place - low) * (other[i] - value)));
}

// A canvas as sharp as the screen: its drawing context and its size in CSS pixels.
function prepare(canvas, { clientWidth: width, clientHeight: height } = canvas) {
  canvas.width = Math.max(1, Math.round(width * devicePixelRatio));
  canvas.height = Math.max(1, Math.round(height * devicePixelRatio));
  const pen = canvas.getContext("2d");
  pen.scale(devicePixelRatio, devicePixelRatio);
  return { pen, width, height };
}

// The same with what was drawn before on another one, which takes long, as its ground.
function copy(canvas, ground) {
  const prepared = prepare(canvas);
  prepared.pen.drawImage(ground, 0, 0, prepared.width, prepared.height);
  return prepared;
}

// The range of values, without a share of outliers at either end that would flatten the rest.
function range(values, outliers = 0.01) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  if (!sorted.length) return [0, 1];
  const [low, high] = [outliers, 1 - outliers].map((share) => sorted[Math.round(share * (sorted.length - 1))]);
  return high - low > 1e-6 ? [low, high] : [low - 0.5, high + 0.5];
}

const chart = { canvas: byId("chart"), ground: element("canvas"), left: 40, right: 4, top: 8, bottom: 24 };

chart.draw = () => {
  const { pen, width, height } = prepare(chart.ground, chart.canvas);
  const { course } = measure("token");
  const inner = Math.max(1, width - chart.left - chart.right);
  const base = height - chart.bottom;
  const nearby = Array.from({ length: Math.floor(inner) }, (_, x) => course.near(x / inner));
  const meanTo = (x) => course.mean(0, Math.max(1, Math.round(((x + 1) / inner) * BINS)));
  const running = nearby.map((value, x) => (value === null ? null : meanTo(x)));
  const [low, high] = range(nearby, 0);
  const bottom = Math.max(0, low - 0.1 * (high - low));
  const top = high + 0.1 * (high - low);
  const y = (value) => base - ((Math.min(top, Math.max(bottom, value)) - bottom) / (top - bottom)) * (base - chart.top);
  Object.assign(chart, { inner, base, nearby });
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const step = niceStep((top - bottom) / 5);
  for (let value = Math.ceil(bottom / step) * step; value <= top; value += step) {
    pen.fillStyle = css(palette.faint);
    pen.fillRect(chart.left, Math.round(y(value)), inner, 1);
    pen.fillStyle = css(palette.quiet);
    pen.textAlign = "right";
    pen.fillText(value.toFixed(Math.max(0, Math.ceil(-Math.log10(step)))), chart.left - 7, y(value));
  }
  line(pen, nearby, y, css(palette.ink), 1.25);
  pen.setLineDash([5, 4]);
  line(pen, running, y, css(palette.accent), 1.75);
  pen.setLineDash([]);
  pen.textBaseline = "alphabetic";
  pen.textAlign = "left";
  const ticks = niceStep(N / (width > 500 ? 6 : 3));
  for (let token = 0; token < N; token += ticks) {
    const x = chart.left + (token / N) * inner;
    const words = token + ticks < N ? grouped(token) : `${grouped(token)} ${about.unit}s`;
    const room = pen.measureText(words).width;
    pen.fillStyle = css(palette.quiet);
    pen.fillRect(Math.round(x), base, 1, 7);
    pen.fillText(words, Math.min(x - pen.measureText(grouped(token)).width / 2, width - room), height - 4);
  }
};

// With the part that is seen in the window, and the figure under the mouse, at `pointer` pixels.
chart.show = ([first, last], pointer = null) => {
  const { pen } = copy(chart.canvas, chart.ground);
  const { left, inner, base } = chart;
  pen.fillStyle = css(palette.accent);
  pen.fillRect(left + (first / N) * inner, base, Math.max(3, ((last - first) / N) * inner), 3);
  if (pointer === null) return;
  const x = Math.min(inner - 1, Math.max(0, pointer - left));
  const value = chart.nearby[Math.floor(x)] ?? null;
  const words = `${value === null ? "–" : value.toFixed(3)} at ${about.unit} ${grouped(Math.round((x / inner) * N))}`;
  pen.font = "12px system-ui, sans-serif";
  const half = pen.measureText(words).width / 2 + 8;
  const middle = Math.min(left + inner - half, Math.max(left + half, left + x));
  pen.fillStyle = css(palette.ink);
  pen.fillRect(left + x, chart.top, 1, base - chart.top);
  pen.beginPath();
  pen.roundRect(middle - half, 2, 2 * half, 20, 5);
  pen.fill();
  pen.fillStyle = css(palette.panel);
  pen.textAlign = "center";
  pen.fillText(words, middle, 16);
};

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
}

function line(pen, values, y, colour, thickness) {
  pen.beginPath();
  values.forEach((value, x) => value !== null && pen.lineTo(chart.left + x, y(value)));
  pen.strokeStyle = colour;
  pen.lineWidth = thickness;
  pen.stroke();
}

const strip = { canvas: byId("strip"), ground: element("canvas") };

strip.draw = () => {
  const { pen, width, height } = prepare(strip.ground, strip.canvas);
  const { course } = measure();
  const rows = Math.max(1, Math.floor(height));
  const lane = width - 10; // search results are in the rest
  const window = Math.max((3 / rows) * BINS, (30 / N) * BINS);
  const means = Array.from({ length: rows }, (_, row) => course.near((row + 0.5) / rows, window));
  const [low, high] = range(means);
  means.forEach((mean, row) => {
    if (mean === null) return;
    const share = Math.min(1, Math.max(0, (mean - low) / (high - low)));
    pen.fillStyle = shade(share);
    pen.fillRect(2, row, (lane - 2) * (0.3 + 0.7 * share), 1);
  });
  pen.fillStyle = css(palette.accent);
  const step = Math.max(1, Math.floor(view.hits.length / 20000));
  for (let i = 0; i < view.hits.length; i += step) {
    pen.fillRect(lane + 2, Math.round((view.hits[i] / text.length) * height) - 1, 7, 2);
  }
};

// With the part that is seen in the window.
strip.show = ([first, last]) => {
  const { pen, width, height } = copy(strip.canvas, strip.ground);
  const size = Math.max(8, ((last - first) / N) * height);
  const y = Math.min(height - size - 1, Math.max(1, (first / N) * height));
  pen.fillStyle = css(palette.ink, size < height / 2 ? 0.1 : 0);
  pen.strokeStyle = css(palette.ink, 0.8);
  pen.lineWidth = 1.5;
  pen.beginPath();
  pen.roundRect(1, y, width - 2, size, 3);
  pen.fill();
  pen.stroke();
  const share = Math.round((first / Math.max(1, N - 1)) * 100);
  strip.canvas.setAttribute("aria-valuenow", share);
  strip.canvas.setAttribute("aria-valuetext", `token ${grouped(first)} of ${grouped(N)}, ${share} %`);
};

function drawLegend() {
  const { levels } = about;
  const top = about.ceiling[view.mode];
  const { histogram } = measure();
  const counts = Array.from({ length: levels }, (_, level) => {
    const [from, to] = [level, level + 1].map((edge) => Math.round((edge / levels) * top * 10));
    return histogram.subarray(from, level === levels - 1 ? histogram.length : to).reduce((a, b) => a + b, 0);
  });
  const most = Math.max(1, ...counts);
  byId("histogram").replaceChildren(
    ...counts.map((count, level) => {
      const bar = element("i", `l${level}`);
      bar.style.height = `${8 + 26 * Math.sqrt(count / most)}px`;
      return bar;
    }),
  );
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => element("span", "", `${+(share * top).toFixed(1)}`));
  ticks[0].append(" bits");
  if (view.mode !== "entropy") ticks.at(-1).append("+"); // which cannot be more than that of a blind guess
  byId("scale").replaceChildren(...ticks);
}

const card = { node: byId("card"), pinned: false, token: -1 };

card.hide = () => {
  card.node.hidden = true;
  card.pinned = false;
  card.token = -1;
};

// Shows a token's numbers next to it and returns them in words.
card.show = async (token, pinned) => {
  if (card.pinned && !pinned) return "";
  card.token = token;
  card.pinned = pinned;
  await readDetail(token);
  if (card.token !== token) return "";
  const found = describe(token);
  card.node.replaceChildren(...cardContent(token, found));
  card.node.classList.toggle("pinned", pinned);
  card.node.hidden = false;
  card.place();
  const name = nameOf(found.id);
  if (found.surprisal === null) return `${name}: no score`;
  const rank = found.rank ? `, rank ${found.rank}` : "";
  return `${name}: ${found.surprisal.toFixed(2)} bits, ${percent(2 ** -found.surprisal)}${rank}`;
};

function cardContent(token, found) {
  const own = nameOf(found.id);
  const head = element("header", "", element("strong", "", own));
  const facts = element("dl");
  const fact = (name, ...value) => facts.append(element("div", "", element("dt", "", name), element("dd", "", ...value)));
  if (found.surprisal === null) {
    head.append(element("em", "", "not scored"));
    facts.append(element("p", "", token ? "The model gave no number here." : "The first token has no context."));
    return [head, facts];
  }
  head.append(element("em", "", `${found.surprisal.toFixed(2)} bits`));
  fact("probability", `${percent(2 ** -found.surprisal)} · ${odds(found.surprisal)}`);
  if (found.rank) fact("rank", `${grouped(found.rank)} of ${grouped(about.vocabSize)}`);
  if (found.entropy !== null) fact("entropy", `${found.entropy.toFixed(2)} bits`);
  const { first, end, place, stop, bits: all } = wordAt(token);
  if (end - first > 1 && stop > place) {
    const word = element("bdi", "", label(text.slice(place, stop))); // from right to left it moves no number
    fact("word", word, ` · ${all.toFixed(2)} bits, ${grouped(end - first)} tokens`);
  }
  fact("context", `${plural(found.seen, "token")} seen`);
  fact("place", `token ${grouped(token)} of ${grouped(N)}`);
  if (!found.alternatives.length) return [head, facts];
  const list = element("ol");
  const heading = element("p", "heading", "What the model expected");
  for (const { id, probability } of found.alternatives) list.append(row(id, probability, id === found.id));
  if (!found.alternatives.some(({ id }) => id === found.id)) {
    const last = row(found.id, 2 ** -found.surprisal, true);
    last.classList.add("apart");
    list.append(last);
  }
  return [head, facts, heading, list];
}

// A token that is a part of a character has no text of its own: its number distinguishes it.
function nameOf(id) {
  const own = labels[id] ?? "";
  return own.includes("\ufffd") ? `${label(own)} ${id}` : label(own);
}

function row(id, probability, isOwn) {
  const bar = element("i");
  bar.style.width = `${Math.max(0.5, probability * 100)}%`;
  const name = element("span", "name", nameOf(id));
  return element("li", isOwn ? "own" : "", name, element("span", "bar", bar), element("span", "share", percent(probability)));
}

// Below the token, above it or next to it, if there is room; in a narrow window the style sheet puts it at the bottom.
card.place = () => {
  const span = card.node.hidden ? null : spanOf(card.token);
  if (!span) return;
  const box = span.getClientRects()[0] ?? span.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = card.node;
  const [right, bottom] = [innerWidth - strip.canvas.clientWidth - 12, innerHeight - 8];
  let x = Math.min(right - width, Math.max(8, box.left - 24));
  let y = box.bottom + 8;
  if (y + height > bottom) y = box.top - height - 8;
  if (y < 8) {
    x = box.right + 24 + width < right ? box.right + 24 : Math.max(8, box.left - width - 24);
    y = Math.max(8, Math.min(bottom - height, box.top - height / 2));
  }
  card.node.style.translate = `${Math.round(x)}px ${Math.round(y)}px`;
};
