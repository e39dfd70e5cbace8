// One side of a comparison: reads pieces of token ids from stdin, a line of JSON each, and answers with their scores.
// The line "memory" is answered with the megabytes that are in use after a collection of garbage.
//
// node javascript_side.mjs '{"kind": "node", "model": BUNDLE, "threads": 1, "settings": {}, "library": null}'
// Kinds are node, wasm and webgpu (the package, in Node or in Chromium), gpt2_node and gpt2_wasm (transformers.js).
import { createInterface } from "node:readline";
import { setTimeout } from "node:timers/promises";
import { pathToFileURL } from "node:url";

import { FOLDERS, openBrowser, page as pageWith } from "../runtime/js/conformance/browser.mjs";
import { serve } from "../runtime/js/conformance/server.mjs";

const options = JSON.parse(process.argv[2]);
const side = options.kind.endsWith("node") ? await here(options) : await inChromium(options);
console.log(JSON.stringify({ load_seconds: side.seconds }));
for await (const line of createInterface({ input: process.stdin })) {
  const ids = JSON.parse(line);
  console.log(JSON.stringify(await (ids === "memory" ? side.memory() : side.feed(ids))));
}
await side.close();

/** Open a side in this process. */
async function here({ kind, model, threads, settings, library }) {
  const module = await import("./javascript_feeds.mjs");
  const path = library && pathToFileURL(`${library}/node_modules/@huggingface/transformers/dist/transformers.node.mjs`);
  const imported = await import(kind === "node" ? "../runtime/js/dist/node.js" : path.href);
  const started = performance.now();
  const feed = await module[kind === "node" ? "streamOf" : "decoderOf"](imported, { model, threads, settings });
  const memory = async () => {
    for (let round = 0; round < 2; round++) {
      globalThis.gc(); // node --expose-gc
      await setTimeout(50); // other threads free the arrays
    }
    const { heapUsed, external } = process.memoryUsage();
    return (heapUsed + external) / 1e6;
  };
  return { seconds: (performance.now() - started) / 1000, feed, memory, close: async () => undefined };
}

/** Open a side in a page of its own browser. */
async function inChromium({ kind, model, threads, settings, library }) {
  const module = new URL(".", import.meta.url).pathname;
  const folders = { ...FOLDERS, model, benchmarks: module, library: `${library}/node_modules` };
  const server = await serve(folders, { "/": pageWith() });
  const browser = await openBrowser(kind === "webgpu", ["--enable-blink-features=ForceEagerMeasureMemory"]);
  const page = await browser.newPage();
  page.on("console", (message) => console.error(message.text()));
  await page.goto(server.address);
  const seconds = await page.evaluate(
    async ({ kind, threads, settings }) => {
      const { streamOf, decoderOf } = await import("/benchmarks/javascript_feeds.mjs");
      const library = "/library/@huggingface/transformers/dist/transformers.min.js";
      const imported = await import(kind === "gpt2_wasm" ? library : "xlruntime");
      const started = performance.now();
      const options = { model: "model", threads, settings, device: kind === "webgpu" ? kind : "cpu" };
      globalThis.feed = await (kind === "gpt2_wasm" ? decoderOf : streamOf)(imported, options);
      return (performance.now() - started) / 1000;
    },
    { kind, threads, settings },
  );
  const feed = (ids) => page.evaluate((ids) => globalThis.feed(ids), ids);
  const memory = () => page.evaluate(async () => (await performance.measureUserAgentSpecificMemory()).bytes / 1e6);
  const close = async () => {
    await browser.close();
    await server.close();
  };
  return { seconds, feed, memory, close };
}
