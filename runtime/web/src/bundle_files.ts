/** The files of a bundle: read, and compared with their digests, each time that they are used. */

import { sha256 } from "./digest.js";
import { BundleError, BundleNotFoundError } from "./errors.js";
import type { Source } from "./source.js";
import { guardedFiles, MANIFEST_LIMITS, readBundle, type Bundle, type FileDigest } from "./spec.js";

const MANIFEST = "bundle.json";
const COPY = "Copy it again, or convert the checkpoint again.";

/** What a page can show while a bundle is loading: bytes so far, and of all files. */
export interface Progress {
  file: string;
  loaded: number;
  total: number;
}

/** The files of one bundle. */
export class BundleFiles {
  readonly bundle: Bundle;
  readonly where: string;
  readonly #source: Source;
  readonly #check: boolean;
  readonly #digests: Record<string, FileDigest>;
  readonly #kept = new Map<string, Uint8Array<ArrayBuffer>>();

  private constructor(source: Source, bundle: Bundle, check: boolean) {
    this.#source = source;
    this.bundle = bundle;
    this.where = source.where;
    this.#check = check;
    this.#digests = guardedFiles(bundle);
  }

  /**
   * Read the manifest, and check the files that it lists, except descriptions for people.
   *
   * @throws BundleNotFoundError - there is no manifest.
   * @throws BundleError - the manifest is broken or newer, or files are missing or changed; lists all of them.
   */
  static async open(source: Source, check: boolean, report: (progress: Progress) => void): Promise<BundleFiles> {
    const manifest = `${source.where}/${MANIFEST}`;
    const raw = await source.read(MANIFEST, MANIFEST_LIMITS.bytes, () => undefined);
    if (raw === null) {
      throw new BundleNotFoundError(
        `${source.where}: no ${MANIFEST} in it, so not a bundle.`,
        "Make one with `xlexport convert CHECKPOINT`.",
      );
    }
    const files = new BundleFiles(source, await readBundle(raw, manifest), check);
    if (check) await files.#checkAll(report);
    return files;
  }

  /** Names of the files that may hold weights. */
  get names(): ReadonlySet<string> {
    return new Set(Object.keys(this.#digests));
  }

  /** Return the place of a file, for messages. */
  place(name: string): string {
    return `${this.where}/${name}`;
  }

  /**
   * Return the content of a file.
   *
   * @throws BundleError - the file is missing, or not the one of its digest.
   */
  async read(name: string): Promise<Uint8Array<ArrayBuffer>> {
    const found = this.#kept.get(name) ?? (await this.#fresh(name, () => undefined));
    if (typeof found === "string") throw new BundleError(`${this.where}: ${found}.`, COPY);
    return found;
  }

  async #checkAll(report: (progress: Progress) => void): Promise<void> {
    const total = Object.values(this.#digests).reduce((sum, digest) => sum + digest.size, 0);
    let loaded = 0;
    const problems: string[] = [];
    for (const name of Object.keys(this.#digests)) {
      const found = await this.#fresh(name, (bytes) => {
        loaded += bytes;
        report({ file: name, loaded, total });
      });
      if (typeof found === "string") problems.push(found);
    }
    if (problems.length) throw new BundleError(`${this.where}: ${problems.join("; ")}.`, COPY);
  }

  /** Return the content of a file, or the problem of it. */
  async #fresh(name: string, progress: (bytes: number) => void): Promise<Uint8Array<ArrayBuffer> | string> {
    const wanted = this.#digests[name] as FileDigest;
    const most = this.#check ? wanted.size : Number.MAX_SAFE_INTEGER;
    const content = await this.#source.read(name, most, progress);
    if (content === null) return `${name} is missing`;
    if (this.#check) {
      if (content.length > wanted.size) return `${name} has more than ${wanted.size} bytes`;
      if (content.length < wanted.size) return `${name} has ${content.length} bytes, expected ${wanted.size}`;
      const found = await sha256(content);
      if (found !== wanted.sha256) {
        const [is, was] = [found.slice(0, 12), wanted.sha256.slice(0, 12)];
        return `${name} was changed (SHA-256 ${is}…, expected ${was}…)`;
      }
    }
    if (this.#source.keep) this.#kept.set(name, content);
    return content;
  }
}
