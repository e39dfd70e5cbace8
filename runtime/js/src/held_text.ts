/** A text that grows: what a later piece may still change is held back, for streams, scorers and documents alike. */

import { TextError } from "./errors.js";
import { counted } from "./messages.js";
import { joined } from "./safetensors.js";
import {
  charsOf,
  NOTHING,
  unfinished,
  utf8Text,
  type Part,
  type Place,
  type Tokenizer,
} from "./tokenizers/tokenizer.js";

/** Most bytes that a stream holds; a character that is not complete may come on top. */
export const MOST_HELD = 4096;
const MOST_HELD_OF_DOCUMENTS = 16 * 2 ** 20;

/** A text that arrives in pieces. Its tokens are those of the whole, wherever the pieces are cut. */
export class HeldText {
  /** Bytes that have no tokens yet. */
  held: Uint8Array = new Uint8Array(0);
  /** Whether text or drawn tokens came before the held bytes, since the beginning or the last given ids. */
  begun = false;
  /** How many times a run without a boundary was cut all the same, so that its tokens may be others. */
  unsettledCuts = 0;
  /** Bytes and characters before the held ones. */
  bytes = 0;
  chars = 0;
  private last: number | null = null; // byte before the held ones
  private line = 1;

  /** @param whole - whether the text is a document, which is never cut where its tokens could change. */
  constructor(
    private readonly tokenizer: Tokenizer,
    private readonly name: string,
    private readonly whole = false,
  ) {}

  /** Return a text at the same place. */
  copy(): HeldText {
    return Object.assign(new HeldText(this.tokenizer, this.name, this.whole), this);
  }

  /** Take the next bytes, and return the tokens that are settled now; `previous` is the token before the held bytes. */
  take(raw: Uint8Array, previous: number | null): Part {
    const all = joined([this.held, raw]);
    const known = all.subarray(0, all.length - (this.tokenizer.needsText ? unfinished(all) : 0));
    if (this.tokenizer.needsText) utf8Text(known, this.name, this.bytes);
    let end = this.tokenizer.settled(known);
    if (end === null && !this.whole) {
      this.tokenizer.part(all.subarray(0, 0), this.#place(previous)); // without any tokenizer, another error
      throw new TextError(
        `${this.name}: this tokenizer cannot say which tokens a longer text keeps.`,
        "Give whole documents, or token ids.",
      );
    }
    end ??= 0;
    if (all.length - end > (this.whole ? MOST_HELD_OF_DOCUMENTS : MOST_HELD)) {
      if (this.whole) {
        throw new TextError(
          `${this.name}: more than ${counted(MOST_HELD_OF_DOCUMENTS)} bytes without a place where the tokens before it ` +
            "are certain, or with a tokenizer that reads a document whole.",
          "Score it in parts, or convert the checkpoint again, which finds such places.",
        );
      }
      end = all.length - unfinished(all);
      this.unsettledCuts += 1;
    }
    return this.#cut(all, end, previous, false);
  }

  /** Return the tokens of the held bytes and of `more`, as if the text ended there; `ended`: and its last line. */
  end(previous: number | null, more: Uint8Array = new Uint8Array(0), ended = false): Part {
    const all = joined([this.held, more]);
    if (this.tokenizer.needsText) utf8Text(all, this.name, this.bytes);
    return this.#cut(all, all.length, previous, ended);
  }

  /** Return the ids of the held bytes and of `more`, as `end` does, and how many of them lie in the held bytes. */
  continued(previous: number | null, more: Uint8Array): { ids: number[]; context: number } {
    const alone = this.copy();
    alone.held = this.held.subarray(0, this.held.length - unfinished(this.held));
    const size = this.tokenizer.needsText ? charsOf(alone.held) : this.held.length;
    const { ids, starts, ends } = this.end(previous, more);
    if (!size) return { ids, context: 0 };
    if (starts === null || ends === null) {
      return { ids, context: this.tokenizer.within(ids, alone.end(previous).ids) };
    }
    return { ids, context: ends.filter((end, at) => end <= size && (starts[at] as number) < size).length };
  }

  /** Forget the text; the next one is a beginning, or goes on after drawn tokens. */
  restart(begun: boolean): void {
    this.held = new Uint8Array(0);
    this.begun = begun;
    [this.bytes, this.chars, this.last, this.line] = [0, 0, null, 1];
  }

  #cut(all: Uint8Array, end: number, previous: number | null, ended: boolean): Part {
    const place = this.#place(previous, ended);
    const part = end || ended ? this.tokenizer.part(all.subarray(0, end), place) : NOTHING;
    this.held = all.slice(end);
    if (!end) return part;
    this.begun = true;
    this.bytes += end;
    this.chars += charsOf(all.subarray(0, end));
    this.last = all[end - 1] as number;
    this.line = place.line;
    return part;
  }

  #place(previous: number | null, ended = false): Place {
    const { name, begun, bytes, last, line } = this;
    return { name, begun, previous, bytes, last, ended, line };
  }
}
