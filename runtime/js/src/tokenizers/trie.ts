/** A trie: for each place of a text, the longest of many symbols that begins there. */

/** Symbols of bytes, in arrays that take as much memory as the symbols have bytes. */
export class Trie {
  // The first child and the next sibling of each node, 0: none; its byte; and the symbol that ends in it, -1: none.
  readonly #child: Int32Array;
  readonly #sibling: Int32Array;
  readonly #byte: Uint8Array;
  readonly #symbol: Int32Array;
  readonly #roots = new Int32Array(256); // the children of node 0

  /** @param symbols - bytes of each symbol; an empty one is in no text. */
  constructor(symbols: readonly ArrayLike<number>[]) {
    const most = symbols.reduce((sum, { length }) => sum + length, 1);
    this.#child = new Int32Array(most);
    this.#sibling = new Int32Array(most);
    this.#byte = new Uint8Array(most);
    this.#symbol = new Int32Array(most).fill(-1);
    let nodes = 1;
    symbols.forEach((symbol, id) => {
      let node = 0;
      for (let at = 0; at < symbol.length; at++) {
        const byte = symbol[at] as number;
        let next = this.#next(node, byte);
        if (!next) {
          next = nodes++;
          this.#byte[next] = byte;
          if (node === 0) this.#roots[byte] = next;
          else {
            this.#sibling[next] = this.#child[node] as number;
            this.#child[node] = next;
          }
        }
        node = next;
      }
      if (symbol.length) this.#symbol[node] = id;
    });
  }

  /**
   * Return the longest symbol at a place of a text, and its end; null if there is none.
   *
   * `isOpen` says whether a longer one could come if the text went on.
   */
  longest(text: Uint8Array, start: number): { id: number | null; end: number; isOpen: boolean } {
    let [id, end, node, at]: [number | null, number, number, number] = [null, start, 0, start];
    while (at < text.length) {
      node = this.#next(node, text[at] as number);
      if (!node) return { id, end, isOpen: false };
      at += 1;
      const found = this.#symbol[node] as number;
      if (found >= 0) [id, end] = [found, at];
    }
    return { id, end, isOpen: this.#child[node] !== 0 };
  }

  #next(node: number, byte: number): number {
    if (node === 0) return this.#roots[byte] as number;
    let next = this.#child[node] as number;
    while (next && this.#byte[next] !== byte) next = this.#sibling[next] as number;
    return next;
  }
}

/** Return the bytes of a text in hexadecimal. */
export function ofHex(text: string): Uint8Array {
  return Uint8Array.from({ length: text.length / 2 }, (_, at) => parseInt(text.slice(2 * at, 2 * at + 2), 16));
}
