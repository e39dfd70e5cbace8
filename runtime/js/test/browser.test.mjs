// The package in headless Chromium: in the page, in a worker, with a lost connection, and after the network is off.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { build } from "esbuild";
import { fileURLToPath } from "node:url";

import { findBrowser, FOLDERS, openBrowser, page as pageWith } from "../conformance/browser.mjs";
import { serve } from "../conformance/server.mjs";
import { all, BYTES, golden, open } from "./helpers.mjs";

const TEXT = "A short text of some words.";
const skip = findBrowser("chromium") ? false : "no Chromium here; CHROMIUM can name one";
const WORKER = `
  import * as onnxruntime from "onnxruntime-web/wasm";
  import { load } from "xlruntime";
  onnxruntime.env.wasm.wasmPaths = location.origin + "/ort/"; // a bundler moves the module, but not these files
  self.onmessage = async ({ data }) => {
    try {
      const model = await load(location.origin + "/bundle", { threads: data.threads, onnxruntime });
      const stream = await model.stream();
      const { logProbs } = await stream.feed(data.text);
      self.postMessage({ logProbs: Array.from(logProbs), state: Array.from(await stream.save()) });
    } catch (error) {
      self.postMessage({ error: String(error) });
    }
  };
`;
let [server, browser, page, expected] = [];
const messages = [];

before(async () => {
  if (skip) return;
  expected = (await (await (await open(BYTES)).stream()).feed(TEXT)).logProbs;
  server = await serve({ ...FOLDERS, bundle: golden(BYTES), built: await built() }, { "/": pageWith() });
  browser = await openBrowser();
  page = await browser.newPage();
  page.on("console", (message) => messages.push(message.text()));
  page.on("pageerror", (error) => messages.push(error.message));
  await page.goto(server.address);
});

after(async () => {
  await browser?.close();
  await server?.close();
});

/** Bundle a worker, as an application would, and return its folder. */
async function built() {
  const outdir = fileURLToPath(new URL("../node_modules/.cache/worker", import.meta.url));
  const resolveDir = fileURLToPath(new URL("..", import.meta.url));
  await build({
    stdin: { contents: WORKER, resolveDir, sourcefile: "worker.js" },
    bundle: true,
    format: "esm",
    splitting: true,
    outdir,
    alias: { xlruntime: fileURLToPath(new URL("../dist/browser.js", import.meta.url)) },
    logLevel: "error",
  });
  return outdir;
}

function close(found) {
  assert.equal(found.length, expected.length);
  found.forEach((value, at) => assert.ok(Math.abs(value - expected[at]) < 5e-5));
}

test("a page loads a bundle from its address, and shows progress", { skip }, async () => {
  const found = await page.evaluate(async (text) => {
    const { load } = await import("xlruntime");
    const seen = [];
    const model = await load("bundle", { onProgress: ({ loaded, total }) => seen.push(loaded / total) });
    const stream = await model.stream();
    const { logProbs } = await stream.feed(text);
    return { logProbs: Array.from(logProbs), seen };
  }, TEXT);
  close(found.logProbs);
  assert.equal(found.seen.at(-1), 1);
  assert.ok(found.seen.every((part, at) => at === 0 || part >= found.seen[at - 1]));
});

test("no file that is not listed is asked for", { skip }, async () => {
  const names = new Set(
    server.asked.filter((path) => path.startsWith("/bundle/")).map((path) => path.split("/").at(-1)),
  );
  assert.deepEqual([...names].sort(), [
    "bundle.json",
    "bundle.json.sha256",
    "detail.onnx",
    "generate.onnx",
    "positions.onnx",
    "score.onnx",
    "weights.data",
  ]);
});

test("a stream and its state go on in a worker, with one thread and with two", { skip }, async () => {
  for (const threads of [1, 2]) {
    const found = await page.evaluate(
      async ({ text, threads }) => {
        const worker = new Worker("/built/stdin.js", { type: "module" });
        const answer = await new Promise((resolve, reject) => {
          worker.onmessage = ({ data }) => resolve(data);
          worker.onerror = (error) => reject(new Error(error.message));
          worker.postMessage({ text, threads });
        });
        worker.terminate();
        return answer;
      },
      { text: TEXT, threads },
    );
    assert.equal(found.error, undefined);
    close(found.logProbs);
    const model = await open(BYTES);
    const [here, there] = [await model.stream(), await model.restore(Uint8Array.from(found.state))];
    await here.feed(TEXT);
    const [a, b] = [await here.feed(TEXT), await there.feed(TEXT)];
    a.logProbs.forEach((value, at) => assert.ok(Math.abs(value - b.logProbs[at]) < 5e-5));
  }
});

test("an open model needs no network", { skip }, async () => {
  await page.evaluate(async () => {
    const { load } = await import("xlruntime");
    window.model = await load("bundle");
    await (await window.model.stream()).save(); // loads what saves states
    await window.model.generate("a", { maxTokens: 1 }).next(); // and what draws
  });
  await page.context().setOffline(true);
  const found = await page.evaluate(async (text) => {
    const drawn = [];
    for await (const id of window.model.generate(text, { maxTokens: 4, sampling: { temperature: 0 } })) drawn.push(id);
    const state = await (await window.model.stream()).save();
    const lost = await import("xlruntime").then(({ load }) =>
      load("bundle").catch((error) => [error.name, error.message]),
    );
    return { drawn, size: state.length, lost };
  }, TEXT);
  await page.context().setOffline(false);
  assert.deepEqual(
    found.drawn,
    await all((await open(BYTES)).generate(TEXT, { maxTokens: 4, sampling: { temperature: 0 } })),
  );
  assert.ok(found.size > 1000);
  assert.equal(found.lost[0], "FileError");
  assert.match(found.lost[1], /^bundle\/bundle\.json: could not be loaded/);
});

test("a missing device, and a folder without a bundle", { skip }, async () => {
  const found = await page.evaluate(async () => {
    const { load } = await import("xlruntime");
    const caught = (call) =>
      call.then(
        () => null,
        (error) => `${error.name}: ${error.message}`,
      );
    return [await caught(load("bundle", { device: "webgpu" })), await caught(load("dist"))];
  });
  assert.match(
    found[0],
    /^ProviderError: this browser has no adapter for WebGPU\. Choose the device cpu, or another browser\./,
  );
  assert.match(found[1], /^BundleNotFoundError: dist: no bundle\.json in it, so not a bundle/);
});

test("the console stays empty, except for what the browser says of lost requests", { skip }, () => {
  assert.deepEqual(
    messages.filter((text) => !/^Failed to load resource|^No available adapters/.test(text)),
    [],
  );
});
