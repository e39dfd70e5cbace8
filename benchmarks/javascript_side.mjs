// One side of a comparison: reads pieces of token ids from stdin, a line of JSON each, and answers with their scores.
// The line "memory" is answered with the megabytes that are in use after a collection of garbage.
//
// node javascript_side.mjs '{"kind": "node", "model": BUNDLE, "threads": 1, "settings": {}}'
// Kinds are node, wasm and webgpu: the package in Node or in Chromium.
import { createInterface } from "node:readline";
import { setTimeout } from "node:timers/promises";

import { FOLDERS, openBrowser, page as pageWith } from "../runtime/js/conformance/browser.mjs";
import { serve } from "../runtime/js/conformance/server.mjs";

const options = JSON.parse(process.argv[2]);
const side = options.kind === "node" ? await here(options) : await inChromium(options);
console.log(JSON.stringify({ load_seconds: side.seconds }));
for await (const line of createInterface({ input: process.stdin })) {
  const ids = JSON.parse(line);
  console.log(JSON.stringify(await (ids === "memory" ? side.memory() : side.feed(ids))));
}
await side.close();

/** Open a side in this process. */
async function here(options) {
  const { streamOf } = await import("./javascript_feeds.mjs");
  const xlruntime = await import("../runtime/js/dist/node.js");
  const started = performance.now();
  const feed = await streamOf(xlruntime, options);
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
async function inChromium({ kind, model, threads, settings }) {
  const server = await serve(
    { ...FOLDERS, model, benchmarks: new URL(".", import.meta.url).pathname },
    { "/": pageWith() },
  );
  const browser = await openBrowser(kind === "webgpu", ["--enable-blink-features=ForceEagerMeasureMemory"]);
  const page = await browser.newPage();
  page.on("console", (message) => console.error(message.text()));
  await page.goto(server.address);
  const seconds = await page.evaluate(
    async (options) => {
      const { streamOf } = await import("/benchmarks/javascript_feeds.mjs");
      const xlruntime = await import("xlruntime");
      const started = performance.now();
      globalThis.feed = await streamOf(xlruntime, options);
      return (performance.now() - started) / 1000;
    },
    { model: "model", threads, settings, device: kind === "webgpu" ? kind : "cpu" },
  );
  const feed = (ids) => page.evaluate((ids) => globalThis.feed(ids), ids);
  const memory = () => page.evaluate(async () => (await performance.measureUserAgentSpecificMemory()).bytes / 1e6);
  const close = async () => {
    await browser.close();
    await server.close();
  };
  return { seconds, feed, memory, close };
}
