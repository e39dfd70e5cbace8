// Score a file with Node, without Python: node 12_without_python.mjs FILE
// docs/bundle_format.md specifies the files of a bundle.
//
// Needs: npm install onnxruntime-node, and `bundle/` from 01_convert.py or of another Transformer-XL that reads bytes.
import { readFileSync } from "node:fs";
import ort from "onnxruntime-node";

const file = process.argv[2] ?? "12_without_python.mjs";
const bundle = JSON.parse(readFileSync("bundle/bundle.json", "utf8"));
const rules = bundle.evaluation;
if (bundle.tokenizer.kind !== "bytes") throw new Error("the tokenizer is not of bytes: make ids with its own library");
if (bundle.memory.some((entry) => entry.first_value)) throw new Error("memories begin with first_memory.safetensors");

const int64 = (values, shape = [values.length]) =>
  new ort.Tensor("int64", BigInt64Array.from(values, (value) => BigInt(value)), shape);
const value = (name) => rules.settings[name].default;
const ring = rules.rings.capacity;
const S = rules.segment_len;
const M = value(ring.rows);
const C = M + S; // slots of a ring: the memory of the first token, and the segment
const window = value(ring.same_length) ? BigInt(M + ring.window_extra) : 2n ** 62n;

const inputs = { capacity: int64([C]) };
for (const [name, setting] of Object.entries(rules.settings)) {
  if (setting.input) inputs[setting.input] = int64([value(name)]);
}
const constants = await (await ort.InferenceSession.create("bundle/positions.onnx")).run(inputs);

const sizes = { batch: 1, capacity: C };
const memory = {};
for (const { input, shape } of bundle.memory) {
  const axes = shape.map((axis) => sizes[axis] ?? axis);
  memory[input] = new ort.Tensor("float32", new Float32Array(axes.reduce((a, b) => a * b)), axes);
}

const step = await ort.InferenceSession.create("bundle/score.onnx");
const ids = Array.from(readFileSync(file), (byte) => byte + (bundle.tokenizer.first_id ?? 0));
let nats = 0;
for (let offset = 0; offset < ids.length - 1; offset += S) {
  const targets = ids.slice(offset + 1, offset + 1 + S);
  const outputs = await step.run({
    tokens: int64(ids.slice(offset, offset + targets.length), [1, targets.length]),
    targets: int64(targets, [1, targets.length]),
    offset: int64([offset % C]),
    memory_length: int64([rules.first_memory === "zeros" ? M : Math.min(offset, M)]),
    window: int64([window]),
    ...constants,
    ...memory,
  });
  for (const logProb of outputs.log_prob.data) nats -= logProb;
  for (const { input, output } of bundle.memory) memory[input] = outputs[output];
}
console.log(`${file}: ${ids.length} bytes, ${(nats / Math.LN2 / (ids.length - 1)).toFixed(4)} bits per byte`);
