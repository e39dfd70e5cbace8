/** Tokenizers without a file: bytes, and none. */

import { TextError } from "../errors.js";
import { utf8Bytes, type TextCounts, type Tokenizer, type TokenPiece } from "./tokenizer.js";

/** A tokenizer with id = byte + `firstId`. Any file is valid, and is read piece by piece. */
export class ByteTokenizer implements Tokenizer {
  readonly unkId = null;
  readonly vocabSize: number;
  readonly #firstId: number;

  constructor(firstId = 0) {
    this.#firstId = firstId;
    this.vocabSize = firstId + 256;
  }

  encode(text: string | Uint8Array): number[] {
    return Array.from(utf8Bytes(text, "the text"), (byte) => byte + this.#firstId);
  }

  encodePiece(text: string | Uint8Array): number[] {
    return this.encode(text);
  }

  decode(ids: Iterable<number>): string {
    const bytes = [...ids].map((id) => id - this.#firstId).filter((byte) => byte >= 0 && byte < 256);
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
  }

  idOf(): null {
    return null;
  }

  async *read(parts: AsyncIterable<Uint8Array>, _name: string, counts: TextCounts): AsyncIterable<TokenPiece> {
    let position = 0;
    for await (const raw of parts) {
      if (!raw.length) continue;
      if (position === 0) {
        counts.firstTokenBytes = 1;
        counts.firstTokenChars = Number(((raw[0] as number) & 0xc0) !== 0x80);
      }
      counts.add(raw);
      const begin = position;
      const starts = Array.from(raw, (_, at) => begin + at);
      yield { ids: this.encode(raw), starts, ends: starts.map((start) => start + 1) };
      position += raw.length;
    }
  }
}

/** A placeholder for bundles without a tokenizer: accepts token ids, refuses text. */
export class NoTokenizer implements Tokenizer {
  readonly unkId = null;
  readonly vocabSize = null;

  encode(): never {
    throw refusal("the text");
  }

  encodePiece(): never {
    throw refusal("the text");
  }

  decode(ids: Iterable<number>): string {
    return [...ids].join(" ");
  }

  idOf(name: string): number | null {
    return /^[0-9]{1,9}$/.test(name) ? Number(name) : null;
  }

  async *read(_parts: AsyncIterable<Uint8Array>, name: string): AsyncIterable<TokenPiece> {
    throw refusal(name);
  }
}

function refusal(name: string): TextError {
  return new TextError(
    `${name}: this bundle has no tokenizer, so it takes token ids, not text.`,
    "Give ids, or convert the checkpoint with --tokenizer.",
  );
}
