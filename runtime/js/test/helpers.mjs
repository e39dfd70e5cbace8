// What several tests need: golden bundles, and errors that must occur.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { load } from "xlruntime";

export const GOLDEN = fileURLToPath(new URL("../../../tests/golden", import.meta.url));
export const BYTES = "post_lnorm_same_length_empty";
export const BAND = "reformer_band";

/** Return the folder of a golden bundle. */
export function golden(name) {
  return join(GOLDEN, name, "bundle");
}

/** Open a golden bundle. */
export function open(name, options = {}) {
  return load(golden(name), { threads: 1, ...options });
}

/** Return the files of a golden bundle by name. */
export function filesOf(name) {
  return new Map(
    readdirSync(golden(name)).map((file) => [file, new Uint8Array(readFileSync(join(golden(name), file)))]),
  );
}

/** Return the SHA-256 of bytes. */
function digestOf(content) {
  return createHash("sha256").update(content).digest("hex");
}

/** Set a file of a bundle, or change the manifest by a function, such that all digests are right. */
export function changed(files, name, content) {
  const manifest = JSON.parse(new TextDecoder().decode(files.get("bundle.json")));
  if (name === "bundle.json") content(manifest);
  else {
    files.set(name, content);
    manifest.files[name] = { sha256: digestOf(content), size: content.length };
  }
  const raw = new TextEncoder().encode(JSON.stringify(manifest));
  files.set("bundle.json", raw);
  files.set("bundle.json.sha256", new TextEncoder().encode(`${digestOf(raw)}  bundle.json\n`));
  return files;
}

/** Require that `call` fails with an error of this code, whose text matches. */
export async function refuses(call, code, text) {
  await assert.rejects(call, (error) => {
    assert.equal(error.code, code, error.stack);
    assert.match(error.message, text);
    assert.doesNotMatch(error.message, /[\p{C}\p{Zl}\p{Zp}]/u);
    assert.ok(error.message.length < 2000);
    return true;
  });
}

/** Return all that an async iterable yields. */
export async function all(iterable) {
  const found = [];
  for await (const one of iterable) found.push(one);
  return found;
}
