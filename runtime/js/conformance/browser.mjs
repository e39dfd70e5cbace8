// Find browsers, which are not downloaded: CHROMIUM and FIREFOX name them, or they are the system's.
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

import { chromium } from "playwright-core";

const PLACES = {
  chromium: [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"],
  firefox: [process.env.FIREFOX, "/usr/bin/firefox", "/usr/bin/firefox-esr"],
};

/** Arguments for Chromium with which WebGPU runs in software. */
export const SOFTWARE_GPU = [
  "--enable-unsafe-webgpu",
  "--enable-features=Vulkan",
  "--use-webgpu-adapter=swiftshader",
  "--use-vulkan=swiftshader",
  "--ignore-gpu-blocklist",
  "--disable-gpu-watchdog", // in software a step takes long
];

/** The folders that a page needs: the package, and its peers. */
export const FOLDERS = {
  dist: fileURLToPath(new URL("../dist", import.meta.url)),
  conformance: fileURLToPath(new URL(".", import.meta.url)),
  ort: fileURLToPath(new URL("../node_modules/onnxruntime-web/dist", import.meta.url)),
  tokenizers: fileURLToPath(new URL("../node_modules/@huggingface/tokenizers/dist", import.meta.url)),
  sentencepiece: fileURLToPath(new URL("../node_modules/@sctg/sentencepiece-js/dist", import.meta.url)),
};

const BUFFER = "export const Buffer = { from: (text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0)) };";
const IMPORTS = {
  xlruntime: "/dist/browser.js",
  "onnxruntime-web/wasm": "/ort/ort.wasm.min.mjs",
  "onnxruntime-web/webgpu": "/ort/ort.webgpu.min.mjs",
  "@huggingface/tokenizers": "/tokenizers/tokenizers.min.mjs",
  "@sctg/sentencepiece-js": "/sentencepiece/index.js",
  // This library imports two modules of Node. Bundlers replace them; it needs only the base64 of one.
  fs: "data:text/javascript,export default {}",
  buffer: `data:text/javascript,${encodeURIComponent(BUFFER)}`,
};

/** Return a page that can import the package by its name. */
export function page(body = "") {
  const imports = JSON.stringify({ imports: IMPORTS });
  return `<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><script type="importmap">${imports}</script>${body}`;
}

/** Return the path of `chromium` or of `firefox`, or null if there is none. */
export function findBrowser(name) {
  return PLACES[name]?.find((place) => place && existsSync(place)) ?? null;
}

/** Open Chromium without a window; with `gpu`, WebGPU runs in software. `more` has further arguments of it. */
export async function openBrowser(gpu = false, more = []) {
  const executablePath = findBrowser("chromium");
  if (executablePath === null) throw new Error("no Chromium; CHROMIUM can name one");
  const args = ["--no-sandbox", ...(gpu ? SOFTWARE_GPU : []), ...more];
  return chromium.launch({ executablePath, args });
}
