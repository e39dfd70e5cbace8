// Tokenizers of all kinds, small enough to be written here, and texts with places at which a cut is easily wrong.
import { huggingFace, sentencePiece } from "../dist/tokenizers/libraries.js";
import { ByteTokenizer } from "../dist/tokenizers/tokenizer.js";
import { openVocabulary } from "../dist/tokenizers/vocabulary_tokenizer.js";

const utf8 = (text) => new TextEncoder().encode(text);
const hex = (text) => Buffer.from(text).toString("hex");

/** The characters that byte-level vocabularies write for bytes. */
const BYTES = Array.from({ length: 256 }, (_, byte) => byte);
const plain = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
const shifted = BYTES.filter((byte) => !plain(byte));
const LETTERS = BYTES.map((byte) => String.fromCodePoint(plain(byte) ? byte : 256 + shifted.indexOf(byte)));
const level = (text) => Array.from(utf8(text), (byte) => LETTERS[byte]).join("");

/** Return a model of byte pairs that joins each of `words` from left to right. */
function pairs(alphabet, words, more = {}) {
  const [tokens, merges] = [new Set(alphabet), new Set()];
  for (const word of words) {
    const letters = [...word];
    for (let size = 1; size < letters.length; size++) {
      merges.add(`${letters.slice(0, size).join("")} ${letters[size]}`);
      tokens.add(letters.slice(0, size + 1).join(""));
    }
  }
  const vocab = Object.fromEntries([...tokens].map((token, id) => [token, id]));
  return { type: "BPE", vocab, merges: [...merges], ...more };
}

const WORDS = [" the", " old", " man", "The", "'s", "'S", "'re", "\n\n", "  ", "...", "123", " 12", "é", " é", "日本"];
const [byteLevel, bytesDecoder] = [
  { type: "ByteLevel", add_prefix_space: false, use_regex: true },
  { type: "ByteLevel" },
];
const added = (...texts) => texts.map((content, at) => ({ id: 900 + at, content, special: !/^ +$/.test(content) }));
const runs = Array.from({ length: 7 }, (_, at) => " ".repeat(at + 2)); // as GPT-NeoX has them

/** Return a model of byte pairs over few letters, with few ids. */
export const smallPairs = () =>
  pairs("abcdefghijklmnopqrstuvwxyzCIS.Ġ", ["Ġago", "Ġthe", "Ġnever", "Ċ", "me"].map(String));

/** Return the content of a tokenizer.json of byte pairs over bytes. */
export function bytePairs(changed = {}) {
  const model = pairs(LETTERS, WORDS.map(level));
  const fields = { normalizer: null, pre_tokenizer: byteLevel, post_processor: null, decoder: bytesDecoder, model };
  return { ...fields, added_tokens: added("<|endoftext|>", "<|im_end|>"), ...changed };
}

const CASES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const [UPPER, LOWER] = ["[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]", "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"];
const split = (expression) => ({
  type: "Sequence",
  pretokenizers: [
    { type: "Split", pattern: { Regex: expression }, behavior: "Isolated", invert: false },
    { ...byteLevel, use_regex: false },
  ],
});
const SPACES = "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const LLAMA3 = split(`${CASES}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|${SPACES}`);
const GPT4O = split(
  `[^\\r\\n\\p{L}\\p{N}]?${UPPER}*${LOWER}+${CASES}?|[^\\r\\n\\p{L}\\p{N}]?${UPPER}+${LOWER}*${CASES}?|\\p{N}{1,3}` +
    `| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|${SPACES}`,
);

/** Return the content of a tokenizer.json of the Llama form: bytes where a character has no token. */
export function llama(changed = {}) {
  const bytes = BYTES.map((byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`);
  const words = WORDS.map((word) => word.replaceAll(" ", "▁")).filter((word) => !/\n/.test(word));
  const alphabet = ["<unk>", "<s>", "</s>", ...bytes, "▁", ...new Set(words.join(""))];
  const replace = (from, to) => ({ type: "Replace", pattern: { String: from }, content: to });
  const steps = [replace("▁", " "), { type: "ByteFallback" }, { type: "Fuse" }];
  return {
    normalizer: { type: "Sequence", normalizers: [{ type: "Prepend", prepend: "▁" }, replace(" ", "▁")] },
    pre_tokenizer: null,
    post_processor: null,
    decoder: { type: "Sequence", decoders: [...steps, { type: "Strip", content: " ", start: 1, stop: 0 }] },
    model: pairs(alphabet, words, { unk_token: "<unk>", fuse_unk: true, byte_fallback: true }),
    added_tokens: ["<unk>", "<s>", "</s>"].map((content, id) => ({ id, content, special: true })),
    ...changed,
  };
}

const metaspace = (prepend_scheme) => ({ type: "Metaspace", replacement: "▁", prepend_scheme, split: false });
const pieces = ["[UNK]", "the", "old", "man", "##s", "##n", "a", "cafe", "##́", "x", "."];
const wordPiece = {
  normalizer: { type: "BertNormalizer", lowercase: true, clean_text: true, handle_chinese_chars: true },
  pre_tokenizer: { type: "BertPreTokenizer" },
  post_processor: null,
  decoder: { type: "WordPiece", prefix: "##" },
  model: {
    type: "WordPiece",
    vocab: Object.fromEntries(pieces.map((piece, id) => [piece, id])),
    unk_token: "[UNK]",
    continuing_subword_prefix: "##",
    max_input_chars_per_word: 100,
  },
  added_tokens: [],
};

/** Return a SentencePiece model of one-letter and longer pieces, as the bytes of its message. */
export function pieceModel(normalizer = []) {
  const field = (number, content) => [number * 8 + 2, content.length, ...content];
  const score = (value) => [0x1d, ...new Uint8Array(Float32Array.of(value).buffer)];
  const piece = (text, value, type = 1) => field(1, [...field(1, [...utf8(text)]), ...score(value), 0x18, type]);
  const letters = [..."▁abcdefghijklmnopqrstuvwxyzTé日本語."].map((letter, at) => piece(letter, -10 - at / 100));
  const words = ["▁the", "▁old", "▁man", "the", "▁The"].map((word, at) => piece(word, -3 - at / 100));
  const special = [piece("<unk>", 0, 2), piece("<s>", 0, 3), piece("</s>", 0, 3)];
  return Uint8Array.from([...special, ...letters, ...words, field(3, normalizer)].flat());
}

export const json = (fields) => utf8(JSON.stringify(fields));
const library = (fields, rule) => huggingFace(json(fields), "tokenizer.json", undefined, rule);
export const vocabulary = (fields) =>
  openVocabulary(json({ format: "xlexport vocabulary", ...fields }), "vocabulary.json");
const alphabet = [..."abcdefghijklmnopqrstuvwxyz "];
const nfc = { normalizer: { type: "NFC" }, added_tokens: added("<|endoftext|>", ...runs) };

/** The tokenizers by name. */
export const FORMS = {
  bytes: new ByteTokenizer(2),
  words: vocabulary({
    kind: "words",
    symbols: ["<unk>", "<eos>", "the", "old", "man"],
    unk: "<unk>",
    line_end: "<eos>",
  }),
  "words between marks": vocabulary({
    kind: "words",
    symbols: ["<S>", "the", "<unk>"],
    unk: "<unk>",
    line_start: "<S>",
  }),
  characters: vocabulary({ kind: "characters", symbols: ["?", "\n", ...alphabet], unk: "?", lower_case: true }),
  "characters without newlines": vocabulary({ kind: "characters", symbols: ["?", "\r", ...alphabet], unk: "?" }),
  "a vocabulary of bytes": vocabulary({ kind: "bytes", symbols: [...BYTES.keys()].map(String) }),
  trie: vocabulary({
    kind: "trie",
    symbols: [
      "",
      ...BYTES.map((byte) => byte.toString(16).padStart(2, "0")),
      "",
      ...[" the", "the old", "。\n", "é", "\r\nx"].map(hex),
    ],
  }),
  symbols: vocabulary({
    kind: "symbols",
    symbols: ["<unk>", "<eos>", ...alphabet, "the", "the old man", "é", "。\n", "x\r\ny", "[C@H]", "12"],
    unk: "<unk>",
    line_end: "<eos>",
  }),
  gpt2: await library(bytePairs(), "gpt2"),
  neox: await library(bytePairs(nfc), "gpt2"),
  roberta: await library(bytePairs({ pre_tokenizer: { ...byteLevel, add_prefix_space: true } }), "gpt2"),
  llama3: await library(bytePairs({ pre_tokenizer: LLAMA3 }), "llama3"),
  gpt4o: await library(bytePairs({ pre_tokenizer: GPT4O }), "gpt4o"),
  letters: await library(bytePairs(nfc), "letters"),
  llama: await library(llama(), "words"),
  "metaspace first": await library(llama({ normalizer: null, pre_tokenizer: metaspace("first") }), "words"),
  "metaspace always": await library(llama({ normalizer: null, pre_tokenizer: metaspace("always") }), "words"),
  wordpiece: await library(wordPiece, "words"),
  sentencepiece: await sentencePiece(pieceModel(), "tokenizer.model", undefined, "words"),
  "sentencepiece with all spaces": await sentencePiece(pieceModel([0x20, 0]), "tokenizer.model", undefined, "words"),
};

export const TEXTS = [
  "The old man's tea — the  old   man\n\n\nThe end.\n",
  " leading and trailing  ",
  "tab\there\r\nCR\rx\r\ny\r",
  "café naïve cafe\u0301 nai\u0308ve re\u0301sume\u0301 \u1112\u1161\u11ab",
  "🙂👍🏽\u200d👩\u200d👩\u200d👧 a\u00a0b\u2009c\u200bd",
  "x<|endoftext|>y <|endoftext|> z </s> w<s>the<|im_",
  "don't WE'RE 'S 1234567 3.14 10,000 http://a.b/c?d=e#f",
  "日本語の文章。\n次。\n\nthe old [C@H]",
  "की है। नमस्ते สวัสดี ครับ أهلا İß",
  Array.from({ length: 15 }, (_, at) => `w${at}${" ".repeat(2 * at + 2)}`).join("") + "end",
];
