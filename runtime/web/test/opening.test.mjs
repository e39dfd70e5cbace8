// Bundles open from folders, files and addresses; what is damaged, missing or lost is a typed error.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createServer } from "node:http";
import { cpSync, mkdtempSync, renameSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import * as xlruntime from "xlruntime";
import { FilesSource, load, Sampling } from "xlruntime";

import { all, BYTES, filesOf, GOLDEN, golden, open, refuses } from "./helpers.mjs";

const TEXT = "A short text of some words.";

async function scoreOf(model) {
  return (await all(model.score([TEXT])))[0].nats;
}

/** Serve files, and answer what `answer` says instead for some names: a status, or a cut connection. */
async function served(files, answer = {}) {
  const server = createServer((request, response) => {
    const name = decodeURIComponent(request.url.split("/").at(-1));
    const content = files.get(name);
    if (typeof answer[name] === "number") response.writeHead(answer[name]).end();
    else if (answer[name] === "cut") {
      response.writeHead(200, { "Content-Length": content.length });
      response.write(content.slice(0, content.length / 2), () => response.destroy());
    } else if (content === undefined) response.writeHead(404).end();
    else response.writeHead(200).end(content);
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return { address: `http://127.0.0.1:${server.address().port}/bundle`, close: () => server.close() };
}

test("the same bundle from a folder, from files and from an address", async () => {
  const nats = await scoreOf(await open(BYTES));
  const files = filesOf(BYTES);
  const list = [...files].map(([name, content]) => new File([content], name));
  const server = await served(files);
  const seen = [];
  for (const place of [
    files,
    list,
    new FilesSource(files),
    server.address,
    `${server.address}/`,
    new URL(server.address),
  ]) {
    assert.equal(await scoreOf(await load(place, { onProgress: (one) => seen.push(one) })), nats);
  }
  server.close();
  const { loaded, total } = seen.at(-1);
  assert.equal(loaded, total);
  assert.ok(seen.length > 12 && seen.every((one) => one.loaded <= one.total));
});

test("what is not there is a BundleNotFoundError", async () => {
  await refuses(() => load("nowhere"), "BundleNotFoundError", /^nowhere: no such folder\. Make a bundle/);
  await refuses(
    () => load(join(golden(BYTES), "bundle.json")),
    "BundleNotFoundError",
    /a file, expected a bundle folder/,
  );
  await refuses(() => load(new Map()), "BundleNotFoundError", /no bundle\.json in it, so not a bundle/);
});

test("a file behind a link that leads out of the folder is refused", async () => {
  const outside = mkdtempSync(join(tmpdir(), "xlruntime-"));
  const folder = join(outside, "bundle");
  cpSync(golden(BYTES), folder, { recursive: true });
  symlinkSync(folder, join(outside, "link"));
  await load(join(outside, "link"));
  renameSync(join(folder, "weights.data"), join(folder, "moved.data"));
  symlinkSync("moved.data", join(folder, "weights.data"));
  await load(folder);
  renameSync(join(folder, "moved.data"), join(outside, "moved.data"));
  symlinkSync("../moved.data", join(folder, "moved.data"));
  await refuses(load(folder), "BundleError", /weights\.data: a link that leads out of the bundle's folder\. Copy/);
});

test("a server that fails in the middle is a BundleError, and nothing is half open", async () => {
  const files = filesOf(BYTES);
  for (const [answer, text] of [
    [{ "weights.data": 404 }, /weights\.data is missing/],
    [{ "weights.data": 500 }, /weights\.data: the server answered 500\. Load it again/],
    [{ "weights.data": "cut" }, /weights\.data: could not be loaded \(.*\)\. Check the connection/],
    [{ "bundle.json": "cut" }, /bundle\.json: could not be loaded/],
  ]) {
    const server = await served(files, answer);
    await refuses(() => load(server.address), "BundleError", text);
    server.close();
  }
  await refuses(() => load("http://127.0.0.1:9/bundle"), "BundleError", /could not be loaded/);
});

test("a longer file is refused without reading all of it", async () => {
  const files = filesOf(BYTES);
  files.set("score.onnx", new Uint8Array(50_000_000));
  await refuses(() => load(files), "BundleError", /score\.onnx has more than \d+ bytes/);
});

test("a bundle without checks is still gated", async () => {
  const files = filesOf(BYTES);
  files.set("score.onnx", files.get("detail.onnx"));
  await refuses(() => load(files), "BundleError", /score\.onnx (has|was)/);
  await refuses(() => load(files, { checkFiles: false }), "BundleError", /its metadata differs from the manifest/);
});

test("devices and threads", async () => {
  await refuses(
    () => load(golden(BYTES), { device: "webgpu" }),
    "ProviderError",
    /no device webgpu here; there is cpu/,
  );
  await refuses(() => load(golden(BYTES), { threads: 0 }), "OptionError", /threads is 0, at least 1 is needed/);
});

test("one document where a list is expected", async () => {
  const model = await open(BYTES);
  for (const given of [TEXT, new TextEncoder().encode(TEXT), new Blob([TEXT]), { name: "it", source: TEXT }, 7, null]) {
    await refuses(() => all(model.score(given)), "ArgumentError", /expected a list of documents/);
  }
  await refuses(() => all(model.score([1, 2, 3])), "ArgumentError", /document 0 is the number 1/);
});

test("documents of every kind have the same score", async () => {
  const model = await open(BYTES);
  const bytes = new TextEncoder().encode(TEXT);
  async function* slowly() {
    for (const byte of bytes) yield Uint8Array.of(byte);
  }
  const documents = [
    TEXT,
    bytes,
    new Blob([TEXT]),
    new Blob([TEXT]).stream(),
    slowly(),
    [...bytes],
    Int32Array.from(bytes),
  ];
  const scores = await all(model.score([...documents, { name: "named", source: TEXT }]));
  assert.equal(new Set(scores.map((score) => score.nats)).size, 1);
  assert.equal(scores.at(-1).document, "named");
  assert.equal(scores[0].bitsPerByte, scores[0].bits / (bytes.length - 1));
  assert.equal(scores[5].bytes, 0);
});

test("a model opens its graphs again after release", async () => {
  const model = await open(BYTES);
  const nats = await scoreOf(model);
  await model.release();
  assert.equal(await scoreOf(model), nats);
});

test("sampling out of range lists all problems", () => {
  assert.throws(() => new Sampling({ temperature: -1, topK: 0, topP: 2, seed: -1 }), {
    name: "OptionError",
    message:
      "sampling: temperature is -1, at least 0 is needed; top_k is 0, at least 1 is needed; " +
      "top_p is 2, expected more than 0 and at most 1; seed is -1, at least 0 is needed.",
  });
});

test("every class of errors has its own name", () => {
  const classes = Object.entries(xlruntime).filter(([name]) => name.endsWith("Error"));
  assert.equal(classes.length, 10);
  for (const [name, Class] of classes) {
    const error = new Class("it is wrong.", "Do nothing.");
    assert.deepEqual([error.name, error.problem, error.repair], [name, "it is wrong.", "Do nothing."]);
    assert.ok(error instanceof xlruntime.XlruntimeError);
  }
});

test("a page loads at most 60 kB of the package", () => {
  execFileSync("node", [fileURLToPath(new URL("../scripts/size.mjs", import.meta.url))]);
});

test("the package names its peer that is missing", async () => {
  const folder = mkdtempSync(join(tmpdir(), "xlruntime-"));
  const script = `
    import { load } from ${JSON.stringify(new URL("../dist/index.js", import.meta.url).href)};
    import { setPlatform, importModule } from ${JSON.stringify(new URL("../dist/onnxruntime.js", import.meta.url).href)};
    setPlatform({
      importOrt: () => importModule("onnxruntime-node", () => Promise.reject(new Error("not found"))),
      providers: { cpu: "cpu" },
      parallel: true,
    });
    const files = new Map();
    for (const name of (await import("node:fs")).readdirSync(${JSON.stringify(golden(BYTES))})) {
      files.set(name, new Uint8Array((await import("node:fs")).readFileSync(${JSON.stringify(golden(BYTES))} + "/" + name)));
    }
    await load(files).catch((error) => console.log(error.name + ": " + error.message));
  `;
  writeFileSync(join(folder, "it.mjs"), script);
  const said = execFileSync("node", [join(folder, "it.mjs")], { encoding: "utf8" });
  assert.equal(
    said,
    "ProviderError: onnxruntime-node cannot be loaded (not found). Install it: npm install onnxruntime-node\n",
  );
});

test("a bundle of an encoder-decoder is refused with the program that runs it", async () => {
  const folder = join(GOLDEN, "encoder_decoder", "translator");
  await refuses(load(folder), "BundleError", /an encoder-decoder, .*xlruntime\.load_translator/);
});
