// Bundle the package for a browser, minified and without ONNX Runtime, and print its size. Fails above 54 kB.
//
// A page loads the first file. The others are loaded when a bundle needs them.
import { build } from "esbuild";
import { basename } from "node:path";

const MOST = 54_000;

const { outputFiles, metafile } = await build({
  entryPoints: [new URL("../dist/browser.js", import.meta.url).pathname],
  bundle: true,
  minify: true,
  splitting: true,
  metafile: true,
  format: "esm",
  write: false,
  outdir: "bundled",
  external: ["onnxruntime-web", "onnxruntime-web/*"],
});
const sizes = new Map(outputFiles.map(({ path, contents }) => [basename(path), contents.length]));
const first = new Set(["browser.js"]);
for (const [path, { imports }] of Object.entries(metafile.outputs)) {
  if (!first.has(basename(path))) continue;
  for (const { path: inner, kind } of imports) if (kind === "import-statement") first.add(basename(inner));
}
let together = 0;
for (const [name, size] of sizes) {
  if (first.has(name)) together += size;
  console.log(`${name}: ${size} bytes minified${first.has(name) ? "" : ", loaded when it is needed"}`);
}
console.log(`a page loads ${together} bytes, at most ${MOST}`);
process.exitCode = together > MOST ? 1 : 0;
