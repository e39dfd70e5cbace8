/** Bundles in folders, for Node. */

import { open, realpath, stat } from "node:fs/promises";
import { dirname, join } from "node:path";

import { BundleError, BundleNotFoundError } from "./errors.js";
import { joined, type Source } from "./source.js";

const PIECE = 2 ** 20;

/** The files of a folder. */
export class FolderSource implements Source {
  readonly where: string;
  readonly keep = false;

  constructor(path: string) {
    this.where = path;
  }

  async read(name: string, most: number, progress: (bytes: number) => void): Promise<Uint8Array<ArrayBuffer> | null> {
    const make = "Make a bundle with `xlexport convert CHECKPOINT`.";
    if (name === "bundle.json") {
      const found = await stat(this.where).catch(() => null);
      if (found === null) throw new BundleNotFoundError(`${this.where}: no such folder.`, make);
      if (!found.isDirectory()) throw new BundleNotFoundError(`${this.where}: a file, expected a bundle folder.`, make);
    }
    const path = join(this.where, name);
    if (!(await stat(path).catch(() => null))?.isFile()) return null;
    if (dirname(await realpath(path)) !== (await realpath(this.where))) {
      throw new BundleError(`${path}: a link that leads out of the bundle's folder.`, "Copy the file there.");
    }
    const file = await open(path, "r");
    try {
      const parts: Uint8Array[] = [];
      let size = 0;
      while (size <= most) {
        const { bytesRead, buffer } = await file.read(new Uint8Array(Math.min(PIECE, most + 1 - size)));
        if (!bytesRead) break;
        parts.push(buffer.subarray(0, bytesRead));
        size += bytesRead;
        progress(bytesRead);
      }
      return joined(parts, size);
    } finally {
      await file.close();
    }
  }
}
