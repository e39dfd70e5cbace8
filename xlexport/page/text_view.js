// A coloured text, cut into blocks. Those near the window are coloured; the others are plain, and not even laid out.
import { about, byId, clamp, element, fill, lastWhere, legible, lowerBound, soon } from "./dom.js";
import { NO_SCORE, STEPS, Tokens } from "./tokens.js";

const BLOCK = 1600; // characters
const NEAR = 1500; // pixels
const ESTIMATE = "the quick brown fox jumps over the lazy dog, and then it rests. ".repeat(8);
const frame = () => new Promise((done) => requestAnimationFrame(done));

export const levelOf = (bits, most) => Math.min(about.levels - 1, Math.floor((bits / most) * about.levels));

// The classes that colour tokens token … next - 1, which are drawn in one.
export function classOf(tokens, mode, token, next) {
  let bits = null;
  let isFirst = true; // of what is coloured in one
  if (mode === "word") {
    const word = tokens.wordAt(token);
    isFirst = token === word.first;
    const isSpace = tokens.isSpace(tokens.start[token]) && tokens.isSpace(tokens.start[next] - 1);
    bits = isSpace ? 0 : word.bits;
  } else if (mode === "token") {
    bits = tokens.sum(token, next);
  } else if (tokens.bits[token] !== NO_SCORE && tokens.entropy[token] !== NO_SCORE) {
    bits = tokens.entropy[token] / STEPS;
  }
  const colour = bits === null ? "l0 unscored" : `l${levelOf(bits, about.ceiling[mode])}`;
  return tokens.areLong && isFirst ? `${colour} apart` : colour;
}

export class TextView {
  tokens = Tokens.none();
  blocks = []; // {first, end, node, isDrawn}: tokens first … end - 1
  current = -1; // the token that is marked
  hits = []; // places of what was searched
  hitLength = 0;
  hit = -1; // the number of the hit that was gone to
  isPrinting = false;
  #wanted = new Set(); // blocks that have come near, and are not drawn yet
  #drawWanted = soon(() => this.#drawSome());
  #watcher = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (isIntersecting) this.#wanted.add(target.block);
        else this.erase(target.block);
      }
      this.#drawWanted();
    },
    { rootMargin: `${NEAR}px 0px` },
  );

  // `paint` colours the element of tokens token … next - 1. With `isField` the text lies behind a field in which
  // somebody writes, so it has the same characters and breaks lines as the field does.
  constructor(node, paint, isField = false) {
    Object.assign(this, { node, paint, isField });
  }

  // Shows other tokens; those before `from` have not changed.
  set(tokens, from = 0) {
    this.mark(-1);
    const kept = from > 0 && this.blocks.length ? this.blocks.indexOf(this.blockOf(Math.min(from, this.tokens.n - 1))) : 0;
    this.tokens = tokens;
    this.#cut(kept);
    if (!this.isField) this.estimateHeights();
    this.drawNear(kept);
  }

  // Cuts the text after the first `kept` blocks.
  #cut(kept) {
    const { text, start, n } = this.tokens;
    for (const block of this.blocks.splice(kept)) {
      this.#watcher.unobserve(block.node);
      this.#wanted.delete(block);
      block.node.remove();
    }
    for (let first = kept ? this.blocks.at(-1).end : 0; first < n || !this.blocks.length; first = this.blocks.at(-1).end) {
      const cut = this.#cutAfter(first ? start[first] : 0);
      const end = cut >= text.length ? n : Math.min(n, Math.max(first + 1, this.tokens.at(cut)));
      const node = element("div", "block", this.#plain(first, end));
      const block = { first, end, node, isDrawn: false };
      node.block = block;
      this.blocks.push(block);
      this.node.append(node);
      this.#watcher.observe(node);
    }
  }

  // Where a block ends that begins at `place`: at the end of a line if there is one, or of a word.
  #cutAfter(place) {
    const { text } = this.tokens;
    if (this.isField) return text.indexOf("\n", place + BLOCK) + 1 || text.length;
    if (text.length - place <= 1.5 * BLOCK) return text.length;
    const ahead = text.slice(place, place + 4 * BLOCK); // one line may be the whole document: look no farther
    let length = ahead.lastIndexOf("\n", BLOCK) + 1;
    if (length <= BLOCK / 3) length = ahead.indexOf("\n", BLOCK) + 1;
    return place + (length || ahead.lastIndexOf(" ", 2 * BLOCK) + 1 || 2 * BLOCK);
  }

  #plain(first, end) {
    const string = this.tokens.slice(first, end);
    return this.isField ? string : legible(string);
  }

  // Draws what is wanted, the blocks in the window first, for a few milliseconds in a frame, so that scrolling stays smooth.
  #drawSome() {
    const end = performance.now() + 6;
    const isSeen = ({ node }) => node.getBoundingClientRect().bottom > 0 && node.getBoundingClientRect().top < innerHeight;
    for (const block of [...this.#wanted].sort((one, other) => isSeen(other) - isSeen(one))) {
      if (performance.now() > end) break;
      this.draw(block);
    }
    if (this.#wanted.size) this.#drawWanted();
  }

  drawNear(kept = 0) {
    for (const block of this.blocks.slice(kept)) {
      const { top, bottom } = block.node.getBoundingClientRect();
      if (bottom > -NEAR && top < innerHeight + NEAR) this.draw(block);
    }
  }

  blockOf(token) {
    return this.blocks[lastWhere(this.blocks.length, (place) => this.blocks[place].first <= token)];
  }

  // Estimates how high blocks will be, near enough for the scroll bar, before anybody has seen them.
  estimateHeights() {
    const probe = element("span", "probe", ESTIMATE);
    this.node.append(probe);
    const columns = Math.max(10, this.node.clientWidth / (probe.offsetWidth / ESTIMATE.length) - 3);
    const height = parseFloat(getComputedStyle(this.node).lineHeight);
    probe.remove();
    for (const { first, end, node } of this.blocks) {
      const lines = this.tokens.slice(first, end).replace(/\n$/, "").split("\n");
      const count = lines.reduce((sum, { length }) => sum + Math.max(1, Math.ceil(length / columns)), 0);
      node.style.containIntrinsicSize = `auto ${Math.round(count * height)}px`;
    }
  }

  draw(block) {
    this.#wanted.delete(block);
    if (block.isDrawn) return;
    block.isDrawn = true;
    const { tokens, hits, hitLength } = this;
    const spans = [];
    let hit = lowerBound(hits, tokens.start[block.first] - hitLength + 1);
    for (let token = block.first; token < block.end; ) {
      const next = tokens.unitEnd(token, block.end);
      const [from, to] = [tokens.start[token], tokens.start[next]];
      let span = element("span");
      span.dataset.t = token;
      this.paint(span, token, next);
      while (hit < hits.length && hits[hit] + hitLength <= from) hit++;
      if (hit < hits.length && hits[hit] < to) span.classList.add("hit", ...(hit === this.hit ? ["active"] : []));
      if (this.isPrinting && spans.at(-1)?.className === span.className) span = spans.at(-1); // paper has no pointer
      else spans.push(span);
      if (this.isField) span.append(tokens.text.slice(from, to));
      else fill(span, tokens.text.slice(from, to));
      token = next;
    }
    block.node.replaceChildren(...spans);
    if (this.current >= block.first && this.current < block.end) this.mark(this.current);
  }

  erase(block) {
    this.#wanted.delete(block);
    if (!block.isDrawn) return;
    block.isDrawn = false;
    block.node.textContent = this.#plain(block.first, block.end);
  }

  // Draws again what is drawn of tokens first … end - 1.
  redraw(first = 0, end = Infinity) {
    for (const block of this.blocks) {
      if (!block.isDrawn || block.end <= first || block.first >= end) continue;
      block.isDrawn = false;
      this.draw(block);
    }
  }

  // Draws exactly these blocks, for paper; without any those near the window.
  drawOnly(blocks) {
    this.isPrinting = blocks !== undefined;
    this.blocks.forEach((block) => this.erase(block));
    if (blocks) blocks.forEach((block) => this.draw(block));
    else this.drawNear();
  }

  // The element that shows a token, if its block is drawn.
  spanOf(token) {
    const { isDrawn, node } = this.blockOf(token);
    const spans = node.children;
    return isDrawn ? (spans[lastWhere(spans.length, (place) => +spans[place].dataset.t <= token)] ?? null) : null;
  }

  mark(token) {
    this.node.querySelector(".now")?.classList.remove("now");
    this.current = token;
    if (token >= 0) this.spanOf(token)?.classList.add("now");
  }

  // Scrolls a token into view; several times, because the heights of what is above may be only estimated.
  async reveal(token, block = "center") {
    for (let round = 0; round < 3; round++) {
      const shown = this.blockOf(token);
      this.draw(shown);
      (this.spanOf(token) ?? shown.node).scrollIntoView({ block, behavior: "instant" });
      await frame();
    }
  }

  // Tokens at the upper and lower edge of the window, near enough for the overview.
  visible() {
    const top = Math.max(0, byId("tools").getBoundingClientRect().bottom);
    return [this.#tokenAtHeight(top), this.#tokenAtHeight(innerHeight)];
  }

  #tokenAtHeight(y) {
    const { blocks } = this;
    const { first, end, node } = blocks[lastWhere(blocks.length, (place) => blocks[place].node.getBoundingClientRect().top <= y)];
    const box = node.getBoundingClientRect();
    return Math.min(this.tokens.n - 1, Math.round(first + clamp((y - box.top) / (box.height || 1)) * (end - first)));
  }

  // Whether all of a token, or with `isPart` a part of it, is in the window and not behind the tools.
  isSeen(token, isPart = false) {
    const box = token >= 0 ? this.spanOf(token)?.getBoundingClientRect() : undefined;
    if (!box) return false;
    const [upper, lower] = isPart ? [box.bottom, box.top] : [box.top, box.bottom];
    return upper > byId("tools").getBoundingClientRect().bottom && lower < innerHeight;
  }
}
