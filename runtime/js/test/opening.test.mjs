// Bundles open from folders, files and addresses; what is damaged, missing or lost is a typed error.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createServer } from "node:http";
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, renameSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import * as xlruntime from "xlruntime";
import { FilesSource, load, Sampling } from "xlruntime";

import { draw } from "../dist/sampling.js";
import { importModule } from "../dist/onnxruntime.js";
import { all, BAND, BYTES, changed, filesOf, GOLDEN, golden, open, refuses } from "./helpers.mjs";

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

test("errors are one bounded line", async () => {
  const hostile = "\u001b[2J\r\n\u009b\u2028\u202e\u2066\u200b\ufeff\ud800".repeat(4000) + "\u{1f642}".repeat(4000);
  for (const field of ["ring", "setting", hostile]) {
    const change = ({ graphs }) => (graphs.score.inputs.tokens[field] = hostile);
    await refuses(load(changed(filesOf("two_rings"), "bundle.json", change)), "bundle_format", /bundle\.json/);
  }
});

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

test("what is not there is no bundle", async () => {
  await refuses(() => load("nowhere"), "bundle_not_found", /^nowhere: no such folder\. Make a bundle/);
  await refuses(() => load(join(golden(BYTES), "bundle.json")), "bundle_not_found", /a file, expected a bundle folder/);
  await refuses(() => load(new Map()), "bundle_not_found", /no bundle\.json in it, so not a bundle/);
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
  await refuses(load(folder), "bundle_damaged", /weights\.data: a link that leads out of the bundle's folder\. Copy/);
});

test("links of the hub's cache lead from a snapshot to the blobs of the same model", async () => {
  const cache = mkdtempSync(join(tmpdir(), "xlruntime-"));
  const [snapshot, blobs] = [join(cache, "snapshots", "0123"), join(cache, "blobs")];
  for (const folder of [snapshot, blobs]) mkdirSync(folder, { recursive: true });
  for (const name of readdirSync(golden(BYTES))) {
    cpSync(join(golden(BYTES), name), join(blobs, `blob-${name}`));
    symlinkSync(`../../blobs/blob-${name}`, join(snapshot, name));
  }
  assert.equal(await scoreOf(await load(snapshot)), await scoreOf(await load(golden(BYTES))));
  rmSync(join(snapshot, "weights.data"));
  renameSync(join(blobs, "blob-weights.data"), join(blobs, "../weights.data"));
  symlinkSync("../../weights.data", join(snapshot, "weights.data"));
  await refuses(load(snapshot), "bundle_damaged", /weights\.data: a link that leads out of the bundle's folder\. Copy/);
});

test("a server that fails in the middle is an error, and nothing is half open", async () => {
  const files = filesOf(BYTES);
  for (const [answer, code, text] of [
    [{ "weights.data": 404 }, "bundle_damaged", /weights\.data is missing/],
    [{ "weights.data": 500 }, "file", /weights\.data: the server answered 500\. Load it again/],
    [{ "weights.data": "cut" }, "file", /weights\.data: could not be loaded \(.*\)\. Check the connection/],
    [{ "bundle.json": "cut" }, "file", /bundle\.json: could not be loaded/],
  ]) {
    const server = await served(files, answer);
    await refuses(() => load(server.address), code, text);
    server.close();
  }
  await refuses(() => load("http://127.0.0.1:9/bundle"), "file", /could not be loaded/);
});

test("a longer file is refused without reading all of it", async () => {
  const files = filesOf(BYTES);
  files.set("score.onnx", new Uint8Array(50_000_000));
  await refuses(() => load(files), "bundle_damaged", /score\.onnx has more than \d+ bytes/);
  files.set("bundle.json", new Uint8Array(2 ** 26 + 1));
  files.delete("bundle.json.sha256");
  await refuses(() => load(files), "bundle_format", /more than 67,108,864 bytes/);
});

test("unknown options are refused, not ignored", async () => {
  const files = filesOf(BYTES);
  await refuses(() => load(files, { Digest: "0" }), "option", /load: no option Digest, expected digest, device/);
  const model = await open(BYTES);
  const sampled = (sampling) => all(model.generate("a", { maxTokens: 1, sampling }));
  await refuses(() => sampled({ top_k: 1 }), "option", /sampling: no option top_k, expected temperature, topK/);
  await refuses(() => sampled("greedy"), "argument", /sampling is "greedy", expected an object/);
  const stream = await model.stream();
  await refuses(() => all(stream.generate("a", { maxTokens: 1, seed: 1 })), "option", /no option seed/);
  await refuses(() => stream.feed("a", { detail: 3 }), "option", /feed: no option detail, expected top/);
  await refuses(() => stream.scoreContinuation("a", { detail: 3 }), "option", /no option detail/);
  const state = await stream.save();
  await refuses(() => model.restore(state, { capacities: 64 }), "option", /no option capacities, expected capacity/);
  await refuses(() => model.restore("state.safetensors"), "argument", /restore takes the content of a file/);
});

test("another graph is not the one of the manifest", async () => {
  const files = filesOf(BYTES);
  const detail = files.get("detail.onnx");
  files.set("generate.onnx", detail);
  await refuses(() => load(files), "bundle_damaged", /generate\.onnx (has|was)/);
  const model = await load(files, { checkFiles: false });
  const other = /generate\.onnx: bundle\.json has other inputs or outputs \(.*logits/;
  await refuses(() => all(model.generate(TEXT, { maxTokens: 1 })), "bundle_graph", other);
});

test("a bundle of the last format is refused with the command that rewrites it", async () => {
  const files = filesOf(BAND).set("bundle.json", readFileSync(join(GOLDEN, BAND, "format4.json")));
  files.delete("bundle.json.sha256");
  await refuses(load(files), "bundle_format", /format 4, expected 5\. Rewrite it: xlexport configure OLD -o NEW$/);
});

test("graphs for accelerators are passed over", async () => {
  const choice = { graph: "other", max_segment: null, kernels: [], device: "accelerator" };
  const files = changed(filesOf(BYTES), "bundle.json", ({ graphs, steps }) => {
    graphs.other = { ...graphs.score, file: "weights.data" }; // not a graph, so it cannot open
    steps.score.unshift(choice);
  });
  assert.equal(await scoreOf(await load(files)), await scoreOf(await open(BYTES)));
});

test("only segment_len and mem_len can be chosen", async () => {
  const model = await open(BYTES);
  for (const settings of [{ clamp_len: 3 }, { restart: true }, { n_hashes: 1 }]) {
    await refuses(() => model.stream(settings), "option", /to choose, expected segment_len or mem_len\. .*configure/);
  }
  await refuses(() => model.stream({ mem_len: 0 }), "option", /mem_len is 0, expected 1 to/);
  await refuses(() => model.stream({ segment_len: 1.5 }), "option", /segment_len is 1\.5/);
  assert.equal((await model.stream({ segment_len: 5, mem_len: null })).evaluation.segmentLen, 5);
  const limited = await open("learned_places");
  assert.equal((await limited.stream({ segment_len: 10 })).evaluation.segmentLen, 9); // its most positions
  await refuses(() => limited.stream({ mem_len: 8 }), "option", /no setting mem_len to choose, expected segment_len/);
});

test("devices and threads", async () => {
  await refuses(() => load(golden(BYTES), { device: "webgpu" }), "provider", /no device webgpu here; there is cpu/);
  await refuses(() => load(golden(BYTES), { threads: 0 }), "option", /threads is 0, at least 1 is needed/);
});

test("one document where a list is expected", async () => {
  const model = await open(BYTES);
  for (const given of [TEXT, new TextEncoder().encode(TEXT), new Blob([TEXT]), { name: "it", source: TEXT }, 7, null]) {
    await refuses(() => all(model.score(given)), "argument", /expected a list of documents/);
  }
  await refuses(() => all(model.score([1, 2, 3])), "argument", /document 0 is the number 1/);
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
      "top_p is 2, expected more than 0 and at most 1; seed is -1, expected 0 to 2^64 - 1 (a bigint beyond 2^53).",
  });
  assert.throws(() => new Sampling({ seed: 2 ** 53 }), { code: "option" });
  assert.equal(new Sampling({ seed: 2n ** 64n - 1n }).seed, 2n ** 64n - 1n);
});

test("a draw is the one of the rules", () => {
  const logits = Float32Array.from([0.1, 0.5, 0.2, 0.2].map(Math.log));
  const positive = logits.map((logit) => logit + 3);
  for (const [options, numbers, tokens, scores = logits, recent = []] of [
    [{}, [0, 0.11, 0.59, 0.61, 0.81, 0.9999], [0, 1, 1, 2, 3, 3]],
    [{ topK: 2 }, [0, 0.7, 0.72, 0.99], [1, 1, 2, 2]], // 0.5 and the first of the equal ones
    [{ topK: 4 }, [0.05, 0.94], [1, 0]],
    [{ topP: 0.85 }, [0, 0.55, 0.56, 0.77, 0.78], [1, 1, 2, 2, 3]],
    [{ topK: 3, topP: 0.5 }, [0.99], [1]],
    [{ minP: 0.3 }, [0.9999], [3]],
    [{ minP: 1 }, [0.9999], [1]],
    [{ temperature: 0 }, [0.9], [1]],
    [{ temperature: 0, repetitionPenalty: 1.5 }, [0], [1], positive, [1, 1, 99]], // each token once
    [{ temperature: 0, repetitionPenalty: 2 }, [0], [2], positive, [1]],
    [{ temperature: 0, repetitionPenalty: 0.1 }, [0], [0], logits, [0]],
  ]) {
    const drawn = numbers.map((number) => draw(new Sampling(options), scores, { next: () => number }, recent));
    assert.deepEqual(drawn, tokens);
  }
});

test("every class of errors has its own name, and a code of the format", () => {
  const page = readFileSync(fileURLToPath(new URL("../../../docs/bundle_format.md", import.meta.url)), "utf8");
  const codes = new Set(page.split("## Errors")[1].match(/(?<=^\| `)[a-z_]+/gm));
  const classes = Object.entries(xlruntime).filter(([name]) => name.endsWith("Error"));
  const bases = ["BundleError", "StateError"]; // are never raised
  const seen = new Set();
  for (const [name, Class] of classes) {
    const error = new Class("it is wrong.", "Do nothing.");
    assert.deepEqual([error.name, error.problem, error.hint], [name, "it is wrong.", "Do nothing."]);
    assert.ok(error instanceof xlruntime.XlruntimeError);
    assert.ok(codes.has(error.code), error.code);
    if (bases.includes(name)) continue;
    assert.ok(!seen.has(error.code), error.code);
    seen.add(error.code);
  }
  assert.deepEqual([...codes].filter((code) => !seen.has(code)).sort(), ["busy", "internal", "stopped", "timeout"]);
});

test("a page loads at most 54 kB of the package", () => {
  execFileSync("node", [fileURLToPath(new URL("../scripts/size.mjs", import.meta.url))]);
});

/** Run a program with a variable in an empty home, without variables of CI; return its output and what it wrote there. */
function atHome(program, variables = {}) {
  const home = mkdtempSync(join(tmpdir(), "home-"));
  const env = { PATH: process.env.PATH, HOME: home, BUNDLE: golden(BYTES), ...variables };
  const options = { cwd: fileURLToPath(new URL("..", import.meta.url)), env, encoding: "utf8" };
  return [execFileSync("node", ["--input-type=module", "-e", program], options), readdirSync(home)];
}

test("ONNX Runtime has no telemetry unless the user has chosen it", () => {
  const loads = 'const { load } = await import("xlruntime"); await load(process.env.BUNDLE);';
  const show = "console.log(process.env.ORT_DISABLE_TELEMETRY);";
  assert.deepEqual(atHome(loads + show), ["1\n", []]);
  assert.deepEqual(atHome(loads + show, { ORT_DISABLE_TELEMETRY: "0" })[0], "0\n");
  const worker = `import { once } from "node:events"; import { Worker } from "node:worker_threads";
    const worker = new Worker(${JSON.stringify(loads)}, { eval: true });
    await once(worker, "exit").catch((error) => console.log(error.code));`;
  assert.deepEqual(atHome(`import "xlruntime";${worker}`), ["", []]);
  assert.deepEqual(atHome(worker), ["provider\n", []]); // its environment is a copy
});

test("the package names its peer that is missing", async () => {
  const missing = () => importModule("onnxruntime-node", () => Promise.reject(new Error("not found")));
  const text = /^onnxruntime-node cannot be loaded \(not found\)\. Install it: npm install onnxruntime-node$/;
  await refuses(missing, "provider", text);
});

test("a bundle of an encoder-decoder is refused with the program that runs it", async () => {
  const folder = join(GOLDEN, "encoder_decoder", "translator");
  await refuses(load(folder), "bundle_format", /an encoder-decoder, .*Use the Python package/);
});
