// Small step models, written here byte by byte.
import { bytes, joined, safetensorsHeader } from "../dist/safetensors.js";
import { changed } from "./helpers.mjs";

/** Numbers of types in ONNX. */
const TYPES = {
  float32: 1,
  uint8: 2,
  int8: 3,
  uint16: 4,
  int16: 5,
  int32: 6,
  int64: 7,
  bool: 9,
  uint32: 12,
  uint64: 13,
};
export const DTYPES = Object.keys(TYPES);
const STEPS = ["batch", "segment"];
export const FIRST = [0.5, -1, 2];

function varint(value) {
  const groups = [];
  let rest = BigInt.asUintN(64, BigInt(value));
  for (; rest > 127n; rest >>= 7n) groups.push(Number(rest & 127n) | 128);
  return Uint8Array.from([...groups, Number(rest)]);
}

/** Encode a message of protobuf from pairs of a field's number and a whole number, a text or bytes. */
function message(...pairs) {
  const field = ([number, value]) => {
    if (typeof value === "number") return [varint(number * 8), varint(value)];
    const raw = typeof value === "string" ? new TextEncoder().encode(value) : value;
    return [varint(number * 8 + 2), varint(raw.length), raw];
  };
  return joined(pairs.flatMap(field));
}

/** Return a graph; inputs and outputs are lists of a name, a type and a shape, constants whole numbers. */
function graphOf(inputs, outputs, constants, nodes) {
  const info = ([name, dtype, shape]) => {
    const axes = shape.map((axis) => [1, message([typeof axis === "number" ? 1 : 2, axis])]);
    return message([1, name], [2, message([1, message([1, TYPES[dtype]], [2, message(...axes)])])]);
  };
  const node = ([type, takes, gives, ...settings]) => {
    const given = settings.map(([name, i]) => [5, message([1, name], [3, i], [20, 2])]);
    return message(...takes.map((name) => [1, name]), [2, gives], [4, type], ...given);
  };
  const fields = [
    ...nodes.map((one) => [1, node(one)]),
    ...Object.entries(constants).map(([name, i]) => [5, message([1, 1], [2, TYPES.int64], [7, i], [8, name])]),
    ...inputs.map((one) => [11, info(one)]),
    ...outputs.map((one) => [12, info(one)]),
  ];
  return message([1, 10], [7, message([2, "run"], ...fields)], [8, message([1, ""], [2, 20])]);
}

/** Return the files of a bundle; `memory` are names, types, shapes and names of first values. */
function bundle(inputs, outputs, memory, constants, nodes, firstValues = {}) {
  const document = { segment_len: 4, max_positions: null, fresh_memory: "empty", encoder: null };
  const feeds = inputs.map(([name, dtype, shape]) => [name, { feed: "input", dtype, shape }]);
  const entries = memory.map(([input, dtype, shape, first]) => {
    return { input, output: `new_${input}`, dtype, shape, layout: "state", first_value: first };
  });
  const manifest = {
    ...{ format: 5, requires: { onnxruntime: "1.24.1", opset: 20, domains: {} } },
    model: { architecture: "module", config: {}, vocab_size: 0, precision: "float32" },
    tokenizer: { kind: "none", file: null, first_id: 0 },
    document: { ...document, restart: false, full_document: false, bidirectional: false },
    ...{ settings: {}, rings: {}, memory: entries },
    graphs: {
      run: {
        ...{ file: "run.onnx", format: "onnx", fixed: {} },
        inputs: Object.fromEntries([...feeds, ...memory.map(([name]) => [name, { feed: "memory" }])]),
        outputs: Object.fromEntries(outputs.map(([name, dtype, shape]) => [name, { dtype, shape }])),
      },
    },
    steps: { run: [{ graph: "run", max_segment: null, kernels: [], device: null }] },
    ...{ meaning: {}, provenance: {}, fingerprint: "0".repeat(64), files: {} },
  };
  const files = new Map([["bundle.json", new TextEncoder().encode(JSON.stringify(manifest))]]);
  const carried = memory.map(([name, ...kind]) => [`new_${name}`, ...kind]);
  changed(files, "run.onnx", graphOf([...inputs, ...memory], [...outputs, ...carried], constants, nodes));
  const tensors = new Map(Object.entries(firstValues));
  const data = [...tensors.values()].map((tensor) => bytes(tensor.data));
  return changed(files, "first_memory.safetensors", joined([safetensorsHeader({}, tensors), ...data]));
}

/** Return the files of a model: `action` sums observations where `active`, `count` says how many there were. */
export function counting() {
  const vectors = ["float32", [...STEPS, 3]];
  return bundle(
    [
      ["observation", ...vectors],
      ["active", "bool", STEPS],
    ],
    [
      ["action", ...vectors],
      ["count", "int64", STEPS],
    ],
    [
      ["total", "float32", ["batch", 3], "total"],
      ["seen", "int64", ["batch", 1], null],
    ],
    { one: 1, two: 2, last: -1 },
    [
      ["Cast", ["active"], "factors", ["to", TYPES.float32]],
      ["Unsqueeze", ["factors", "two"], "columns"],
      ["Mul", ["observation", "columns"], "masked"],
      ["CumSum", ["masked", "one"], "sums"],
      ["Unsqueeze", ["total", "one"], "before"],
      ["Add", ["sums", "before"], "action"],
      ["Gather", ["action", "last"], "totals", ["axis", 1]],
      ["Squeeze", ["totals", "one"], "new_total"],
      ["Cast", ["active"], "ones", ["to", TYPES.int64]],
      ["CumSum", ["ones", "one"], "counts"],
      ["Add", ["counts", "seen"], "count"],
      ["Gather", ["count", "last"], "new_seen", ["axis", 1]],
    ],
    { total: { dtype: "float32", shape: [3], data: Float32Array.from(FIRST) } },
  );
}

/** Return the files of a model without memory that gives back its inputs, one of each type. */
export function echoing() {
  const of = (suffix) => DTYPES.map((dtype) => [dtype + suffix, dtype, [...STEPS, 2]]);
  const nodes = DTYPES.map((dtype) => ["Identity", [dtype], `${dtype}_out`]);
  return bundle(of(""), of("_out"), [], {}, nodes);
}
