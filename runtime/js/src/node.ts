/** The package in Node: bundles in folders, and ONNX Runtime's native library. */

import { open, realpath, stat } from "node:fs/promises";
import { totalmem } from "node:os";
import { basename, dirname, join } from "node:path";
import { isMainThread } from "node:worker_threads";

import { checkOnce } from "./check_once.js";
import { BundleDamagedError, BundleNotFoundError, OptionError, ProviderError } from "./errors.js";
import { shown } from "./messages.js";
import { load as loadModel, setFolders, type BundlePlace, type LoadOptions, type Model } from "./model.js";
import { importModule, setPlatform, type Ort, type OrtTensor } from "./onnxruntime.js";
import { joined } from "./safetensors.js";
import type { Source } from "./source.js";

const TELEMETRY = "ORT_DISABLE_TELEMETRY";
const PIECE = 2 ** 20; // bytes that are read at once

// ONNX Runtime reads this variable of the process when it is loaded; a worker's `process.env` is a copy.
if (isMainThread) process.env[TELEMETRY] ??= "1";

setPlatform({
  importOrt: async () => {
    if (process.env[TELEMETRY] === undefined) {
      throw new ProviderError(
        `ONNX Runtime sends data to its maker unless ${TELEMETRY} is set, which a worker cannot do.`,
        "Import xlruntime in the main thread, too, before the worker starts; or set the variable there.",
      );
    }
    const ort = await importModule<Ort>("onnxruntime-node", () => import("onnxruntime-node"));
    if (process.arch === "arm64" && ort.env.versions?.node === "1.27.0") {
      throw new ProviderError(
        "ONNX Runtime is 1.27.0, which computes wrong products on ARM processors (microsoft/onnxruntime#31569).",
        "Install another version of onnxruntime-node.",
      );
    }
    return ort;
  },
  providers: { cpu: "cpu" },
  memory: totalmem(),
  parallel: true,
  readable: asBits,
});
setFolders((path) => new FolderSource(path));

/** Open a bundle, as `load` of `model.ts` does, and compare its known answers if `check` is `once`. */
export async function load(place: BundlePlace, { check = "off", ...options }: LoadOptions = {}): Promise<Model> {
  if (check !== "off" && check !== "once") throw new OptionError(`check is ${shown(check)}, expected off or once.`);
  const model = await loadModel(place, options);
  if (check === "once") await checkOnce(model);
  return model;
}

/** The files of a folder. */
export class FolderSource implements Source {
  readonly where: string;
  readonly keep = false;

  constructor(path: string) {
    this.where = path;
  }

  async read(name: string, most: number, progress?: (bytes: number) => void): Promise<Uint8Array<ArrayBuffer> | null> {
    const path = join(this.where, name);
    const isFolder = (await stat(this.where).catch(() => null))?.isDirectory();
    if (!isFolder) {
      throw new BundleNotFoundError(
        `${this.where}: ${isFolder === undefined ? "no such folder" : "a file, expected a bundle folder"}.`,
        "Make a bundle with `xlexport convert CHECKPOINT`.",
      );
    }
    if (!(await stat(path).catch(() => null))?.isFile()) return null;
    // In the hub's cache, the files of `snapshots/REVISION/` are links into the folder `blobs` of the same model.
    const folder = await realpath(this.where);
    const snapshots = dirname(folder);
    const folders = basename(snapshots) === "snapshots" ? [folder, join(dirname(snapshots), "blobs")] : [folder];
    if (!folders.includes(dirname(await realpath(path)))) {
      throw new BundleDamagedError(`${path}: a link that leads out of the bundle's folder.`, "Copy the file there.");
    }
    const file = await open(path, "r");
    try {
      const parts: Uint8Array[] = [];
      for (let size = 0; size <= most;) {
        const { bytesRead, buffer } = await file.read(new Uint8Array(Math.min(PIECE, most + 1 - size)));
        if (!bytesRead) break;
        parts.push(buffer.subarray(0, bytesRead));
        size += bytesRead;
        progress?.(bytesRead);
      }
      return joined(parts);
    } finally {
      await file.close();
    }
  }
}

/**
 * Return a tensor whose float16 are 16 bits each. `onnxruntime-node` 1.30 reads only those, but where JavaScript has
 * Float16Array, as in Node 24, `Tensor` holds that.
 */
function asBits(tensor: OrtTensor): OrtTensor {
  const { data } = tensor as { data: Float32Array };
  if (tensor.type !== "float16" || data instanceof Uint16Array) return tensor;
  const value = new Uint16Array(data.buffer, data.byteOffset, data.length);
  return Object.create(tensor, { data: { value } }) as OrtTensor;
}

export * from "./index.js";
