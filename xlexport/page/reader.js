// One document and its controls: what somebody clicks, types and scrolls.
import { Card } from "./card.js";
import { about, byId, clamp, element, grouped, lowerBound, plural, soon } from "./dom.js";
import { curve, drawScale, overview, shareOf } from "./panels.js";
import { TextView, classOf } from "./text_view.js";
import { theme } from "./theme.js";

const FEWEST = 200; // tokens of a document that has a curve and an overview
const PRINTED = 100_000; // tokens up to which documents are printed whole
const PAUSE = 200; // milliseconds without a key, after which a search begins
const modes = [...byId("modes").querySelectorAll("input")].map(({ value }) => value);
const root = document.documentElement;

// Returns a text without upper case and accents, as long as before. Korean syllables and voiced Japanese ones stay.
function fold(string) {
  const plain = (character) => {
    const folded = character.normalize("NFD").replace(/[^\P{M}\u3099\u309a]+$/u, "").toLowerCase();
    return folded.length === 1 ? folded : character;
  };
  return string.replace(/[^\0-\x7f]/g, plain).replace(/[A-Z]+/g, (letters) => letters.toLowerCase());
}

export class Reader {
  mode = about.unit === "byte" ? "word" : "token"; // single bytes would look like confetti
  onMode = () => undefined; // called after the mode has changed
  #thresholds = {}; // by mode, in tenths of a bit, once somebody chose one
  #query = "";
  #folded = ""; // the text, once somebody searches it
  #typing = 0;

  constructor(describe) {
    this.view = new TextView(byId("text"), (span, token, next) => {
      span.className = classOf(this.tokens, this.mode, token, next);
    });
    this.card = new Card(this.view, describe);
    this.keys = {
      n: () => this.goToSurprising(1),
      p: () => this.goToSurprising(-1),
      "[": () => this.chooseThreshold(this.threshold - 5),
      "]": () => this.chooseThreshold(this.threshold + 5),
      "/": () => byId("query").focus(),
      c: () => this.setMode(modes[(modes.indexOf(this.mode) + 1) % modes.length]),
      f: () => this.changeFont(),
      t: theme.change,
      "?": () => byId("help").showModal(),
      Escape: () => {
        this.card.hide();
        this.view.mark(-1);
      },
    };
  }

  get tokens() {
    return this.view.tokens;
  }

  get measure() {
    return this.tokens.measure(this.mode);
  }

  // A curve that appears would move what somebody writes.
  get isShort() {
    return this.tokens.n < FEWEST || this.view.isField;
  }

  // Shows other tokens; those before `from` have not changed.
  set(tokens, from = 0) {
    this.card.hide();
    this.#folded = "";
    this.view.set(tokens, from);
    if (!this.#query) return;
    this.#find();
    this.view.redraw();
  }

  // Draws everything around the text.
  refresh() {
    root.classList.toggle("short", this.isShort);
    byId("modes").querySelector(`[value=${this.mode}]`).checked = true;
    drawScale(this.measure, this.mode);
    this.#showThreshold();
    this.#drawPanels();
  }

  #drawPanels() {
    if (this.isShort) return;
    curve.draw(this.tokens.measure("token"));
    overview.draw(this.measure, this.view.hits);
    this.#showSeen();
  }

  // Shows where the window is in the document.
  #showSeen() {
    if (this.isShort) return;
    const seen = this.view.visible();
    overview.show(seen, this.tokens.n);
    curve.show(seen);
  }

  setMode(mode) {
    this.mode = mode;
    this.view.redraw();
    this.refresh();
    this.onMode();
  }

  // What counts as surprising, in tenths of a bit.
  get threshold() {
    return this.#thresholds[this.mode] ?? this.measure.usual;
  }

  chooseThreshold(tenths) {
    this.#thresholds[this.mode] = Math.min(about.ceiling[this.mode] * 10, Math.max(1, Math.round(tenths)));
    this.#showThreshold();
  }

  #showThreshold() {
    const { measure, threshold } = this;
    const parts = [plural(measure.reach(threshold), measure.unit), `≥ ${threshold / 10} bits`];
    Object.assign(byId("threshold"), { max: about.ceiling[this.mode] * 10, value: threshold, ariaValueText: parts.join(" ") });
    byId("surprising").replaceChildren(...parts.flatMap((part) => [element("span", "", part), " "]));
  }

  async select(token) {
    this.view.mark(token);
    byId("live").textContent = await this.card.show(token, true);
  }

  async goTo(token, where) {
    this.card.hide();
    await this.view.reveal(token, where);
  }

  // Goes to a token and selects it, unless another key has come meanwhile, which then decides.
  async goToAndSelect(token) {
    this.view.mark(token);
    await this.goTo(token);
    if (this.view.current === token) await this.select(token);
  }

  // The marked token while it is in the window: keys go on from there, otherwise from what is seen.
  get #here() {
    return this.view.isSeen(this.view.current, true) ? this.view.current : -1;
  }

  async goToSurprising(step) {
    const { measure, threshold } = this;
    const from = this.#here;
    let item = from >= 0 ? measure.itemOf(from) + step : measure.itemOf(this.view.visible()[step > 0 ? 0 : 1]);
    while (item >= 0 && item < measure.values.length && !measure.has(item, threshold)) item += step;
    if (item >= 0 && item < measure.values.length) await this.goToAndSelect(measure.tokenOf(item));
    else byId("live").textContent = step > 0 ? "No more below." : "No more above.";
  }

  move(step) {
    if (!this.tokens.n) return undefined;
    const from = this.#here >= 0 ? this.#here : this.view.visible()[0] - step;
    const token = Math.min(this.tokens.n - 1, Math.max(0, from + step));
    return this.view.isSeen(token) ? this.select(token) : this.goToAndSelect(token);
  }

  #find() {
    const { view } = this;
    Object.assign(view, { hits: [], hit: -1, hitLength: this.#query.length });
    if (this.#query) {
      this.#folded ||= fold(this.tokens.text);
      const query = fold(this.#query);
      for (let at = this.#folded.indexOf(query); at >= 0; at = this.#folded.indexOf(query, at + query.length)) view.hits.push(at);
    }
    byId("found").textContent = this.#query ? grouped(view.hits.length) : "";
  }

  // Finds what was typed, and returns whether that is something new.
  search() {
    const query = byId("query").value.normalize("NFC");
    if (query === this.#query) return false;
    this.#query = query;
    this.#find();
    this.card.hide(); // it is about something else
    this.view.redraw();
    this.#drawPanels();
    return true;
  }

  async goToHit(step) {
    clearTimeout(this.#typing);
    this.search(); // what was typed last may not have been looked for yet
    const { view, tokens } = this;
    const many = view.hits.length;
    if (!many) return;
    if (view.hit < 0) {
      const from = lowerBound(view.hits, tokens.start[view.visible()[0]]);
      view.hit = (step > 0 ? from : from - 1 + many) % many;
    } else {
      view.hit = (view.hit + step + many) % many;
    }
    byId("found").textContent = `${grouped(view.hit + 1)} of ${grouped(many)}`;
    view.redraw();
    await this.goTo(tokens.at(view.hits[view.hit]));
  }

  // Goes to the first hit below, once nothing more is typed for a moment.
  searchSoon() {
    clearTimeout(this.#typing);
    this.#typing = setTimeout(() => this.search() && this.goToHit(1), PAUSE);
  }

  async changeFont() {
    const [token] = this.view.visible();
    root.classList.toggle("fixed");
    this.view.estimateHeights();
    await this.view.reveal(token, "start");
  }

  listen() {
    addEventListener("keydown", (event) => this.#onKey(event));
    this.#listenToPanels();
    this.#listenToWindow();
    byId("previous").onclick = this.keys.p;
    byId("next").onclick = this.keys.n;
    byId("font").onclick = this.keys.f;
    byId("theme").onclick = theme.change;
    byId("keys").onclick = this.keys["?"];
    byId("threshold").oninput = ({ target }) => this.chooseThreshold(+target.value);
    byId("modes").onchange = ({ target }) => this.setMode(target.value);
    byId("query").oninput = () => this.searchSoon();
    byId("search").onsubmit = (event) => event.preventDefault();
    byId("query").onkeydown = (event) => {
      if (event.key === "Enter") this.goToHit(event.shiftKey ? -1 : 1);
    };
  }

  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
    if (event.target.matches("textarea, [type=search], [type=number]")) {
      if (event.key === "Escape") this.view.node.focus({ preventScroll: true });
      return;
    }
    const isInText = event.target === this.view.node || event.target === document.body;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const action = step && isInText ? () => this.move(step) : this.keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  // Shows the card of the token under the pointer. `spanAt` finds the element of the token at which an event points.
  listenToPointer(node = this.view.node, type = "pointerover", spanAt = ({ target }) => target.closest("[data-t]")) {
    const tokenUnder = (event) => {
      const span = spanAt(event);
      if (!span) return -1;
      const token = +span.dataset.t;
      const { bits } = this.tokens;
      const end = this.tokens.unitEnd(token, this.view.blockOf(token).end);
      let best = token; // of several tokens in one character the most surprising
      for (let other = token + 1; other < end; other++) if (bits[other] > bits[best]) best = other;
      return best;
    };
    node.addEventListener(type, (event) => {
      const token = event.pointerType === "touch" || event.buttons ? -1 : tokenUnder(event);
      if (token >= 0 && token !== this.card.token) this.card.show(token, false);
    });
    node.addEventListener("pointerleave", () => this.card.isPinned || this.card.hide());
    node.addEventListener("click", (event) => {
      const token = tokenUnder(event);
      if (token < 0 || getSelection().type === "Range") return;
      if (this.card.isPinned && token === this.view.current) this.keys.Escape();
      else this.select(token);
    });
  }

  #listenToPanels() {
    const { node } = overview;
    const goToShare = (share, where) => this.goTo(Math.floor(share * (this.tokens.n - 1)), where);
    node.addEventListener("pointerdown", (event) => {
      node.setPointerCapture(event.pointerId);
      goToShare(shareOf(node, event)[1]);
    });
    node.addEventListener("pointermove", (event) => event.buttons && goToShare(shareOf(node, event)[1]));
    node.addEventListener("keydown", (event) => {
      const [first, last] = this.view.visible().map((token) => token / this.tokens.n);
      const up = { ArrowUp: 0.01, PageUp: Math.max(0.001, last - first) }[event.key];
      const share = up ? first - up : { ArrowDown: first + 0.01, PageDown: last, Home: 0, End: 1 }[event.key];
      if (share === undefined) return;
      event.preventDefault();
      goToShare(clamp(share), "start");
    });
    curve.node.addEventListener("pointermove", (event) => curve.point(shareOf(curve.node, event)[0]));
    curve.node.addEventListener("pointerleave", () => curve.point(null));
    curve.node.addEventListener("click", (event) => goToShare(shareOf(curve.node, event)[0]));
  }

  #listenToWindow() {
    const onScroll = soon(() => {
      this.#showSeen();
      this.card.place();
    });
    addEventListener("scroll", onScroll, { passive: true });
    let width = this.view.node.clientWidth;
    const onResize = soon(() => {
      if (this.view.node.clientWidth !== width) this.view.estimateHeights();
      width = this.view.node.clientWidth;
      this.#drawPanels();
      this.card.place();
    });
    addEventListener("resize", onResize);
    let before; // the theme before printing
    addEventListener("beforeprint", () => {
      before = theme.chosen;
      theme.choose("light");
      this.#prepareToPrint();
    });
    addEventListener("afterprint", () => {
      theme.choose(before);
      root.classList.remove("partly");
      this.view.drawOnly();
    });
  }

  // Draws the whole document for paper, or the part around the window if it is long.
  #prepareToPrint() {
    const { blocks } = this.view;
    const middle = blocks.indexOf(this.view.blockOf(this.view.visible()[0]));
    const isWhole = this.tokens.n <= PRINTED;
    const printed = isWhole ? blocks : blocks.slice(Math.max(0, middle - 10), middle + 20);
    this.view.drawOnly(printed);
    root.classList.toggle("partly", !isWhole);
    for (const block of blocks) block.node.classList.toggle("unseen", !printed.includes(block));
    const [first, last] = [printed[0].first, printed.at(-1).end - 1].map(grouped);
    byId("printed").textContent = isWhole ? "" : `Tokens ${first} to ${last} of ${grouped(this.tokens.n)}, those around the window.`;
  }
}
