// Graphs whose weights lie elsewhere are refused, from a folder and from bytes. ONNX Runtime alone would open some.
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";

import ort from "onnxruntime-node";
import { load } from "xlruntime";

import { BYTES, changed, filesOf, refuses } from "./helpers.mjs";

const NAME = "weights.data"; // locations in a graph have its length, so that no other byte of the file changes
const outside = mkdtempSync(join(tmpdir(), "xlruntime-"));
const absolute = `/tmp/x${String(process.pid).padStart(6, "0").slice(-6)}`;
const here = process.cwd();
after(() => {
  process.chdir(here);
  for (const path of [outside, absolute]) rmSync(path, { recursive: true, force: true });
});

const LOCATIONS = { "../": "../secret.da", absolute, link: "a_link__.dat", "a plain name": "secret__.dat" };

/** Return the files of a bundle whose graph reads its weights from a location, and the weights. */
function pointing(location) {
  const files = filesOf(BYTES);
  const graph = Buffer.from(files.get("score.onnx"));
  let count = 0;
  for (let at = graph.indexOf(NAME); at >= 0; at = graph.indexOf(NAME, at + 1)) {
    graph.write(location, at);
    count += 1;
  }
  assert.ok(count > 0 && location.length === NAME.length);
  return [changed(files, "score.onnx", new Uint8Array(graph)), files.get(NAME)];
}

for (const [kind, location] of Object.entries(LOCATIONS)) {
  for (const isListed of kind === "a plain name" ? [false] : [false, true]) {
    for (const how of ["a folder", "bytes"]) {
      test(`weights by ${kind}, ${isListed ? "listed" : "not listed"}, from ${how}`, async () => {
        const folder = mkdtempSync(join(outside, "case-")) + "/bundle";
        mkdirSync(folder, { recursive: true });
        const [files, weights] = pointing(location);
        const plain = LOCATIONS["a plain name"];
        for (const path of [join(folder, "../secret.da"), join(folder, plain), absolute]) writeFileSync(path, weights);
        symlinkSync("../secret.da", join(folder, LOCATIONS.link));
        if (isListed) {
          changed(files, "bundle.json", (manifest) => (manifest.files[location] = manifest.files[NAME]));
        }
        for (const [name, content] of files) writeFileSync(join(folder, name), content);
        process.chdir(folder); // so ONNX Runtime would find the file
        if (location === plain) await ort.InferenceSession.create(files.get("score.onnx")); // reads what nobody listed
        const expected = !isListed ? "bundle_graph" : kind === "link" ? "bundle_damaged" : "bundle_format";
        await refuses(() => load(how === "bytes" ? files : folder), expected, /./);
      });
    }
  }
}
