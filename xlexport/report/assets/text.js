// The text: cut into blocks, of which those near the window are coloured; the others are plain, and not even laid out.
const BLOCK = 1600; // characters
const NEAR = 1500; // pixels

const textNode = byId("text");
const blocks = []; // {first, end, node, drawn}: tokens first … end - 1
const view = {
  mode: "token",
  current: -1,
  query: "",
  hits: [],
  hitLength: 0,
  hit: -1,
  hasLongTokens: false,
  isWriting: false, // then the text lies behind a field in which somebody writes, and must break lines as that does
};
let watcher = null; // of blocks that come near the window

const shownText = (string) => (view.isWriting ? string : legible(string));

// Cuts the text after the first `kept` blocks, which have not changed.
function cutBlocks(kept = 0) {
  view.hasLongTokens = text.length > 1.5 * N; // longer than characters: then a gap shows where two of one colour meet
  for (const block of blocks.splice(kept)) {
    watcher.unobserve(block.node);
    wanted.delete(block);
    block.node.remove();
  }
  for (let place = kept ? endOf(blocks.at(-1)) : 0; place < text.length || !blocks.length; ) {
    let cut = text.length;
    if (view.isWriting) {
      cut = text.indexOf("\n", place + BLOCK) + 1 || text.length;
    } else if (cut - place > 1.5 * BLOCK) {
      const ahead = text.slice(place, place + 4 * BLOCK); // one line may be the whole document: look no farther
      let length = ahead.lastIndexOf("\n", BLOCK) + 1;
      if (length <= BLOCK / 3) length = ahead.indexOf("\n", BLOCK) + 1;
      length ||= ahead.lastIndexOf(" ", 2 * BLOCK) + 1;
      cut = place + (length || 2 * BLOCK);
    }
    const first = blocks.length ? blocks.at(-1).end : 0;
    let end = cut >= text.length ? N : tokenAt(cut);
    if (end <= first) end = cut >= text.length ? N : Math.min(N, first + 1);
    const node = document.createElement("div");
    node.className = "block";
    blocks.push({ first, end, node, drawn: false });
    place = end === N ? text.length : start[end];
    if (end === N) break;
  }
  const made = blocks.slice(kept);
  for (const block of made) {
    block.node.textContent = shownText(text.slice(start[block.first], endOf(block)));
    block.node.block = block;
  }
  textNode.append(...made.map(({ node }) => node));
  watcher ??= new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (isIntersecting) wanted.add(target.block);
        else erase(target.block);
      }
      drawWanted();
    },
    { rootMargin: `${NEAR}px 0px` },
  );
  made.forEach(({ node }) => watcher.observe(node));
}

const wanted = new Set(); // blocks that have come near, and are not drawn yet

// Draws what is wanted, those in the window first, for a few milliseconds in a frame, so that scrolling stays smooth.
const drawWanted = soon(() => {
  const end = performance.now() + 6;
  const isSeen = ({ node }) => node.getBoundingClientRect().bottom > 0 && node.getBoundingClientRect().top < innerHeight;
  for (const block of [...wanted].sort((one, other) => isSeen(other) - isSeen(one))) {
    if (performance.now() > end) break;
    draw(block);
  }
  if (wanted.size) drawWanted();
});

function isNear({ node }) {
  const { top, bottom } = node.getBoundingClientRect();
  return bottom > -NEAR && top < innerHeight + NEAR;
}

const endOf = (block) => (block.end === N ? text.length : start[block.end]);

function blockOf(token) {
  let low = 0;
  let high = blocks.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (blocks[middle].first <= token) low = middle;
    else high = middle;
  }
  return blocks[low];
}

// How high blocks will be, near enough for the scroll bar, before anybody has seen them.
function estimateHeights() {
  const probe = document.createElement("span");
  probe.textContent = "the quick brown fox jumps over the lazy dog, and then it rests. ".repeat(8);
  probe.className = "probe";
  textNode.append(probe);
  const columns = Math.max(10, textNode.clientWidth / (probe.offsetWidth / probe.textContent.length) - 3);
  const line = parseFloat(getComputedStyle(textNode).lineHeight);
  probe.remove();
  for (const block of blocks) {
    let lines = 0;
    const own = text.slice(start[block.first], endOf(block));
    for (const { length } of own.replace(/\n$/, "").split("\n")) lines += Math.max(1, Math.ceil(length / columns));
    block.node.style.containIntrinsicSize = `auto ${Math.round(lines * line)}px`;
  }
}

// Whether what begins at `place` is drawn in one with what is before it: accents, parts of an emoji, of a flag, and
// the two characters that end a line in many files.
function joins(place, unit) {
  if (text[place] === "\n") return text[place - 1] === "\r";
  if (text.charCodeAt(place) < 0x300) return false;
  const character = String.fromCodePoint(text.codePointAt(place));
  if (/[\p{M}\p{Emoji_Modifier}\u200d]/u.test(character) || text[place - 1] === "\u200d") return place > 0;
  return place - unit === 2 && /^\p{RI}{2}$/u.test(text.slice(unit, place + 2));
}

// The tokens from `token` on that are drawn in one: gives the first that is not.
function unitEnd(token, end) {
  let next = token + 1;
  while (next < end && (start[next + 1] === start[next] || joins(start[next], start[token]))) next++;
  return next;
}

// Bits of tokens first … end - 1; those without context count nothing.
function sum(first, end) {
  let total = 0;
  for (let token = first; token < end; token++) if (bits[token] !== NO_SCORE) total += bits[token];
  return total / STEPS;
}

const SPACES = " \t\n\r\v\f";
const isSpace = (place) => SPACES.includes(text[place] ?? "x");

// The first token that does not begin before a place; what has no width belongs to the character before it.
function tokenFrom(place) {
  const token = tokenAt(place);
  return start[token] < place ? token + 1 : token;
}

let known = { first: 0, end: 0 }; // the word that was asked for last: it may be the whole document

// The word at a token: its tokens first … end - 1, and its text from `place` to `stop`. White space belongs to the word
// after it, at the end of the document to that before it.
function wordAt(token) {
  if (known.first <= token && token < known.end) return known;
  let owner = token;
  while (owner > 0 && start[owner] === start[owner + 1]) owner--;
  let place = start[owner];
  while (place < text.length && isSpace(place)) place++;
  if (place === text.length) place = lastWord();
  let begin = place;
  while (begin > 0 && !isSpace(begin - 1)) begin--;
  let stop = place;
  while (stop < text.length && !isSpace(stop)) stop++;
  let before = begin;
  while (before > 0 && isSpace(before - 1)) before--;
  let after = stop;
  while (after < text.length && isSpace(after)) after++;
  const first = before > 0 ? tokenFrom(before) : 0;
  const end = after < text.length ? tokenFrom(stop) : N;
  known = { first: Math.min(first, token), end: Math.max(end, token + 1), place: begin, stop };
  known.bits = sum(known.first, known.end);
  return known;
}

// A place in the last word.
function lastWord() {
  let place = text.length;
  while (place > 0 && isSpace(place - 1)) place--;
  return Math.max(0, place - 1);
}

function levelOf(value) {
  return Math.min(about.levels - 1, Math.floor((value / about.ceiling[view.mode]) * about.levels));
}

function draw(block) {
  wanted.delete(block);
  if (block.drawn) return;
  block.drawn = true;
  const isPrinting = document.documentElement.classList.contains("printing");
  const spans = [];
  let word = { end: -1 };
  let wordLevel = 0;
  let hit = lowerBound(view.hits, start[block.first] - view.hitLength + 1);
  for (let token = block.first; token < block.end; ) {
    const next = unitEnd(token, block.end);
    const from = start[token];
    const to = next === N ? text.length : start[next];
    let level;
    let isFirst = true; // of what is coloured in one
    if (view.mode === "word") {
      isFirst = token >= word.end || token === word.first;
      if (token >= word.end) {
        word = wordAt(token);
        wordLevel = levelOf(word.bits);
      }
      level = isSpace(from) && isSpace(to - 1) ? 0 : wordLevel;
    } else {
      const isScored = bits[token] !== NO_SCORE && entropy[token] !== NO_SCORE;
      level = levelOf(view.mode === "token" ? sum(token, next) : isScored ? entropy[token] / STEPS : 0);
    }
    const isMerged = isPrinting && spans.at(-1)?.className === `l${level}`; // nobody points at tokens on paper
    const span = isMerged ? spans.at(-1) : document.createElement("span");
    span.className = `l${level}`;
    if (view.hasLongTokens && isFirst) span.classList.add("apart");
    while (hit < view.hits.length && view.hits[hit] + view.hitLength <= from) hit++;
    if (hit < view.hits.length && view.hits[hit] < to) span.classList.add("hit", ...(hit === view.hit ? ["active"] : []));
    if (view.isWriting) span.append(text.slice(from, to));
    else fill(span, text.slice(from, to));
    if (!isMerged) {
      span.dataset.t = token;
      spans.push(span);
    }
    token = next;
  }
  block.node.replaceChildren(...spans);
  if (view.current >= block.first && view.current < block.end) mark(view.current);
}

function erase(block) {
  wanted.delete(block);
  if (!block.drawn) return;
  block.drawn = false;
  block.node.textContent = shownText(text.slice(start[block.first], endOf(block)));
}

function redraw() {
  for (const block of blocks) {
    if (!block.drawn) continue;
    block.drawn = false;
    draw(block);
  }
}

function lowerBound(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The element that shows a token, if its block is drawn.
function spanOf(token) {
  const { drawn, node } = blockOf(token);
  if (!drawn) return null;
  const spans = node.children;
  let low = 0;
  let high = spans.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (+spans[middle].dataset.t <= token) low = middle;
    else high = middle;
  }
  return spans[low] ?? null;
}

function mark(token) {
  textNode.querySelector(".now")?.classList.remove("now");
  view.current = token;
  if (token >= 0) spanOf(token)?.classList.add("now");
}

const frame = () => new Promise((done) => requestAnimationFrame(done));

// Scrolls a token into view; again where the heights of what is above were only estimated.
async function reveal(token, where = "center") {
  for (let round = 0; round < 3; round++) {
    const block = blockOf(token);
    draw(block);
    (spanOf(token) ?? block.node).scrollIntoView({ block: where, behavior: "instant" });
    await frame();
  }
}

// Tokens at the upper and lower edge of the window, near enough for the overview.
function visibleTokens() {
  const top = byId("tools").getBoundingClientRect().bottom;
  return [tokenAtHeight(Math.max(0, top)), tokenAtHeight(innerHeight)];
}

function tokenAtHeight(y) {
  let low = 0;
  let high = blocks.length;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (blocks[middle].node.getBoundingClientRect().top <= y) low = middle;
    else high = middle;
  }
  const { first, end, node } = blocks[low];
  const box = node.getBoundingClientRect();
  const share = Math.min(1, Math.max(0, (y - box.top) / (box.height || 1)));
  return Math.min(N - 1, Math.round(first + share * (end - first)));
}
