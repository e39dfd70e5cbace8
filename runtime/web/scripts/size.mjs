// Bundle the package for a browser, minified and without ONNX Runtime, and print its size. Fails above 60 kB.
import { build } from "esbuild";

const MOST = 60_000;

/** Return the minified bundle of the browser's entry; optional peers stay outside. */
export async function bundled() {
  const { outputFiles } = await build({
    entryPoints: [new URL("../dist/browser.js", import.meta.url).pathname],
    bundle: true,
    minify: true,
    format: "esm",
    write: false,
    external: ["onnxruntime-web", "onnxruntime-web/*"],
  });
  return outputFiles[0].contents;
}

const { length } = await bundled();
console.log(`${length} bytes minified, at most ${MOST}`);
process.exitCode = length > MOST ? 1 : 0;
