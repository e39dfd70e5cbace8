/** Tokenizers of other libraries, which are imported when a bundle needs them. */

import { TextError, VocabularyError, XlruntimeError } from "../errors.js";
import { firstLine } from "../messages.js";
import { fields } from "../protobuf.js";
import { Cuts, type CutRule } from "./cuts.js";
import { charsOf, Tokenizer, type Part, type Place } from "./tokenizer.js";
import { checkTokenizer, hasPart, withoutPrefix, type Part as Section } from "./tokenizer_file.js";

const HUGGING_FACE = "@huggingface/tokenizers";
const SENTENCE_PIECE = "@sctg/sentencepiece-js";
// Numbers of fields in a SentencePiece model and in its rules of normalizing, and types of pieces.
const [TRAINER, MODEL_TYPE, BPE] = [2, 3, 2];
const [PIECES, PIECE_NAME, PIECE_TYPE, UNKNOWN, USER_DEFINED] = [1, 1, 3, 2, 4];
const [NORMALIZER, ADD_PREFIX, REMOVE_SPACES] = [3, 3, 4];
const NO_PREFIX = [0x1a, 2, 0x18, 0]; // normalizer_spec { add_dummy_prefix: false }, as the end of a model
const META_SPACE = "\u2581"; // how SentencePiece and its like write a space

const UNKNOWN_WORD = /^\s*(?:[^\s\p{P}$+<=>^`|~\p{Script=Han}]+|.)/su;
const MOST_WORDS = 2 ** 14; // whose ids are kept
const LONGEST_WORD = 32;

/** Modules that a program hands over, instead of having them imported. */
export interface Libraries {
  /** `@huggingface/tokenizers`, for bundles with a `tokenizer.json`. */
  tokenizers?: unknown;
  /** `@sctg/sentencepiece-js`, for bundles with a SentencePiece model. */
  sentencepiece?: unknown;
}

interface HuggingFace {
  encode(text: string, options: { add_special_tokens: boolean }): { ids: ArrayLike<number | bigint> };
  decode(ids: number[], options: { skip_special_tokens: boolean; clean_up_tokenization_spaces: boolean }): string;
  token_to_id(token: string): number | undefined;
  id_to_token(id: number): string | undefined;
}

interface SentencePiece {
  loadFromB64StringModel(model: string): Promise<void>;
  encodeIds(text: string): number[];
  decodeIds(ids: Int32Array): string;
}

/** Ids of a text by a library. */
type Encoder = (text: string) => ArrayLike<number | bigint>;

/** What the tokenizers of two libraries differ in. */
interface Form {
  unkId: number | null;
  size: number;
  cuts: Cuts | null;
  ordinary: Encoder;
  /** The form for a text that goes on: without a space in front. */
  continued: (text: string) => Encoder;
  /** Whether words can be tokenized one by one; sums of scores of a longer text are rounded otherwise. */
  splitsWords: boolean;
  /** Whether an added token is followed by a text with a space in front. */
  prefixesSections: boolean;
  /** The name of a token in the vocabulary; null if there is none. */
  nameOf(id: number): string | null;
  /** Whether a token is written as it is: an added one. */
  isPlain(id: number): boolean;
  /** Whether names have one character for each byte. */
  isByteLevel: boolean;
  /** Whether a text is given a space in front that it lacks, and whether its own spaces there are dropped. */
  addsSpace: boolean;
  stripsSpace: boolean;
  decode(ids: number[]): string;
  find(name: string): number | null;
}

/** A library's tokenizer. Texts must be UTF-8; where they can be cut, the manifest says. */
class LibraryTokenizer extends Tokenizer {
  override readonly needsText = true;
  override readonly unkId: number | null;
  override readonly size: number;
  readonly #known = new Map<string, readonly number[]>(); // ids of words that came often

  constructor(private readonly form: Form) {
    super();
    ({ unkId: this.unkId, size: this.size } = form);
  }

  settled(raw: Uint8Array): number | null {
    if (this.form.cuts === null) return null;
    const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(raw);
    return raw.length - new TextEncoder().encode(text.slice(this.form.cuts.settled(text))).length;
  }

  part(raw: Uint8Array, { name, begun }: Place): Part {
    const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(raw);
    const ids = ofLibrary(TextError, `${name}: the bundle's tokenizer fails on this text`, () => {
      const { cuts, splitsWords } = this.form;
      const [first = "", ...others] = cuts !== null && splitsWords ? cuts.parts(text) : [text];
      const found = begun ? this.#continued(first) : Array.from(this.form.ordinary(first), Number);
      for (const part of others) for (const id of this.#idsOfWord(part)) found.push(id);
      if (found.some(Number.isNaN)) throw new Error("it has no token for a part of it");
      return found;
    });
    const bytes = ids.length ? Math.min(this.#firstBytes(text, ids[0] as number, begun), raw.length) : 0;
    const first = [bytes, charsOf(raw.subarray(0, bytes))] as const;
    return { ids, starts: null, ends: null, first, dropped: [0, 0] };
  }

  decode(ids: Iterable<number>): string {
    const known = [...ids].filter((id) => this.form.nameOf(id) !== null);
    if (!known.length) return "";
    return ofLibrary(TextError, "the library cannot turn the token ids into text", () => this.form.decode(known));
  }

  override idOf(name: string): number | null {
    return this.form.find(name);
  }

  override within(ids: readonly number[], alone: readonly number[]): number {
    let count = ids.findIndex((id, at) => id !== alone[at]);
    if (count < 0) return ids.length;
    // Both texts begin alike, so tokens lie in the shorter one as long as they have no more bytes together.
    let left = alone.slice(count).reduce((sum, id) => sum + (this.#bytesOf(id) ?? NaN), 0);
    while (count < ids.length && (left -= this.#bytesOf(ids[count] as number) ?? NaN) >= 0) count += 1;
    return count;
  }

  /** Return the ids of a word in a text. The libraries are slow, and words come again. */
  #idsOfWord(word: string): readonly number[] {
    const ids = this.#known.get(word) ?? this.#continued(word);
    if (this.#known.size >= MOST_WORDS) this.#known.clear();
    if (word.length <= LONGEST_WORD) this.#known.set(word, ids);
    return ids;
  }

  #continued(text: string): number[] {
    const end = this.form.prefixesSections ? (this.form.cuts?.endOfAdded(text) ?? -1) : -1;
    const own = end < 0 ? text : text.slice(0, end);
    const ids = Array.from(this.form.continued(own)(own), Number);
    return end < 0 ? ids : ids.concat(Array.from(this.form.ordinary(text.slice(end)), Number));
  }

  /** Return the bytes that a token stands for, its space included; null for unknown text. */
  #bytesOf(id: number): number | null {
    const name = this.form.nameOf(id);
    if (name === null || id === this.unkId) return null;
    const encoder = new TextEncoder();
    if (this.form.isPlain(id)) return encoder.encode(name).length;
    if (this.form.isByteLevel) return [...name].length;
    return /^<0x[0-9A-F]{2}>$/.test(name) ? 1 : encoder.encode(name.replaceAll(META_SPACE, " ")).length;
  }

  /** Return how many bytes of a text its first token stands for. */
  #firstBytes(text: string, id: number, begun: boolean): number {
    const size = (part: string): number => new TextEncoder().encode(part).length;
    const { isByteLevel, isPlain, addsSpace, stripsSpace } = this.form;
    if (id === this.unkId) return size(UNKNOWN_WORD.exec(text)?.[0] ?? "");
    if (isPlain(id) || /^<0x[0-9A-F]{2}>$/.test(this.form.nameOf(id) ?? "")) return this.#bytesOf(id) ?? 0;
    if (isByteLevel) return (this.#bytesOf(id) ?? 0) - Number(addsSpace && !begun && !text.startsWith(" "));
    const decoded = this.decode([id]);
    if (decoded && text.startsWith(decoded)) return size(decoded);
    const space = /^[\s\u2581]*/.exec(text)?.[0] ?? ""; // which some normalizers remove
    const word = decoded.trimStart();
    if (!word) return stripsSpace ? size(space) : Number(text.startsWith(" "));
    if (text.startsWith(word, space.length)) return size(space + word);
    return size(space + [...text.slice(space.length)].slice(0, [...word].length).join("")); // in other letters
  }
}

/** Return the tokenizer of a `tokenizer.json` at `where`. */
export async function huggingFace(
  raw: Uint8Array,
  where: string,
  given: unknown,
  rule: CutRule | null = null,
): Promise<Tokenizer> {
  const file = ofLibrary(VocabularyError, `${where}: not valid JSON`, () => {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(raw)) as TokenizerFile;
  });
  ofLibrary(VocabularyError, `${where}: not a tokenizer of the tokenizers library that can be run safely`, () => {
    checkTokenizer(file);
  });
  const { Tokenizer: Library } = await library<{
    Tokenizer: new (tokenizer: unknown, config: unknown) => HuggingFace;
  }>(HUGGING_FACE, where, given);
  const what = `${where}: not a tokenizer of the tokenizers library`;
  const opened = (content: Section): HuggingFace => ofLibrary(VocabularyError, what, () => new Library(content, {}));
  const tokenizer = opened(file);
  const unk = file.model?.unk_token;
  const added = file.added_tokens ?? [];
  const { vocab = {} } = file.model ?? {};
  const ids = (Array.isArray(vocab) ? [vocab.length - 1] : Object.values(vocab)).concat(added.map(({ id }) => id));
  const plain = new Set(added.map(({ id }) => id));
  const addedTexts = added.map(({ content }) => content);
  const encoder = (one: HuggingFace) => (text: string) =>
    text === "" ? [] : one.encode(text, { add_special_tokens: false }).ids;
  const ordinary = encoder(tokenizer);
  const { file: other, changed, sections } = withoutPrefix(file);
  let continued: Encoder | null = changed ? null : ordinary;
  return new LibraryTokenizer({
    unkId: (unk ? tokenizer.token_to_id(unk) : file.model?.unk_id) ?? null,
    size: ids.reduce((most, id) => Math.max(most, id), -1) + 1,
    cuts: Cuts.of(rule, addedTexts),
    ordinary,
    continued: () => (continued ??= encoder(opened(other))),
    splitsWords: file.model?.type !== "Unigram",
    prefixesSections: sections,
    nameOf: (id) => tokenizer.id_to_token(id) ?? null,
    isPlain: (id) => plain.has(id),
    isByteLevel: hasPart(file["pre_tokenizer"], "ByteLevel"),
    addsSpace: changed,
    stripsSpace: false,
    decode: (known) => tokenizer.decode(known, { skip_special_tokens: true, clean_up_tokenization_spaces: false }),
    find: (name) => tokenizer.token_to_id(name) ?? null,
  });
}

/** What is read of a `tokenizer.json` here. */
type TokenizerFile = Section & {
  model?: {
    type?: string;
    unk_token?: string | null;
    unk_id?: number | null;
    vocab?: Record<string, number> | unknown[];
  };
  added_tokens?: { id: number; content: string }[];
};

/** Return the tokenizer of a SentencePiece model at `where`. */
export async function sentencePiece(
  raw: Uint8Array,
  where: string,
  given: unknown,
  rule: CutRule | null = null,
): Promise<Tokenizer> {
  const { SentencePieceProcessor } = await library<{ SentencePieceProcessor: new () => SentencePiece }>(
    SENTENCE_PIECE,
    where,
    given,
  );
  const what = `${where}: not a SentencePiece model`;
  const { names, unknown, own, addsPrefix, removesSpaces, isBpe } = ofLibrary(VocabularyError, what, () =>
    modelOf(raw),
  );
  const opened = async (model: Uint8Array): Promise<SentencePiece> => {
    const processor = new SentencePieceProcessor();
    let binary = "";
    for (let start = 0; start < model.length; start += 4096) {
      binary += String.fromCharCode(...model.subarray(start, start + 4096));
    }
    try {
      await processor.loadFromB64StringModel(btoa(binary));
    } catch (error) {
      throw new VocabularyError(`${what} (${firstLine(error)}).`, null, error);
    }
    return processor;
  };
  const processor = await opened(raw);
  const ordinary = (text: string): number[] => processor.encodeIds(text);
  const other = addsPrefix ? await opened(Uint8Array.from([...raw, ...NO_PREFIX])) : processor;
  const places = new Map(names.map((name, id) => [name, id]));
  return new LibraryTokenizer({
    unkId: unknown,
    size: names.length,
    cuts: Cuts.of(rule, own),
    ordinary,
    // A model that removes white space in front would lose that of the text, unless it adds its own.
    continued: (text) =>
      addsPrefix && removesSpaces && text.startsWith(" ") ? ordinary : (part) => other.encodeIds(part),
    splitsWords: isBpe,
    prefixesSections: false,
    nameOf: (id) => names[id] ?? null,
    isPlain: () => false,
    isByteLevel: false,
    addsSpace: addsPrefix,
    stripsSpace: removesSpaces,
    decode: (known) => processor.decodeIds(Int32Array.from(known)),
    find: (name) => places.get(name) ?? null,
  });
}

/** Read what a SentencePiece model says of its pieces and of white space; `own` are pieces of the user. */
function modelOf(raw: Uint8Array) {
  const [names, own]: [string[], string[]] = [[], []];
  let unknown: number | null = null; // its id
  let [addsPrefix, removesSpaces, isBpe] = [true, true, false];
  for (const [number, piece] of fields(raw)) {
    if (typeof piece === "number") continue;
    const inner = Object.fromEntries(fields(piece));
    if (number === NORMALIZER) {
      addsPrefix = Boolean(inner[ADD_PREFIX] ?? addsPrefix);
      removesSpaces = Boolean(inner[REMOVE_SPACES] ?? removesSpaces);
    }
    if (number === TRAINER) isBpe = inner[MODEL_TYPE] === BPE;
    if (number !== PIECES) continue;
    const { [PIECE_NAME]: name, [PIECE_TYPE]: type } = inner;
    const text = name === undefined ? "" : new TextDecoder().decode(name as Uint8Array);
    if (type === UNKNOWN) unknown = names.length;
    if (type === USER_DEFINED) own.push(text.replaceAll(META_SPACE, " "));
    names.push(text);
  }
  return { names, unknown, own, addsPrefix, removesSpaces, isBpe };
}

async function library<T>(name: string, where: string, given: unknown): Promise<T> {
  if (given) return given as T;
  try {
    return (await import(/* @vite-ignore */ /* webpackIgnore: true */ name)) as T;
  } catch (error) {
    throw new TextError(
      `${where} needs the package ${name}, which cannot be loaded.`,
      `Install it: npm install ${name}`,
      error,
    );
  }
}

function ofLibrary<T>(kind: typeof VocabularyError | typeof TextError, what: string, call: () => T): T {
  try {
    return call();
  } catch (error) {
    if (error instanceof XlruntimeError) throw error;
    const reason = firstLine(error).slice(0, 200);
    throw new kind(`${what} (${reason}).`, "Check where the tokenizer and the text come from.", error);
  }
}
