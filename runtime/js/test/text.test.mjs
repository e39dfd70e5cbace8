// Streams of texts: what is held, shown, saved and drawn; byte-order marks; what a manifest says of a tokenizer.
import assert from "node:assert/strict";
import { test } from "node:test";

import { load } from "xlruntime";

import { DrawnText } from "../dist/generation.js";
import { ByteTokenizer } from "../dist/tokenizers/tokenizer.js";
import { openVocabulary } from "../dist/tokenizers/vocabulary_tokenizer.js";
import { all, BYTES, changed, filesOf, open, refuses } from "./helpers.mjs";

const TEXT = "Call me Ishmael. Some years ago the sea never ends.  ago";
const LEVEL = { type: "ByteLevel", add_prefix_space: false, use_regex: true };
const MERGES = ["Ġ a", "Ġa g", "Ġag o", "Ġ t", "Ġt h", "Ġth e", "Ġ n", "Ġn e", "Ġne v", "m e"];
const TOKENS = [..."abcdefghijklmnopqrstuvwxyzCIS.Ġ", ...MERGES.map((pair) => pair.replace(" ", ""))];
/** A tokenizer.json of byte pairs over few letters. */
const PAIRS = {
  normalizer: null,
  pre_tokenizer: LEVEL,
  post_processor: null,
  decoder: LEVEL,
  model: { type: "BPE", vocab: Object.fromEntries(TOKENS.map((token, id) => [token, id])), merges: MERGES },
  added_tokens: [],
};

const json = (fields) => new TextEncoder().encode(JSON.stringify(fields));
const vocabularyFile = (fields) => json({ format: "xlexport vocabulary", ...fields });
const vocabulary = (fields) => openVocabulary(vocabularyFile(fields), "vocabulary.json");

/** Return the files of a bundle with another tokenizer. */
function withTokenizer(entry, content) {
  const files = filesOf(BYTES);
  if (content) changed(files, entry.file, content);
  return changed(files, "bundle.json", (manifest) => (manifest.tokenizer = { file: null, first_id: 0, ...entry }));
}
const openPairs = (more = {}, content = json(PAIRS)) => {
  const entry = { kind: "tokenizers", file: "tokenizer.json", settled: "gpt2", ...more };
  return load(withTokenizer(entry, content), { threads: 1 });
};
const openWords = () => {
  const fields = { kind: "words", symbols: ["<unk>", "<eos>", "years", "the", "ago"], unk: "<unk>", line_end: "<eos>" };
  const entry = { kind: "vocabulary", file: "vocabulary.json" };
  return load(withTokenizer(entry, vocabularyFile(fields)), { threads: 1 });
};
const nats = ({ logProbs }) => -logProbs.reduce((sum, value) => sum + value, 0);
const near = (a, b) => assert.ok(Math.abs(a - b) < 1e-3, `${a} and ${b}`);

/** Return what a generator yields, and why it ended. */
async function run(generator) {
  const found = [];
  for (;;) {
    const { done, value } = await generator.next();
    if (done) return [found, value];
    found.push(value);
  }
}

test("what a flush would return is shown at every place of a text", async () => {
  const model = await openPairs();
  const [whole] = await all(model.score([TEXT]));
  const stream = await model.stream();
  let sum = 0;
  for (const letter of TEXT) {
    sum += nats(await stream.feed(letter));
    const [shown, fork] = [await stream.preview({ top: 1 }), await stream.fork()];
    assert.deepEqual(await fork.flush({ top: 1 }), shown);
    assert.deepEqual(await stream.preview({ top: 1 }), shown);
  }
  near(sum + nats(await stream.flush()), whole.nats);
  assert.deepEqual((await stream.flush()).tokens, []);
  assert.equal(stream.position, whole.tokens);
});

test("a continuation counts the tokens that end in it", async () => {
  const model = await openPairs();
  const ids = model.tokenizer.encode(TEXT);
  for (let cut = 0; cut <= TEXT.length; cut++) {
    const stream = await model.stream();
    const before = await stream.feed(TEXT.slice(0, cut));
    const { tokens, index, rank } = await stream.scoreContinuation(TEXT.slice(cut), { top: 2 });
    assert.deepEqual(tokens, ids.slice(ids.length - tokens.length));
    assert.deepEqual([index.at(-1) ?? ids.length - 1, rank.length], [ids.length - 1, tokens.length]);
    const text = model.tokenizer.decode(tokens);
    assert.ok(cut === 0 || text.length >= TEXT.length - cut, text);
    assert.ok(!tokens.length || text.length - model.tokenizer.decode(tokens.slice(0, 1)).length < TEXT.length - cut);
    assert.equal(stream.position, before.tokens.length + Number(stream.pending !== null));
  }
});

test("token ids end the held text, and a text after them begins anew", async () => {
  const model = await openPairs({}, json({ ...PAIRS, pre_tokenizer: { ...LEVEL, add_prefix_space: true } }));
  const [a, b] = [model.tokenizer.encode("ago"), model.tokenizer.encode(" me")];
  const stream = await model.stream();
  assert.deepEqual((await stream.feed("ago")).tokens, []);
  assert.deepEqual((await stream.scoreContinuation([5, 6])).tokens, [5, 6]);
  assert.deepEqual((await stream.feed([5])).tokens, [...a, 5].slice(1));
  await stream.feed("me");
  assert.deepEqual((await stream.flush()).tokens, b); // a beginning has the space in front
  await stream.feed("me");
  assert.deepEqual((await stream.flush()).tokens, model.tokenizer.encodePiece("me", 1));
  await run(stream.generate("ago", { maxTokens: 0 }));
  await stream.feed("me");
  assert.deepEqual((await stream.flush()).tokens, model.tokenizer.encodePiece("me", 1));
});

test("a state has the held text, for this tokenizer only", async () => {
  const model = await openPairs();
  const stream = await model.stream();
  await stream.feed(TEXT.slice(0, 20));
  const state = await stream.save();
  assert.deepEqual(await (await model.restore(state)).save(), state);
  const other = await openPairs({}, json({ ...PAIRS, version: "2.0" }));
  await refuses(() => other.restore(state), "state_mismatch", /holds text for another tokenizer\. .*Stream\.flush/);
  await stream.flush();
  await other.restore(await stream.save());
  await stream.feed("ago");
  await stream.reset();
  assert.deepEqual((await stream.flush()).tokens, []);
});

test("a tokenizer that cannot say what is settled takes whole documents and ids", async () => {
  const model = await openPairs({ settled: null });
  const stream = await model.stream();
  await refuses(() => stream.feed("a b"), "text", /cannot say which tokens a longer text keeps\. Give whole documents/);
  await stream.feed([1, 2]);
  assert.equal((await all(model.score([TEXT])))[0].tokens, model.tokenizer.encode(TEXT).length);
});

test("generation ends at the tokens that end a text, and at texts", async () => {
  const options = { maxTokens: 12, sampling: { temperature: 0 } };
  const [drawn] = await run((await openPairs()).generate(TEXT, options));
  assert.equal(drawn.length, 12);
  assert.ok(drawn.every((id) => id < TOKENS.length)); // the model has more ids than the tokenizer
  const at = drawn.findIndex((id, place) => id !== drawn[0] && !drawn.slice(0, place).includes(id));
  const model = await openPairs({ ends: [{ id: drawn[Math.max(at, 0)], name: "end", source: "a test" }] });
  assert.deepEqual(await run(model.generate(TEXT, options)), [drawn.slice(0, Math.max(at, 0)), "stop"]);
  assert.deepEqual(await run(model.generate(TEXT, { ...options, ignoreEos: true })), [drawn, "length"]);
  const [parts, ended] = await run(model.generateText(TEXT, { ...options, ignoreEos: true }));
  const text = model.tokenizer.decode(drawn);
  assert.deepEqual([parts.join(""), ended], [text, "length"]);
  const stop = text.slice(3, 5);
  const [before, why] = await run(model.generateText(TEXT, { ...options, ignoreEos: true, stop: ["", stop, "never"] }));
  assert.deepEqual([before.join(""), why], [text.slice(0, text.indexOf(stop)), "stop"]);
  await refuses(() => run(model.generateText(TEXT, { ...options, stops: [] })), "option", /no setting stops/);
});

test("drawn text shows no half of a character, and no part of a stop", () => {
  const text = new DrawnText(new ByteTokenizer(), [], ["👍"], "");
  const parts = [...new TextEncoder().encode("aé🙂👎👍b")].map((byte) => text.add(byte));
  assert.equal(parts.join("") + text.end(), "aé🙂👎");
  assert.ok(parts.every((part) => part === part.toWellFormed?.() || !part.toWellFormed));
  assert.ok(text.stopped);
});

test("a document in pieces has the scores of the whole, and a byte-order mark in front is dropped and counted", async () => {
  const marked = new TextEncoder().encode(`\ufeff${TEXT}\n`);
  async function* slowly(bytes) {
    for (const byte of bytes) yield Uint8Array.of(byte);
  }
  for (const model of [await open(BYTES), await openPairs(), await openWords()]) {
    const sources = [`${TEXT}\n`, slowly(marked.slice(3)), marked, new Blob([marked]).stream(), slowly(marked)];
    const [plain, ...others] = await all(model.score(sources));
    const same = ({ tokens, unknownTokens, scoredBytes, scoredChars }) => [
      tokens,
      unknownTokens,
      scoredBytes,
      scoredChars,
    ];
    for (const [place, score] of others.entries()) {
      const marks = Number(place > 0);
      near(score.nats, plain.nats);
      assert.deepEqual(same(score), same(plain));
      assert.deepEqual([score.droppedBytes, score.droppedChars], [3 * marks, marks]);
    }
  }
  const stream = await (await open(BYTES)).stream();
  assert.equal((await stream.feed("\ufeffa")).tokens.length, 3); // never in a feed
});

test("a run without a boundary is cut at 4,096 bytes in a stream, and counted; a document is not cut", async () => {
  const model = await openPairs();
  const stream = await model.stream();
  await stream.feed("x".repeat(4096));
  assert.deepEqual([stream.unsettledCuts, stream.position], [0, 0]);
  await stream.feed("x");
  assert.deepEqual([stream.unsettledCuts, stream.position], [1, 4097]);
  const [{ tokens }] = await all(model.score(["me".repeat(5000)]));
  assert.equal(tokens, 5000);
});

test("ids without a text have none", async () => {
  const { tokenizer } = await openPairs();
  for (const one of [tokenizer, vocabulary({ kind: "trie", symbols: ["61"] }), (await openWords()).tokenizer]) {
    assert.equal(one.decode([100_000]), "");
  }
});

test("what a manifest says of a tokenizer is checked", async () => {
  const end = { id: 1, name: "end", source: "a test" };
  for (const [entry, message] of [
    [{ settled: "gpt3" }, /tokenizer\.settled is "gpt3", expected "gpt2" or/],
    [{ ends: [{ ...end, id: 256 }] }, /tokens that begin or end a text are outside the vocabulary: 256/],
    [{ begin: { ...end, id: -1 } }, /tokenizer\.begin\.id is -1/],
    [{ begin: { ...end, name: 3 } }, /tokenizer\.begin\.name is 3, expected text/],
    [{ begin: { id: 1, name: "x" } }, /tokenizer\.begin\.source is missing/],
    [{ bpe: "pairs.bpe" }, /files are used but not listed: pairs\.bpe/],
    [{ other: 1 }, /tokenizer\.other is unknown/],
  ]) {
    await refuses(() => openPairs(entry), "bundle_format", message);
  }
});

test("vocabularies of longer symbols are bounded", () => {
  for (const [fields, message] of [
    [{ kind: "trie", symbols: ["0A"] }, /not bytes in hexadecimal: 0A/],
    [{ kind: "trie", symbols: ["0a", "0a"] }, /more than once/],
    [{ kind: "trie", symbols: ["", ""] }, /not a list of texts/],
    [{ kind: "trie", symbols: ["00".repeat(1001)] }, /longer than 1,000/],
    [{ kind: "trie", symbols: ["00"], lower_case: true }, /lower_case is true/],
    [{ kind: "symbols", symbols: ["a", ""] }, /none of them empty/],
    [{ kind: "symbols", symbols: ["a".repeat(1001)] }, /longer than 1,000/],
    [{ kind: "symbols", symbols: ["a"], unk: "b" }, /not a symbol of the vocabulary/],
  ]) {
    assert.throws(() => vocabulary(fields), { code: "vocabulary", message });
  }
  const small = vocabulary({ kind: "symbols", symbols: ["a", "ab"] });
  assert.throws(() => small.encode("ab\nabc"), { code: "token", message: /"c" in line 2 not in the vocabulary of 2/ });
  const bytes = vocabulary({ kind: "trie", symbols: ["61"] });
  assert.throws(() => bytes.encode("aab"), { code: "token", message: /98 \(0x62\) at byte 2 not in the vocabulary/ });
  assert.deepEqual(bytes.encode("a\na\r\na"), [0, 0, 0]);
});
