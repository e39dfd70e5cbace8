/** Compare known answers once on each machine, and remember that it has reproduced them. In Node alone. */

import { createHash } from "node:crypto";
import { access, constants, mkdir, readFile, stat, writeFile } from "node:fs/promises";
import { cpus, devNull, homedir, release } from "node:os";
import { isAbsolute, join } from "node:path";

import { BundleGraphError } from "./errors.js";
import { FILE } from "./known_answers.js";
import type { Model } from "./model.js";

const UNREMEMBERED = 0.2; // seconds that a check may take each time
const CPU_FIELDS = ["model name", "flags", "CPU part", "Features"]; // x86, ARM

/**
 * Compare the known answers of an open bundle, unless this machine has reproduced them before.
 *
 * @throws BundleGraphError - it computes something else.
 */
export async function checkOnce(model: Model): Promise<void> {
  if (!(FILE in model.bundle.files)) return;
  const folder = checksFolder();
  const verdict = join(folder, await verdictName(model));
  if ((await stat(verdict).catch(() => null))?.isFile()) return;
  await mkdir(folder, { recursive: true, mode: 0o700 }).catch(() => null);
  const isWritable = await access(folder, constants.W_OK).then(
    () => true,
    () => false,
  );
  const { passed, certain, problem } = await model.check(isWritable ? Infinity : UNREMEMBERED);
  if (!passed && certain) {
    throw new BundleGraphError(
      `${model.where}: ${problem}; so ONNX Runtime computes something else here than where it was converted.`,
      "Install another version of ONNX Runtime, or convert the checkpoint again.",
    );
  }
  await writeFile(verdict, "", { mode: 0o600 }).catch(() => null); // a cache may be missing or full
  if (!passed) model.warn(`${model.where}: ${problem}; here this may be rounding alone.`); // once, too
}

/** Return the digest of all that may change the numbers. */
async function verdictName(model: Model): Promise<string> {
  const own = await readFile(new URL("../package.json", import.meta.url), "utf8").catch(() => "");
  const parts = [model.digest, await processor(), release(), "node", own, model.onnxruntime];
  return createHash("sha256").update(parts.join("\n")).digest("hex");
}

/** Return the folder of the verdicts, which is Python's; without a home, one that nobody can make. */
function checksFolder(): string {
  const cache = process.env["XDG_CACHE_HOME"] || join(homedir(), ".cache");
  return join(isAbsolute(cache) ? cache : devNull, "xlexport", "checks");
}

/** Return the name of the processor, and on Linux the instructions that it has. */
async function processor(): Promise<string> {
  const lines = (await readFile("/proc/cpuinfo", "utf8").catch(() => "")).split("\n");
  const found = CPU_FIELDS.map((name) => lines.find((line) => line.split(":", 1)[0]?.trim() === name) ?? "");
  return [process.arch, cpus()[0]?.model, ...found].join(" ");
}
