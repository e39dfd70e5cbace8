// The page of one document. Its text and numbers are in blocks, which packing.py writes.
import { about, showPage, unpacked, unpackedJson } from "./dom.js";
import { showHeader } from "./panels.js";
import { Reader } from "./reader.js";
import { NO_SCORE, STEPS, Tokens } from "./tokens.js";

class Block {
  #at = 0;

  constructor(bytes) {
    this.bytes = bytes;
  }

  // Reads the next column: whole numbers of `size` bytes, the lowest bytes of all first.
  take(count, size) {
    const values = new (size === 1 ? Uint8Array : size === 2 ? Uint16Array : Uint32Array)(count);
    for (let shift = 0; shift < 8 * size; shift += 8) {
      for (let i = 0; i < count; i++) values[i] |= this.bytes[this.#at + i] << shift;
      this.#at += count;
    }
    return values;
  }
}

async function readTokens() {
  const n = about.tokens;
  const [bits, entropy, start] = [new Uint16Array(n), new Uint16Array(n), new Uint32Array(n + 1)];
  const blocks = await Promise.all(about.chunks.map((_, number) => unpacked(`main-${number}`)));
  const parts = [];
  let token = 0;
  let place = 0;
  blocks.forEach((bytes, number) => {
    const [tokens, units, widthBytes] = about.chunks[number];
    const block = new Block(bytes);
    const codes = block.take(units, 2);
    for (let i = 0; i < units; i += 8192) parts.push(String.fromCharCode(...codes.subarray(i, i + 8192)));
    const widths = block.take(tokens, widthBytes);
    bits.set(block.take(tokens, 2), token);
    entropy.set(block.take(tokens, 2), token);
    for (const width of widths) {
      start[token++] = place;
      place += width;
    }
  });
  const text = parts.join("");
  start[n] = text.length;
  return new Tokens({ text, start, bits, entropy });
}

const details = []; // by chunk, what more is known of its tokens, once somebody looked

async function readDetail(number) {
  const block = new Block(await unpacked(`detail-${number}`));
  const [tokens] = about.chunks[number];
  const columns = {
    ids: block.take(tokens, about.idBytes),
    ranks: block.take(tokens, about.idBytes),
    seen: block.take(tokens, 4),
    topIds: Array.from({ length: about.top }, () => block.take(tokens, about.idBytes)),
    topRoots: Array.from({ length: about.top }, () => block.take(tokens, 1)),
  };
  for (let i = 1; i < tokens; i++) columns.seen[i] += columns.seen[i - 1];
  return columns;
}

showPage(async () => {
  const tokens = await readTokens();
  const labels = await unpackedJson("labels");
  const reader = new Reader(async (token) => {
    const [number, i] = [Math.floor(token / about.chunkTokens), token % about.chunkTokens];
    const { ids, ranks, seen, topIds, topRoots } = await (details[number] ??= readDetail(number));
    const alternatives = topIds.map((column, k) => ({ id: column[i], probability: (topRoots[k][i] / 255) ** 2 }));
    return {
      id: ids[i],
      labels,
      rank: ranks[i] + 1,
      seen: seen[i],
      entropy: tokens.entropy[token] / STEPS,
      surprisal: tokens.bits[token] === NO_SCORE ? null : tokens.bits[token] / STEPS,
      alternatives: alternatives.filter(({ probability }) => probability > 0),
    };
  });
  showHeader();
  reader.set(tokens);
  reader.refresh();
  reader.listen();
  reader.listenToPointer();
});
