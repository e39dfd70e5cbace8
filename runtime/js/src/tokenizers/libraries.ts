/** Tokenizers of other libraries, which are imported when a bundle needs them. */

import { TextError, VocabularyError, XlruntimeError } from "../errors.js";
import { firstLine } from "../messages.js";
import { fields } from "../protobuf.js";
import { checkTokenizer } from "./tokenizer_file.js";
import { utf8Text, type TextCounts, type Tokenizer, type TokenPiece } from "./tokenizer.js";

const HUGGING_FACE = "@huggingface/tokenizers";
const SENTENCE_PIECE = "@sctg/sentencepiece-js";
// Numbers of fields in a SentencePiece model, and the type of its unknown piece.
const [PIECES, PIECE_NAME, PIECE_TYPE, UNKNOWN] = [1, 1, 3, 2];
const LONGEST_DOCUMENT = 16 * 2 ** 20; // bytes; the libraries hold the whole text many times over

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
}

interface SentencePiece {
  loadFromB64StringModel(model: string): Promise<void>;
  encodeIds(text: string): number[];
  decodeIds(ids: Int32Array): string;
}

/** A library's tokenizer. Documents must be UTF-8, and are read whole: cuts would change tokens. */
class LibraryTokenizer implements Tokenizer {
  constructor(
    readonly unkId: number | null,
    private readonly ids: (text: string) => ArrayLike<number | bigint>,
    private readonly text: (ids: number[]) => string,
    private readonly find: (name: string) => number | null,
  ) {}

  encode(text: string | Uint8Array): number[] {
    return this.#encoded(utf8Text(text, "the text"), "the text");
  }

  encodePiece(text: string | Uint8Array): number[] {
    return this.encode(text);
  }

  decode(ids: Iterable<number>): string {
    return ofLibrary(TextError, "the library cannot turn the token ids into text", () => this.text([...ids]));
  }

  idOf(name: string): number | null {
    return this.find(name);
  }

  async *read(parts: AsyncIterable<Uint8Array>, name: string, counts: TextCounts): AsyncIterable<TokenPiece> {
    const held: number[][] = [];
    let size = 0;
    for await (const raw of parts) {
      counts.add(raw);
      held.push([...raw]);
      size += raw.length;
      if (size > LONGEST_DOCUMENT) {
        throw new TextError(`${name}: more than ${LONGEST_DOCUMENT} bytes, and its tokenizer reads a document whole.`);
      }
    }
    const text = utf8Text(Uint8Array.from(held.flat()), name);
    const ids = this.#encoded(text, name);
    const first = this.#firstToken(text, ids);
    counts.firstTokenChars = [...first].length;
    counts.firstTokenBytes = new TextEncoder().encode(first).length;
    yield { ids, starts: null, ends: null };
  }

  #encoded(text: string, name: string): number[] {
    return ofLibrary(TextError, `${name}: the bundle's tokenizer fails on this text`, () => {
      const ids = Array.from(this.ids(text), Number);
      if (ids.some(Number.isNaN)) throw new Error("it has no token for a part of it");
      return ids;
    });
  }

  /** Return the text of the first token. The libraries give no places of tokens, so it is decoded. */
  #firstToken(text: string, ids: readonly number[]): string {
    if (!ids.length) return "";
    const decoded = this.decode(ids.slice(0, 1));
    return text.startsWith(decoded) ? decoded : "";
  }
}

/** Return the tokenizer of a `tokenizer.json` at `where`. */
export async function huggingFace(raw: Uint8Array, where: string, given: unknown): Promise<Tokenizer> {
  const fields = ofLibrary(VocabularyError, `${where}: not valid JSON`, () => {
    return JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(raw)) as {
      model?: { unk_token?: string | null; unk_id?: number | null };
    };
  });
  ofLibrary(VocabularyError, `${where}: not a tokenizer of the tokenizers library that can be run safely`, () => {
    checkTokenizer(fields);
  });
  const { Tokenizer: Library } = await library<{
    Tokenizer: new (tokenizer: unknown, config: unknown) => HuggingFace;
  }>(HUGGING_FACE, where, given);
  const what = `${where}: not a tokenizer of the tokenizers library`;
  const tokenizer = ofLibrary(VocabularyError, what, () => new Library(fields, {}));
  const unk = fields.model?.unk_token;
  return new LibraryTokenizer(
    (unk ? tokenizer.token_to_id(unk) : fields.model?.unk_id) ?? null,
    (text) => (text === "" ? [] : tokenizer.encode(text, { add_special_tokens: false }).ids),
    (ids) => tokenizer.decode(ids, { skip_special_tokens: true, clean_up_tokenization_spaces: false }),
    (name) => tokenizer.token_to_id(name) ?? null,
  );
}

/** Return the tokenizer of a SentencePiece model at `where`. */
export async function sentencePiece(raw: Uint8Array, where: string, given: unknown): Promise<Tokenizer> {
  const { SentencePieceProcessor } = await library<{ SentencePieceProcessor: new () => SentencePiece }>(
    SENTENCE_PIECE,
    where,
    given,
  );
  const what = `${where}: not a SentencePiece model`;
  const pieces = ofLibrary(VocabularyError, what, () => piecesOf(raw));
  const processor = new SentencePieceProcessor();
  let binary = "";
  for (let start = 0; start < raw.length; start += 4096) {
    binary += String.fromCharCode(...raw.subarray(start, start + 4096));
  }
  try {
    await processor.loadFromB64StringModel(btoa(binary));
  } catch (error) {
    throw new VocabularyError(`${what} (${firstLine(error)}).`, null, error);
  }
  return new LibraryTokenizer(
    pieces.unknown,
    (text) => processor.encodeIds(text),
    (ids) => processor.decodeIds(Int32Array.from(ids)),
    (name) => (pieces.names.includes(name) ? pieces.names.indexOf(name) : null),
  );
}

/** Return the names of a SentencePiece model's pieces, and the id of the unknown one. */
function piecesOf(raw: Uint8Array): { names: string[]; unknown: number | null } {
  const names: string[] = [];
  let unknown: number | null = null;
  for (const [number, piece] of fields(raw)) {
    if (number !== PIECES || typeof piece === "number") continue;
    const { [PIECE_NAME]: name, [PIECE_TYPE]: type } = Object.fromEntries(fields(piece));
    if (type === UNKNOWN) unknown = names.length;
    names.push(name === undefined ? "" : new TextDecoder().decode(name as Uint8Array));
  }
  return { names, unknown };
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
