// A tokenizer.json that would hang its library, or multiply a text, is refused before the library sees it.
import assert from "node:assert/strict";
import { test } from "node:test";

import { huggingFace } from "../dist/tokenizers/libraries.js";
import { refuses } from "./helpers.mjs";

const VOCABULARY = { "<unk>": 0, a: 1, b: 2, c: 3 };

/** Open a tokenizer of words between white space, with some changed sections. */
function opened(changed = {}) {
  const fields = {
    version: "1.0",
    added_tokens: [],
    normalizer: null,
    pre_tokenizer: { type: "WhitespaceSplit" },
    post_processor: null,
    decoder: null,
    model: { type: "WordLevel", vocab: VOCABULARY, unk_token: "<unk>" },
    ...changed,
  };
  return huggingFace(new TextEncoder().encode(JSON.stringify(fields)), "tokenizer.json", undefined);
}

const sequence = (...normalizers) => ({ normalizer: { type: "Sequence", normalizers } });
const replace = (pattern, content, kind = "String") => ({ type: "Replace", pattern: { [kind]: pattern }, content });
const split = (text) => ({
  pre_tokenizer: { type: "Split", pattern: { Regex: text }, behavior: "Isolated", invert: false },
});
const times = (count, one) => Array(count).fill(one);

const HOSTILE = {
  "a group repeated": [split("(a+)+$"), /repetition of a group/],
  "a group repeated in a look-ahead": [split("(?=(?:a|a)+b)"), /repetition of a group/],
  "a group repeated after a mark that the library drops": [split("(a+)\\G+b"), /escape \\G/],
  "a repetition repeated": [split("(?:b|a{2}+)b"), /of a repetition/],
  "a reference": [split("(a*)\\1b"), /escape \\1/],
  "three loops in a row": [split("a*a*a*b"), /too many ways/],
  "loops in groups": [split("(?:b|a*)(?:b|a*)(?:b|a*)b"), /too many ways/],
  "choices without a loop": [split("a?".repeat(40) + "b"), /too many ways/],
  "alternatives without a loop": [split("(?:a|a)".repeat(40) + "b"), /too many ways/],
  "counts in a row": [split("a{0,99}".repeat(4) + "b"), /too many ways/],
  "alternatives behind a bracket": [split("a?".repeat(15) + "[]|]" + "a?".repeat(15) + "b"), /bracket/],
  "a large count": [split("a{100000}"), /more than 1,000 repetitions/],
  "a group with a name": [split("(?<a>a)b"), /group of a kind/],
  "a long expression": [split("a".repeat(10_001)), /10,000 characters/],
  "forty times two": [sequence(...times(40, replace("a", "aa"))), /more than 32 parts/],
  "twelve times two": [sequence(...times(12, replace("a", "aa"))), /more than 1,000 characters of one/],
  "sequences in sequences": [
    sequence(...times(2, { type: "Sequence", normalizers: times(6, replace("a", "aa")) })),
    /more than 1,000 characters of one/,
  ],
  "something for nothing": [sequence(...times(3, replace("x*", "a".repeat(50), "Regex"))), /1,000 characters of one/],
  "the text before the text": [sequence(replace("a", "$`$'")), /replacement with \$/],
  "a long replacement": [sequence(replace("a", "a".repeat(101))), /more than 100 characters/],
  prepended: [sequence(...times(3, { type: "Prepend", prepend: "a".repeat(30) })), /1,000 characters of one/],
  "spaces for spaces": [
    { pre_tokenizer: { type: "Sequence", pretokenizers: times(12, { type: "Metaspace", replacement: "  " }) } },
    /1,000 characters of one/,
  ],
  "replaced in the output": [
    { decoder: { type: "Sequence", decoders: times(12, { type: "BPEDecoder", suffix: "" }) } },
    /decoder makes more than/,
  ],
  "pieces of no length": [{ pre_tokenizer: { type: "FixedLength", length: 0 } }, /pieces of no length/],
  "the text twice": [
    { post_processor: { type: "TemplateProcessing", single: times(2, { Sequence: { id: "A", type_id: 0 } }) } },
    /the text once/,
  ],
  "an id of any size": [{ added_tokens: [{ content: "x", id: 4e9 }] }, /an id of any size/],
  "a token of any length": [{ added_tokens: [{ content: "x".repeat(1001), id: 4 }] }, /a token of any length/],
  "words of any length": [
    { model: { type: "WordPiece", vocab: VOCABULARY, unk_token: "<unk>", max_input_chars_per_word: 1e9 } },
    /words of any length/,
  ],
  "no model": [{ model: null }, /not a tokenizer/],
  "an unknown part": [sequence({ type: "Exec" }), /Unknown Normalizer/],
};

for (const [name, [changed, text]] of Object.entries(HOSTILE)) {
  test(`refused: ${name}`, () => refuses(opened(changed), "vocabulary", text));
}

// Expressions of GPT-2, Llama 3, GPT-4o, DeepSeek, BLOOM, CLIP and Falcon.
const PUBLISHED = [
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+" +
    "|\\s+(?!\\S)|\\s+",
  "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?" +
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?" +
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" +
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  " ?[^(\\s|[.,!?…。，、।۔،])]+",
  "'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+",
  "[0-9][0-9][0-9]",
];

test("expressions of published tokenizers are accepted", async () => {
  for (const text of PUBLISHED) assert.deepEqual((await opened(split(text))).encode("a"), [1]);
});

test("ordinary parts are accepted", async () => {
  const tokenizer = await opened({
    ...sequence({ type: "NFKC" }, { type: "Prepend", prepend: "▁" }, replace(" {2,}", " ", "Regex"), replace("▁", "")),
    decoder: { type: "Sequence", decoders: [replace("▁", " "), { type: "Fuse" }] },
    post_processor: {
      type: "TemplateProcessing",
      single: [{ SpecialToken: { id: "<unk>", type_id: 0 } }, { Sequence: { id: "A", type_id: 0 } }],
    },
    added_tokens: [{ content: "[SEP]", id: 4, special: true }],
  });
  assert.deepEqual(tokenizer.encode("a  b[SEP]c"), [1, 2, 4, 3]);
});

test("text that the vocabulary lacks is refused if there is no unknown token", async () => {
  const tokenizer = await opened({ model: { type: "WordLevel", vocab: VOCABULARY } });
  await refuses(async () => tokenizer.encode("a z"), "text", /fails on this text \(it has no token for a part/);
});
