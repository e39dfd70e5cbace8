/** Where the files of a bundle are: at an address, or in a list of files. Folders of Node are in `node.ts`. */

import { BundleNotFoundError, FileError } from "./errors.js";
import { firstLine } from "./messages.js";
import { joined } from "./safetensors.js";

/** A place that has the files of a bundle. */
export interface Source {
  /** The place, for messages. */
  readonly where: string;
  /** Whether reading a file again is slow or may fail, so that what was read is kept. */
  readonly keep: boolean;
  /**
   * Read a file, and stop after `most` bytes.
   *
   * @returns At most `most` + 1 bytes, or null if there is no such file.
   */
  read(name: string, most: number, progress?: (bytes: number) => void): Promise<Uint8Array<ArrayBuffer> | null>;
}

/** Files at an address: `bundle/` in a page's folder, or `https://example.org/bundle/`. */
export class UrlSource implements Source {
  readonly where: string;
  readonly keep = true;
  readonly #base: URL;

  constructor(address: string | URL) {
    const text = String(address);
    const folder = text.endsWith("/") ? text : `${text}/`;
    const page = (globalThis as { location?: { href: string } }).location?.href;
    if (!URL.canParse(folder, page)) throw new BundleNotFoundError(`${text}: not an address of a bundle.`);
    this.#base = new URL(folder, page);
    this.where = text.replace(/\/$/, "");
  }

  async read(name: string, most: number, progress?: (bytes: number) => void): Promise<Uint8Array<ArrayBuffer> | null> {
    const file = `${this.where}/${name}`;
    let size = 0;
    const parts: Uint8Array[] = [];
    try {
      const response = await fetch(new URL(encodeURIComponent(name), this.#base));
      if (response.status === 404 || response.status === 410) return null;
      if (!response.ok) throw new FileError(`${file}: the server answered ${response.status}.`, "Load it again.");
      for (const reader = response.body?.getReader(); reader;) {
        const { done, value } = await reader.read();
        if (done) break;
        parts.push(value);
        size += value.length;
        progress?.(value.length);
        if (size > most) {
          await reader.cancel();
          break;
        }
      }
    } catch (error) {
      if (error instanceof FileError) throw error;
      throw new FileError(
        `${file}: could not be loaded (${firstLine(error)}).`,
        "Check the connection, and load it again.",
        error,
      );
    }
    return joined(parts);
  }
}

/** Files that a page got from a person, or from a program: `File`s, or bytes by name. */
export class FilesSource implements Source {
  readonly keep = false;

  /** Take files by name. */
  constructor(
    private readonly files: ReadonlyMap<string, Blob | Uint8Array>,
    readonly where = "the chosen files",
  ) {}

  /** Return the files of a list, such as `input.files` of a page. Folders in front of the names do not matter. */
  static of(list: Iterable<File>): FilesSource {
    const files = [...list];
    const folder = files
      .find((file) => file.name === "bundle.json")
      ?.webkitRelativePath?.split("/")
      .at(-2);
    return new FilesSource(new Map(files.map((file) => [file.name, file])), folder);
  }

  async read(name: string, most: number, progress?: (bytes: number) => void): Promise<Uint8Array<ArrayBuffer> | null> {
    const file = this.files.get(name);
    if (file === undefined) return null;
    const part =
      file instanceof Uint8Array
        ? new Uint8Array(file.subarray(0, most + 1))
        : await blobBytes(file.slice(0, most + 1), name);
    progress?.(part.length);
    return part as Uint8Array<ArrayBuffer>;
  }
}

async function blobBytes(blob: Blob, name: string): Promise<Uint8Array> {
  try {
    return new Uint8Array(await blob.arrayBuffer());
  } catch (error) {
    throw new FileError(`${name}: could not be read (${firstLine(error)}).`, "Choose it again.", error);
  }
}
