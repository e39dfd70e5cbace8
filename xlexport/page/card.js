// The card about a token: its numbers, its word, and what the model expected.
import { about, byId, element, grouped, label, odds, percent, plural } from "./dom.js";

export class Card {
  node = byId("card");
  isPinned = false;
  token = -1; // that it is about

  // `describe` gives what is known of a token: {id, label, labels, rank, entropy, seen, surprisal, alternatives}.
  constructor(view, describe) {
    Object.assign(this, { view, describe });
  }

  hide() {
    this.node.hidden = true;
    this.isPinned = false;
    this.token = -1;
  }

  // Shows a token's numbers next to it, and returns them in words.
  async show(token, isPinned) {
    if (this.isPinned && !isPinned) return "";
    Object.assign(this, { token, isPinned });
    const facts = await this.describe(token);
    if (this.token !== token) return "";
    this.node.replaceChildren(...this.#content(token, facts));
    this.node.classList.toggle("pinned", isPinned);
    this.node.hidden = false;
    this.place();
    const name = nameOf(facts.id, facts.labels);
    if (facts.surprisal === null) return `${name}: no score`;
    const rank = facts.rank ? `, rank ${facts.rank}` : "";
    return `${name}: ${facts.surprisal.toFixed(2)} bits, ${percent(2 ** -facts.surprisal)}${rank}`;
  }

  #content(token, { id, labels, surprisal, rank, entropy, seen, alternatives }) {
    const { tokens } = this.view;
    const isScored = surprisal !== null;
    const bits = isScored ? `${surprisal.toFixed(2)} bits` : "not scored";
    const head = element("header", "", element("strong", "", nameOf(id, labels)), element("em", "", bits));
    const list = element("dl");
    const fact = (name, ...value) => list.append(element("div", "", element("dt", "", name), element("dd", "", ...value)));
    if (!isScored) return [head, element("p", "", token ? "The model gave no number here." : "The first token has no context.")];
    fact("probability", `${percent(2 ** -surprisal)} · ${odds(surprisal)}`);
    if (rank) fact("rank", `${grouped(rank)} of ${grouped(about.vocabSize)}`);
    if (entropy !== null) fact("entropy", `${entropy.toFixed(2)} bits`);
    const word = tokens.wordAt(token);
    if (word.end - word.first > 1 && word.stop > word.place) {
      const text = element("bdi", "", label(tokens.text.slice(word.place, word.stop))); // from right to left it moves no number
      const sum = word.bits === null ? "not all scored" : `${word.bits.toFixed(2)} bits`;
      fact("word", text, ` · ${sum}, ${grouped(word.end - word.first)} tokens`);
    }
    fact("context", `${plural(seen, "token")} seen`);
    fact("place", `token ${grouped(token)} of ${grouped(tokens.n)}`);
    if (!alternatives.length) return [head, list];
    const rows = alternatives.map((one) => row(one.id, labels, one.probability, one.id === id));
    if (!alternatives.some((one) => one.id === id)) {
      rows.push(row(id, labels, 2 ** -surprisal, true));
      rows.at(-1).classList.add("apart");
    }
    return [head, list, element("p", "heading", "What the model expected"), element("ol", "", ...rows)];
  }

  // Puts it below the token, above it or next to it, wherever there is room; in a narrow window CSS puts it at the bottom.
  place() {
    const span = this.node.hidden ? null : this.view.spanOf(this.token);
    if (!span) return;
    const box = span.getClientRects()[0] ?? span.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = this.node;
    const [right, bottom] = [innerWidth - byId("strip").clientWidth - 12, innerHeight - 8];
    let x = Math.min(right - width, Math.max(8, box.left - 24));
    let y = box.bottom + 8;
    if (y + height > bottom) y = box.top - height - 8;
    if (y < 8) {
      x = box.right + 24 + width < right ? box.right + 24 : Math.max(8, box.left - width - 24);
      y = Math.max(8, Math.min(bottom - height, box.top - height / 2));
    }
    this.node.style.translate = `${Math.round(x)}px ${Math.round(y)}px`;
  }
}

// A token that is a part of a character has no text of its own: its number distinguishes it.
function nameOf(id, labels) {
  const text = labels[id] ?? "";
  return text.includes("\ufffd") ? `${label(text)} ${id}` : label(text);
}

function row(id, labels, probability, isOwn) {
  const bar = element("i");
  bar.style.width = `${Math.max(0.5, probability * 100)}%`;
  const name = element("span", "name", nameOf(id, labels));
  return element("li", isOwn ? "own" : "", name, element("span", "bar", bar), element("span", "share", percent(probability)));
}
