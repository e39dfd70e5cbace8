// Streams of step models: parts and rows of any number, refusals that change nothing, forks, resets, states.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";

import { load } from "xlruntime";

import { joined, readSafetensors, safetensorsHeader } from "../dist/safetensors.js";
import { all, BYTES, changed, filesOf, golden, refuses } from "./helpers.mjs";
import { counting, DTYPES, echoing, FIRST } from "./step_bundle.mjs";

const open = (files = counting()) => load(files, { threads: 1 });
const altered = (change) => changed(counting(), "bundle.json", change);

/** Return inputs of `rows` rows from step `from` on: halves of whole numbers, so that sums are exact. */
function given(rows, S, from = 0) {
  const steps = Array.from({ length: rows * S }, (_, at) => 7 * Math.floor(at / S) + (at % S) + from);
  const observation = Float32Array.from(steps.flatMap((at) => [at / 2, 1 - at, (at * at) % 11]));
  return { observation, active: Uint8Array.from(steps, (at) => Number(at % 3 > 0)) };
}

/** Return what the model must compute for one row from its beginning. */
function expected({ observation, active }) {
  const [total, action, count] = [[...FIRST], [], []];
  for (const [step, factor] of active.entries()) {
    for (const axis of [0, 1, 2]) total[axis] += factor * observation[3 * step + axis];
    action.push(...total);
    count.push(BigInt(factor) + (count.at(-1) ?? 0n));
  }
  return { action: Float32Array.from(action), count: BigInt64Array.from(count) };
}

/** Return one row of arrays. */
function row(arrays, rows, at) {
  const of = (array) => array.slice((array.length / rows) * at, (array.length / rows) * (at + 1));
  return Object.fromEntries(Object.entries(arrays).map(([name, array]) => [name, of(array)]));
}

test("every cut gives the numbers of the whole, and rows are independent", async () => {
  const model = await open();
  const inputs = given(3, 11);
  const whole = await (await model.stepStream({ rows: 3 })).run(inputs); // in parts of at most 4 steps
  for (const at of [0, 1, 2]) {
    assert.deepEqual(row(whole, 3, at), expected(row(inputs, 3, at)));
    const single = await model.stepStream({ segment_len: 2 });
    const parts = [await single.run(given(1, 1, 7 * at)), await single.run(given(1, 10, 7 * at + 1))];
    for (const name of ["action", "count"]) {
      assert.deepEqual([...parts[0][name], ...parts[1][name]], [...row(whole, 3, at)[name]]);
    }
  }
});

test("a row begins anew, and all rows go on from a saved stream", async () => {
  const model = await open();
  const stream = await model.stepStream({ rows: 2 });
  const inputs = given(2, 5);
  await stream.run(inputs);
  const fork = await stream.fork();
  await stream.reset(1);
  const [left, right] = [await stream.run(inputs), await fork.run(inputs)];
  assert.deepEqual(row(left, 2, 0), row(right, 2, 0));
  assert.deepEqual(row(left, 2, 1), expected(row(inputs, 2, 1)));
  const state = await stream.save();
  const restored = await model.restoreStepStream(state);
  assert.deepEqual([restored.position, fork.position, restored.rows], [[10, 5], [10, 10], 2]);
  assert.deepEqual(await restored.save(), state);
  assert.deepEqual(await restored.run(inputs), await stream.run(inputs));
  await stream.reset();
  assert.deepEqual(
    [await stream.run(inputs), stream.position],
    [await (await model.stepStream({ rows: 2 })).run(inputs), [5, 5]],
  );
  for (const wrong of [2, -1, 0.5, "0"]) await refuses(stream.reset(wrong), "argument", /row is .*, expected 0 to 1/);
  const damaged = state.slice();
  damaged[damaged.length - 1] ^= 1;
  await refuses(model.restoreStepStream(damaged), "state_damaged", /SHA-256 differs/);
});

test("states that no stream can have are refused", async () => {
  const model = await open();
  const stream = await model.stepStream({ rows: 2 });
  await stream.run(given(2, 3));
  const { metadata, tensors, data } = readSafetensors(await stream.save());
  /** Return the state with other texts, and the digest of these. */
  const saved = (texts) => {
    const { digest: _, ...all } = { ...metadata, ...texts };
    const lines = Object.keys(all)
      .sort()
      .map((name) => `${name}=${all[name]}\n`); // names of ASCII
    const digest = createHash("sha256").update(lines.join("")).update(data).digest("hex");
    return joined([safetensorsHeader({ ...all, digest }, tensors), data]);
  };
  assert.deepEqual((await model.restoreStepStream(saved({ offset: "9" }))).position, [3, 3]);
  for (const texts of [
    ...[
      { history: "3 2" },
      { history: "3 3 3" },
      { position: "3" },
      { offset: "2" },
      { length: "1" },
      { pending: "0" },
    ],
    ...[
      { held: "61" },
      { begun: "true" },
      { tokenizer: "0" },
      { history: "3  3", position: "3  3" },
      { capacity: "0" },
    ],
    { history: "3 3 3", position: "3 3 3" }, // tensors of two rows
  ]) {
    await refuses(model.restoreStepStream(saved(texts)), "state_damaged", /impossible for a stream/);
  }
});

test("arrays of every type go in and come out", async () => {
  const types = [Float32Array, Uint8Array, Int8Array, Uint16Array, Int16Array, Int32Array, BigInt64Array];
  types.push(Uint8Array, Uint32Array, BigUint64Array);
  const inputs = DTYPES.map((dtype, at) => [dtype, types[at].from([1, 0, 1, 1], /64/.test(dtype) ? BigInt : Number)]);
  const found = await (await (await open(echoing())).stepStream({ rows: 2 })).run(Object.fromEntries(inputs));
  for (const [dtype, array] of inputs) assert.deepEqual(found[`${dtype}_out`], array);
});

test("wrong inputs are listed, and change nothing", async () => {
  const stream = await (await open()).stepStream({ rows: 2 });
  const { observation, active } = given(2, 3);
  for (const [inputs, text] of [
    [undefined, /observation is Undefined of 0 .*, expected Float32Array of 2 × steps × 3; active is Undefined/],
    [{ observation, active, other: active }, /unknown other/],
    [{ observation: [...observation], active: Int8Array.from(active) }, /is Array of 18 .*; active is Int8Array of 6/],
    [{ observation: observation.subarray(1), active }, /is Float32Array of 17 numbers/],
    [{ observation: new Float32Array(0), active }, /is Float32Array of 0 numbers/],
    [{ observation, active: active.subarray(2) }, /active is Uint8Array of 4 numbers, expected Uint8Array of 2 × 3/],
    [{ observation: observation.with(4, NaN), active }, /observation has numbers that are not finite/],
    [{ observation, active: active.with(0, 2) }, /active has numbers that are not 0 or 1/],
  ]) {
    await refuses(stream.run(inputs), "argument", text);
  }
  assert.deepEqual(stream.position, [0, 0]);
  const reused = observation.slice();
  const first = stream.run({ observation: reused, active });
  reused.fill(9); // it was copied
  assert.deepEqual(row(await first, 2, 0), expected(row({ observation, active }, 2, 0)));
});

test("a graph that fails leaves the stream where it was", async () => {
  const model = await open();
  const stream = await model.stepStream();
  await stream.run(given(1, 2));
  const before = await stream.save();
  const { runGraph } = model;
  let calls = 0;
  model.runGraph = (...all) => (++calls === 2 ? Promise.reject(new Error("broken")) : runGraph.apply(model, all));
  await assert.rejects(stream.run(given(1, 9)), /broken/);
  model.runGraph = runGraph;
  assert.deepEqual([calls, stream.position, await stream.save()], [2, [2], before]);
});

test("graphs of fixed shapes take turns, and a row has at most as many steps as the model reads", async () => {
  const model = await open(
    altered(({ graphs, steps, document }) => {
      document.max_positions = 10;
      graphs.run.fixed = { batch: 2, segment: 4 };
      graphs.run_1 = { ...graphs.run, fixed: { batch: 2, segment: 1 } };
      steps.run.push({ ...steps.run[0], graph: "run_1" });
    }),
  );
  const stream = await model.stepStream();
  assert.deepEqual(row(await stream.run(given(2, 7)), 2, 1), expected(row(given(2, 7), 2, 1)));
  await stream.reset(0);
  await refuses(stream.run(given(2, 4)), "too_long", /row 1 has read 7 of at most 10 steps, and 4 more/);
  assert.deepEqual(stream.position, [0, 7]);
  for (const rows of [0, 1, 1.5, "2"])
    await refuses(model.stepStream({ rows }), "option", /its batch is of 2 rows, not/);
  const free = await open();
  await refuses(free.stepStream({ rows: 2 ** 40 }), "option", /1,099,511,627,776 rows .* takes more/);
  const state = await (await free.stepStream()).save();
  await refuses(model.restoreStepStream(state), "state_mismatch", /a stream of 1 rows, but the graphs fix 2/);
});

test("what needs tokens refuses a step model, and a language model has no steps", async () => {
  const model = await open();
  const state = await (await model.stepStream()).save();
  for (const wrong of [
    () => model.stream(),
    () => model.restore(state),
    () => all(model.score([[1, 2]])),
    () => all(model.scoreTokens(["text"], { top: 1 })),
    () => all(model.generate([1], { maxTokens: 1 })),
    async () => model.tokenizer.encode("text"),
  ]) {
    await refuses(wrong, "option", /Call Model\.stepStream and StepStream\.run\.$/);
  }
  assert.equal((await model.check()).passed, null);
  const language = await load(golden(BYTES), { threads: 1 });
  for (const wrong of [() => language.stepStream(), () => language.restoreStepStream(state)]) {
    await refuses(wrong, "option", /no graph for run runs here; .* Call Model\.stream\.$/);
  }
});

test("manifests that mix both kinds are refused", async () => {
  for (const [change, text] of [
    [({ model }) => (model.vocab_size = 1), /vocab_size is 1, but 0 is of models with steps run/],
    [({ steps }) => delete steps.run, /vocab_size is 0, but/],
    [
      ({ graphs, steps }) => [(graphs.score = graphs.run), (steps.score = steps.run)],
      /beside steps run there are score/,
    ],
    [({ document }) => (document.restart = true), /steps run have .* rules of documents/],
    [({ graphs }) => (graphs.run.inputs.active = { feed: "tokens" }), /input active of graph run takes tokens/],
    [({ graphs }) => delete graphs.run.inputs.active.dtype, /active\.dtype is missing/],
    [({ graphs }) => (graphs.run.inputs.active.dtype = "float16"), /active of graph run takes input float16/],
    [
      ({ graphs }) => (graphs.run.inputs.active.shape[2] = "wide"),
      /active of graph run is \["batch","segment","wide"\]/,
    ],
    [({ graphs }) => (graphs.run.outputs = {}), /a graph for steps run has no input, or no output/],
    [({ graphs }) => (graphs.run.inputs = { total: { feed: "memory" } }), /steps run has no input, or no output/],
    [
      ({ graphs, steps }) => {
        graphs.run_1 = {
          ...graphs.run,
          inputs: { ...graphs.run.inputs, active: { ...graphs.run.inputs.active, dtype: "int8" } },
        };
        steps.run.push({ ...steps.run[0], graph: "run_1" });
      },
      /steps of run are graphs with different inputs/,
    ],
    [({ graphs }) => graphs.run.outputs.count.shape.reverse(), /count of graph run is \["segment","batch"\]/],
  ]) {
    await refuses(load(altered(change)), "bundle_format", text);
  }
  const feed = { feed: "input", dtype: "float32", shape: ["batch", "segment", 1] };
  const mixed = changed(filesOf(BYTES), "bundle.json", ({ graphs }) => (graphs.score.inputs.tokens = feed));
  await refuses(load(mixed), "bundle_format", /input tokens of graph score takes a input that is not there/);
  const other = await open(
    altered(({ memory }) => Object.assign(memory[1], { layout: "window", shape: ["batch", 1, 1] })),
  );
  await refuses(other.stepStream(), "option", /memories are states, found a window/);
});
