// Run a conformance kit in Node or in a browser: node conformance/run.mjs KIT [--browser chromium|firefox [--device webgpu]] ...
import { mkdirSync, readdirSync, readFileSync, writeFileSync, existsSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    within: { type: "string" }, // allowed difference in nats
    only: { type: "string", default: "" }, // run the cases with this text in their names
    not: { type: "string", multiple: true, default: [] }, // leave out the cases with this text in their names
    states: { type: "string" }, // a folder with states that another runtime has saved
    keep: { type: "string" }, // write saved states here, for another runtime
    browser: { type: "string" }, // chromium or firefox, else Node
    device: { type: "string", default: "cpu" },
  },
});
const [kit] = positionals;
function refuse(message) {
  console.error(message);
  process.exit(2);
}
if (kit === undefined) {
  refuse(
    "node conformance/run.mjs KIT [--browser chromium|firefox [--device webgpu]] [--only TEXT] [--not TEXT] " +
      "[--within NATS] [--states FOLDER] [--keep FOLDER]",
  );
}
if (!existsSync(join(kit, "kit.json"))) refuse(`${kit} has no kit.json`);
if (values.keep) mkdirSync(values.keep, { recursive: true });
const read = (path) => new Uint8Array(readFileSync(path));
const files = {
  list: async (folder) => readdirSync(join(kit, folder)),
  read: async (path) => read(join(kit, path)),
  state: async (name) => {
    const path = values.states && join(values.states, `${name}.safetensors`);
    return path && existsSync(path) ? read(path) : null;
  },
};
const keep = values.keep && ((name, raw) => writeFileSync(join(values.keep, `${name}.safetensors`), raw));
const { cases } = JSON.parse(readFileSync(join(kit, "kit.json"), "utf8"));
const names = cases.filter((name) => name.includes(values.only) && !values.not.some((text) => name.includes(text)));

const { openRunner } = await import(values.browser ? "./pages.mjs" : "./node.mjs");
const runner = await openRunner({ ...values, files, kit, keep }).catch((error) => refuse(error.message));
const within = Number(values.within ?? runner.within);
const withinBits = values.device === "webgpu" ? 1e-3 : within; // bits per token, of documents
let [failed, largestBits] = [0, 0];
const largest = { exact: 0, low: 0 };
const leftOut = new Set();
const shown = (number) => number.toExponential(1).replace(/e([+-])(\d)$/, "e$10$2"); // as Python writes it
for (const name of names) {
  const found = await runner.run(name, within, withinBits);
  failed += Number(found.problems.length > 0);
  const precision = found.lowPrecision ? "low" : "exact";
  largest[precision] = Math.max(largest[precision], found.largest);
  if (!found.lowPrecision) largestBits = Math.max(largestBits, found.largestBits);
  for (const one of found.leftOut) leftOut.add(one);
  console.log(`${found.problems.length ? "failed" : "passed"}  ${name}  ${shown(found.largest)}`);
  for (const problem of found.problems) console.log(`    ${problem}`);
}
await runner.close();
if (leftOut.size) console.log(`not given: ${[...leftOut].join(", ")}`);
console.log(`runtime: ${runner.runtime}`);
console.log(`largest difference of a document: ${shown(largestBits)} bits per token`);
console.log(
  `${names.length - failed} of ${names.length} cases passed; largest difference ${shown(largest.exact)}, ` +
    `with low precision ${shown(largest.low)}`,
);
process.exit(failed || !names.length ? 1 : 0);
