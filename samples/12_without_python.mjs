// Score a file with Node, without Python: node 12_without_python.mjs FILE
// docs/bundle_format.md specifies the files of a bundle.
//
// Needs: npm install onnxruntime-node, and `bundle/` from 01_convert.py or of another language model that reads bytes.
import { readFileSync } from "node:fs";

process.env.ORT_DISABLE_TELEMETRY ??= "1"; // ONNX Runtime reads it when it is loaded
const { default: ort } = await import("onnxruntime-node");

const file = process.argv[2] ?? "12_without_python.mjs";
const { document, graphs, memory, rings, settings, tokenizer } = JSON.parse(readFileSync("bundle/bundle.json", "utf8"));
if (tokenizer.kind !== "bytes") throw new Error("the tokenizer is not of bytes: make ids with its own library");
if (memory.some((entry) => entry.first_value)) throw new Error("memories begin with first_memory.safetensors");
if (Object.keys(graphs.score.fixed).length) throw new Error("steps of other lengths run in variants, token by token");
if (document.max_positions !== null) throw new Error("documents of this model end or begin again at max_positions");

const S = document.segment_len;
const size = ([a, b, c]) => a * (settings.mem_len?.value ?? 0) + b * S + c;
const hasWindow = ({ window, window_if: name }) => window !== null && (name === null || settings[name].value);

// What a step feeds to an input, after `read` tokens of the document.
const feeds = {
  position: (_, read) => read,
  offset: ({ ring }, read) => read % size(rings[ring].slots),
  length: ({ ring }, read) => Math.min(document.fresh_memory === "zeros" ? Infinity : read, size(rings[ring].rows)),
  window: ({ ring }) => (hasWindow(rings[ring]) ? size(rings[ring].window) : 2 ** 62),
  slots: ({ ring }) => size(rings[ring].slots),
  setting: ({ setting }) => settings[setting].value,
};
const int64 = (values, shape = [values.length]) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), shape);
const inputsOf = (graph, read, tensors) => {
  const valueOf = (name, input) => tensors[name] ?? int64([feeds[input.feed](input, read)]);
  return Object.fromEntries(Object.entries(graph.inputs).map(([name, input]) => [name, valueOf(name, input)]));
};
const open = ({ file }) => ort.InferenceSession.create(`bundle/${file}`);

const constants = graphs.positions ? await (await open(graphs.positions)).run(inputsOf(graphs.positions, 0, {})) : {};
const carried = {};
for (const { input, shape, dtype } of memory) {
  const axes = shape.map((axis) => (axis === "batch" ? 1 : axis in rings ? size(rings[axis].slots) : axis));
  const Values = { float32: Float32Array, int32: Int32Array }[dtype];
  carried[input] = new ort.Tensor(dtype, new Values(axes.reduce((a, b) => a * b)), axes);
}

const step = await open(graphs.score);
const ids = Array.from(readFileSync(file), (byte) => byte + tokenizer.first_id);
let nats = 0;
for (let read = 0; read < ids.length - 1; read += S) {
  const targets = ids.slice(read + 1, read + 1 + S);
  const tokens = int64(ids.slice(read, read + targets.length), [1, targets.length]);
  const tensors = { tokens, targets: int64(targets, [1, targets.length]), ...constants, ...carried };
  const outputs = await step.run(inputsOf(graphs.score, read, tensors));
  for (const logProb of outputs.log_prob.data) nats -= logProb;
  for (const { input, output } of memory) carried[input] = outputs[output];
}
console.log(`${file}: ${ids.length} bytes, ${(nats / Math.LN2 / (ids.length - 1)).toFixed(4)} bits per byte`);
