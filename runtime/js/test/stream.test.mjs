// Streams: pieces of any size, order of calls, errors that change nothing, forks, states.
import assert from "node:assert/strict";
import { test } from "node:test";

import { all, BAND, BYTES, open, refuses } from "./helpers.mjs";

const TEXT = "Call me Ishmael. Some years ago, never mind how long precisely.";

test("detail of a feed is that of the whole document", async () => {
  const model = await open(BYTES);
  const parts = [];
  for await (const part of model.scoreTokens([TEXT], { top: 3 })) parts.push(part);
  const stream = await model.stream();
  const whole = await stream.feed(TEXT, { top: 3 });
  for (const name of ["rank", "entropy", "topIds", "topLogProbs", "logProbs"]) {
    assert.deepEqual(
      Array.from(whole[name]),
      parts.flatMap((part) => Array.from(part[name])),
    );
  }
  const { rank, topIds } = await stream.scoreContinuation(" He", { top: 1 });
  assert.deepEqual([rank.length, topIds.length, topIds[0].length], [3, 3, 1]);
  assert.equal("rank" in (await stream.scoreContinuation(" He")), false);
  await refuses(() => stream.feed("x", { top: 1000 }), "option", /top is 1000, expected 0 to/);
});

test("calls that do not wait take effect in their order", async () => {
  const model = await open(BYTES);
  const stream = await model.stream();
  const [first, fork, second, state] = await Promise.all([
    stream.feed("one "),
    stream.fork(),
    stream.feed("two "),
    stream.save(),
  ]);
  assert.deepEqual([first.index.length, second.index.length], [3, 4]);
  assert.deepEqual([fork.position, stream.position], [4, 8]);
  assert.deepEqual(await fork.feed("two "), second);
  const restored = await model.restore(state);
  assert.deepEqual(await restored.feed("three"), await stream.feed("three"));
});

test("a feed that fails changes nothing, and later calls go on", async () => {
  const model = await open(BAND);
  const stream = await model.stream();
  await stream.feed([1, 2, 3]);
  const before = await stream.save();
  await refuses(() => stream.feed([4, 5, 258]), "token", /token 5 has id 258, expected 0 to 257/);
  await refuses(() => stream.feed(new Array(199).fill(1)), "too_long", /at most 201 are possible/);
  await refuses(() => stream.feed([1.5]), "token", /whole numbers/);
  await refuses(() => stream.feed("text"), "text", /no tokenizer/);
  assert.deepEqual(await stream.save(), before);
  assert.equal((await stream.feed([4])).index[0], 3);
});

test("an error within a piece goes back to its beginning", async () => {
  const model = await open(BYTES);
  const stream = await model.stream();
  await stream.feed("one ");
  const before = await stream.save();
  const { step } = model;
  let steps = 0;
  model.step = (...given) => (++steps === 2 ? Promise.reject(new Error("broken")) : step.apply(model, given));
  await assert.rejects(() => stream.feed(TEXT), /broken/);
  model.step = step;
  assert.equal(steps, 2);
  assert.deepEqual(await stream.save(), before);
});

test("a state goes on from a buffer of Node, which is a part of a larger one", async () => {
  const model = await open(BYTES);
  const stream = await model.stream();
  await stream.feed(TEXT);
  const state = await stream.save();
  const pool = Buffer.alloc(state.length + 24, 7);
  const part = pool.subarray(8, 8 + state.length);
  part.set(state);
  assert.deepEqual(await (await model.restore(part)).feed(TEXT), await stream.feed(TEXT));
  assert.deepEqual(new Uint8Array(part), state);
});

test("generation goes on from a document, and can be forked in the middle", async () => {
  const model = await open(BYTES);
  const stream = await model.stream();
  await stream.feed(TEXT);
  const options = { maxTokens: 6, sampling: { temperature: 0 } };
  const whole = await all((await stream.fork()).generate(null, options));
  let fork;
  const drawn = [];
  for await (const token of stream.generate(null, options)) {
    drawn.push(token);
    if (drawn.length === 3) fork = await stream.fork();
  }
  assert.deepEqual(drawn, whole);
  assert.deepEqual(await all(fork.generate(null, { ...options, maxTokens: 3 })), whole.slice(3));
  assert.equal(stream.position, TEXT.length + 6);
});

test("a state with another capacity goes on up to rounding", async () => {
  const model = await open(BYTES);
  const stream = await model.stream();
  await stream.feed(TEXT);
  const state = new Blob([await stream.save()]);
  const next = await stream.feed(TEXT);
  for (const capacity of [20, 21, 40, 200]) {
    const restored = await model.restore(state, { capacity });
    assert.equal(restored.capacity, capacity);
    const { logProbs } = await restored.feed(TEXT);
    logProbs.forEach((value, at) => assert.ok(Math.abs(value - next.logProbs[at]) < 1e-4));
  }
});

test("scores that are not finite are a warning, and the memory is refilled", async () => {
  const warnings = [];
  const model = await open(BYTES, { onWarning: (message) => warnings.push(message) });
  const { step } = model;
  model.step = async (...given) => {
    const outputs = await step.apply(model, given);
    outputs.log_prob.data.fill(NaN);
    return outputs;
  };
  const stream = await model.stream();
  assert.ok((await stream.feed("ab")).logProbs.every(Number.isNaN));
  model.step = step;
  assert.match(warnings.join(), /^the stream: scores that are not finite before token 2; its memory was refilled/);
  const fresh = await model.stream();
  await fresh.feed("b");
  assert.deepEqual((await stream.feed("cd")).logProbs, (await fresh.feed("cd")).logProbs);
});
