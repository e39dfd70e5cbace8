// The document's text and numbers, unpacked from the blocks of this page (written by packing.py).
const details = new Array(about.chunks.length); // what more is known of a chunk's tokens, once somebody looked

class Reader {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  // The next column: whole numbers of `size` bytes, the lowest bytes of all first.
  take(count, size) {
    const values = new (size === 1 ? Uint8Array : size === 2 ? Uint16Array : Uint32Array)(count);
    for (let shift = 0; shift < 8 * size; shift += 8) {
      for (let i = 0; i < count; i++) values[i] |= this.bytes[this.at + i] << shift;
      this.at += count;
    }
    return values;
  }
}

async function readDocument() {
  const blocks = await Promise.all(about.chunks.map((_, number) => unpacked(`main-${number}`)));
  labels = JSON.parse(new TextDecoder().decode(await unpacked("labels")));
  const parts = [];
  let token = 0;
  let at = 0;
  blocks.forEach((bytes, number) => {
    const [tokens, units, widthBytes] = about.chunks[number];
    const reader = new Reader(bytes);
    const codes = reader.take(units, 2);
    for (let i = 0; i < units; i += 8192) parts.push(String.fromCharCode(...codes.subarray(i, i + 8192)));
    const widths = reader.take(tokens, widthBytes);
    bits.set(reader.take(tokens, 2), token);
    entropy.set(reader.take(tokens, 2), token);
    for (let i = 0; i < tokens; i++) {
      start[token++] = at;
      at += widths[i];
    }
  });
  start[N] = at;
  text = parts.join("");
}

// Reads the chunk of a token unless that was done; afterwards details[chunk] is there.
async function readDetail(token) {
  const chunk = Math.floor(token / about.chunkTokens);
  details[chunk] ??= unpacked(`detail-${chunk}`).then((bytes) => {
    const [tokens] = about.chunks[chunk];
    const reader = new Reader(bytes);
    const found = {
      ids: reader.take(tokens, about.idBytes),
      rank: reader.take(tokens, about.idBytes),
      seen: reader.take(tokens, 4),
      topIds: Array.from({ length: about.top }, () => reader.take(tokens, about.idBytes)),
      topRoots: Array.from({ length: about.top }, () => reader.take(tokens, 1)),
    };
    for (let i = 1; i < tokens; i++) found.seen[i] += found.seen[i - 1];
    details[chunk] = found;
  });
  await details[chunk];
}

// All that is known of a token of a chunk that was read.
function describe(token) {
  const chunk = details[Math.floor(token / about.chunkTokens)];
  const i = token % about.chunkTokens;
  const surprisal = bits[token] === NO_SCORE ? null : bits[token] / STEPS;
  const alternatives = chunk.topIds
    .map((ids, k) => ({ id: ids[i], probability: (chunk.topRoots[k][i] / 255) ** 2 }))
    .filter(({ probability }) => probability > 0);
  return {
    id: chunk.ids[i],
    rank: chunk.rank[i] + 1,
    entropy: entropy[token] / STEPS,
    seen: chunk.seen[i],
    surprisal,
    alternatives,
  };
}
