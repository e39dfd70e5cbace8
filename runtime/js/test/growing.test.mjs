// Texts that grow: every cut gives the tokens of the whole, for every kind of tokenizer.
import assert from "node:assert/strict";
import { test } from "node:test";

import { HeldText } from "../dist/held_text.js";
import { TextCounts } from "../dist/tokenizers/tokenizer.js";
import { FORMS, TEXTS } from "./forms.mjs";

const utf8 = (text) => new TextEncoder().encode(text);
const BEGINNING = { name: "it", begun: false, previous: null, bytes: 0, last: null, ended: false, line: 1 };

/** Return the ids of bytes that arrive in pieces, cut at these places. */
function grown(tokenizer, raw, places) {
  const text = new HeldText(tokenizer, "it");
  const ids = [];
  let from = 0;
  for (const to of [...places, raw.length]) {
    ids.push(...text.take(raw.slice(from, to), ids.at(-1) ?? null).ids);
    from = to;
  }
  assert.equal(text.unsettledCuts, 0);
  return [...ids, ...text.end(ids.at(-1) ?? null).ids];
}

for (const [name, tokenizer] of Object.entries(FORMS)) {
  test(`every cut has the tokens of the whole: ${name}`, async () => {
    for (const text of TEXTS) {
      const raw = utf8(text);
      const { ids } = tokenizer.part(raw, BEGINNING);
      const all = Array.from(raw, (_, at) => at);
      for (const places of [
        ...all.map((at) => [at]),
        all,
        all.filter((at) => at % 3 === 1),
        all.filter((at) => at % 7),
      ]) {
        assert.deepEqual(grown(tokenizer, raw, places), ids, `${JSON.stringify(text)} at ${places}`);
      }
    }
  });

  test(`a document in pieces has the tokens and counts of the whole: ${name}`, async () => {
    for (const size of [1, 5, 1000]) {
      const raw = utf8(TEXTS.join(" "));
      const counts = new TextCounts();
      const found = { ids: [], starts: [], ends: [] };
      async function* parts() {
        for (let at = 0; at < raw.length; at += size) yield raw.slice(at, at + size);
      }
      for await (const piece of tokenizer.read(parts(), "it", counts)) {
        for (const key of Object.keys(found)) found[key] = piece[key] && found[key]?.concat(piece[key]);
      }
      const whole = tokenizer.part(raw, { ...BEGINNING, ended: true });
      assert.deepEqual(found.ids, whole.ids);
      assert.deepEqual([found.starts, found.ends], [whole.starts, whole.ends]);
      assert.deepEqual([counts.firstTokenBytes, counts.firstTokenChars], [...whole.first]);
      assert.deepEqual([counts.droppedBytes, counts.droppedChars], [...whole.dropped]);
    }
  });
}

test("tokens of a continuation are those that end in it", () => {
  const own = (form, held, more) => {
    const text = new HeldText(FORMS[form], "it");
    text.held = utf8(held);
    const { ids, context } = text.continued(null, utf8(more));
    return FORMS[form].decode(ids.slice(context));
  };
  assert.equal(own("gpt2", "The ol", "d man"), " old man");
  assert.equal(own("gpt2", "The", " old"), " old");
  assert.equal(own("neox", "cafe\u0301 ", " x"), "  x");
  assert.equal(own("llama", "The ol", "d man"), "old man");
  assert.equal(own("wordpiece", "the old ma", "ns"), "mans");
  assert.equal(own("sentencepiece", "The ol", "d man"), "old man");
  assert.equal(own("words", "ol", "d man "), "old man");
  assert.equal(own("symbols", "the old ma", "n x"), "the old man x");
  assert.equal(own("trie", "the ol", "d"), "the old");
  assert.equal(own("bytes", "", "ab"), "ab");
});

test("a run without a boundary is cut at 4,096 bytes in a stream, and counted; a document is not cut", async () => {
  for (const [form, run] of Object.entries({ gpt2: "x", llama: "x", letters: "1 2 ", words: "x", neox: " " })) {
    const text = new HeldText(FORMS[form], "it");
    text.take(utf8(run.repeat(Math.floor(4096 / run.length))), null);
    assert.deepEqual([text.unsettledCuts, text.begun], [0, false]);
    text.take(utf8(run), null);
    assert.deepEqual([text.unsettledCuts, text.begun, text.held.length], [1, true, 0]);
    const raw = utf8(run.repeat(10_000 / run.length));
    async function* parts() {
      for (let at = 0; at < raw.length; at += 1000) yield raw.slice(at, at + 1000);
    }
    const ids = [];
    for await (const piece of FORMS[form].read(parts(), "it", new TextCounts())) ids.push(...piece.ids);
    assert.deepEqual(ids, FORMS[form].encode(raw));
  }
});

test("the first token has the bytes that it stands for", () => {
  const first = (form, text) => [...FORMS[form].part(utf8(text), BEGINNING).first];
  for (const [text, bytes, chars] of [
    ["Старик", 1, 1],
    ["日本語", 6, 2],
    ["é", 2, 1],
    ["The end", 3, 3],
  ]) {
    assert.deepEqual(first("gpt2", text), [bytes, chars]);
    assert.deepEqual(first("neox", text), [bytes, chars]);
  }
  assert.deepEqual(first("roberta", "the old"), [3, 3]); // without the space in front
  assert.deepEqual(first("llama", "the old"), [3, 3]);
  assert.deepEqual(first("sentencepiece", " the old"), [4, 4]);
  assert.deepEqual(first("wordpiece", "The old"), [3, 3]);
  assert.deepEqual(first("trie", "éa"), [2, 1]);
  assert.deepEqual(first("symbols", "the old man"), [11, 11]);
});
