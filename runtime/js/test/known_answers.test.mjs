// `Model.check`: scores on this machine, and the answers that a bundle brings; and `load` that checks once.
import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { load } from "xlruntime";

import { all, BYTES, changed, filesOf, open, refuses } from "./helpers.mjs";
import { counting, echoing, FIRST } from "./step_bundle.mjs";

const TOKENS = Array.from({ length: 40 }, (_, at) => 60 + at);
const SETTINGS = { segment_len: 7, mem_len: 9 };

/** Open the golden bundle with its own scores as known answers, after a change. */
async function withAnswers(change = () => {}, options = {}) {
  const parts = await all((await open(BYTES)).scoreTokens([TOKENS], SETTINGS));
  const scores = parts.flatMap((part) => Array.from(part.logProbs));
  const shape = [1, 2, 16, 8];
  const names = [0, 1].flatMap((layer) => [`memory_key_${layer}`, `memory_value_${layer}`]);
  const memory = Object.fromEntries(names.map((name) => [name, [...shape]]));
  const bounds = scores.map(() => 1e-4);
  const answers = {
    settings: SETTINGS,
    tokens: [...TOKENS],
    log_probs: scores,
    bounds,
    memory,
    margin: null,
    certain: true,
  };
  change(answers);
  const content = new TextEncoder().encode(JSON.stringify(answers));
  return load(changed(filesOf(BYTES), "known_answers.json", content), { threads: 1, ...options });
}

test("a bundle reproduces its answers", async () => {
  const result = await (await withAnswers()).check();
  assert.deepEqual({ ...result, largest: 0 }, { passed: true, tokens: 39, largest: 0, problem: null, certain: true });
  assert.ok(result.largest < 0.2);
});

test("an older bundle has none", async () => {
  assert.equal((await (await open(BYTES)).check()).passed, null);
});

test("the first difference is named", async () => {
  const model = await withAnswers(({ log_probs: scores }) => {
    scores[30] -= 1;
    scores[20] -= 2e-4;
  });
  const { passed, largest, problem } = await model.check();
  assert.equal(passed, false);
  assert.ok(Math.abs(largest - 1e4) < 10);
  assert.match(
    problem,
    /^token 21 of the known answers has the log-probability -[\d.]+, expected -[\d.]+ within 0\.0001$/,
  );
});

test("the shape of a memory is compared", async () => {
  const model = await withAnswers(({ memory }) => memory["memory_key_1"].pop());
  const { problem } = await model.check();
  assert.match(problem, /^memory memory_key_1 has the shape \[1,2,16,8\], expected \[1,2,16\]$/);
});

test("an invalid file is refused by the path of the field", async () => {
  const invalid = [
    [(answers) => (answers.tokens[3] = -1), /tokens\[3\] is -1, expected a whole number from 0/],
    [(answers) => (answers.tokens[3] = 256), /tokens\[3\] is 256, expected a whole number from 0 to 255/],
    [(answers) => (answers.bounds[2] = 0), /bounds\[2\] is 0, expected a number above 0/],
    [(answers) => (answers.log_probs[1] = "x"), /log_probs\[1\] is "x", expected a number/],
    [(answers) => answers.log_probs.pop(), /40 tokens and 39 bounds for 38 log_probs/],
    [(answers) => (answers.memory.x = [-1]), /memory\.x\[0\] is -1/],
    [(answers) => delete answers.margin, /margin is missing/],
    [(answers) => (answers.settings = { n_hashes: 2 }), /settings\.n_hashes is unknown/],
    [(answers) => (answers.settings = { mem_len: 0 }), /mem_len is 0, expected 1 to/],
    [(answers) => (answers.certain = 1), /certain is 1, expected true or false/],
    [(answers) => (answers.more = "x".repeat(40_000)), /bytes, at most 40000 are expected/],
  ];
  for (const [change, message] of invalid) {
    const model = await withAnswers(change);
    await refuses(() => model.check(), "bundle_format", message);
  }
});

/** Call `body` with an empty folder as the user's cache, and with a function that lists the verdicts in it. */
async function withCache(body) {
  const cache = mkdtempSync(join(tmpdir(), "cache-"));
  const before = process.env.XDG_CACHE_HOME;
  process.env.XDG_CACHE_HOME = cache;
  const folder = join(cache, "xlexport", "checks");
  try {
    await body(cache, () => readdirSync(folder).map((name) => join(folder, name)));
  } finally {
    if (before === undefined) delete process.env.XDG_CACHE_HOME;
    else process.env.XDG_CACHE_HOME = before;
    rmSync(cache, { recursive: true });
  }
}

const differs = ({ log_probs: scores }) => (scores[11] += 0.5);
const rounds = (answers) => {
  differs(answers);
  answers.certain = false;
};

test("answers are compared once, and the verdict is remembered", async () => {
  await withCache(async (cache, verdicts) => {
    await withAnswers();
    assert.deepEqual(readdirSync(cache), []);
    await withAnswers(undefined, { check: "once" });
    const [verdict, ...others] = verdicts();
    assert.deepEqual([others.length, statSync(verdict).mode & 0o777, statSync(verdict).size], [0, 0o600, 0]);
    await refuses(() => withAnswers(differs, { check: "once" }), "bundle_graph", /: token 12 of the known answers /);
    assert.deepEqual(verdicts(), [verdict]);
  });
});

test("what may be rounding warns once", async () => {
  await withCache(async () => {
    const warnings = [];
    const options = { check: "once", onWarning: (text) => warnings.push(text) };
    await withAnswers(rounds, options);
    await withAnswers(rounds, options);
    assert.equal(warnings.length, 1);
    assert.match(warnings[0], /: token 12 of the known answers .*; here this may be rounding alone\.$/);
  });
});

test("a cache that nobody can write means a check each time", async () => {
  await withCache(async (cache) => {
    process.env.XDG_CACHE_HOME = join(cache, "file");
    writeFileSync(join(cache, "file"), "no folder");
    for (const _ of "12") {
      await refuses(() => withAnswers(differs, { check: "once" }), "bundle_graph", /: token 12 of the known answers /);
      await withAnswers(undefined, { check: "once" });
    }
  });
});

test("a check stops in time, but not before its first step", async () => {
  assert.equal((await (await withAnswers()).check(0)).tokens, 7);
});

test("an older bundle opens, and another choice is refused", async () => {
  await withCache(async (cache) => {
    await open(BYTES, { check: "once" });
    assert.deepEqual(readdirSync(cache), []);
  });
  await refuses(() => open(BYTES, { check: "always" }), "option", /^check is "always", expected off or once\.$/);
});

/** Open the step model that sums observations with known answers of 6 steps, after a change. */
async function countingWithAnswers(change = () => {}, options = {}) {
  const active = [1, 0, 1, 1, 0, 1];
  const observation = Array.from({ length: 18 }, (_, at) => (at % 5) / 4 - 0.5);
  const sums = [...FIRST];
  const action = observation.map((value, at) => (sums[at % 3] += value * active[Math.floor(at / 3)]));
  let seen = 0;
  const answers = {
    settings: { segment_len: 4 },
    steps: 6,
    inputs: { observation, active },
    outputs: { action, count: active.map((on) => (seen += on)) },
    bounds: { action: 1e-5, count: 0.5 },
    memory: { total: [1, 3], seen: [1, 1] },
    certain: true,
  };
  change(answers);
  const content = new TextEncoder().encode(JSON.stringify(answers));
  return load(changed(counting(), "known_answers.json", content), { threads: 1, ...options });
}

test("a step model reproduces its answers", async () => {
  const model = await countingWithAnswers();
  const result = await model.check();
  assert.deepEqual({ ...result, largest: 0 }, { passed: true, tokens: 6, largest: 0, problem: null, certain: true });
  assert.ok(result.largest < 0.1);
  assert.equal((await model.check(0)).tokens, 4);
  assert.equal((await (await load(counting(), { threads: 1 })).check()).passed, null);
});

test("the first step that differs is named, integers by any difference", async () => {
  const differing = [
    [({ outputs }) => ((outputs.action[9] += 2e-5), (outputs.action[13] += 1)), /^step 4 .* has the output action /],
    [({ outputs }) => (outputs.count[4] += 1), /^step 5 of the known answers has the output count 3\.0+, expected 4/],
    [({ inputs }) => (inputs.active[2] = 0), /^step 3 /],
    [({ memory }) => memory.total.pop(), /^memory total has the shape \[1,3\], expected \[1\]$/],
  ];
  for (const [change, message] of differing) {
    const { passed, problem } = await (await countingWithAnswers(change)).check();
    assert.equal(passed, false);
    assert.match(problem, message);
  }
});

test("numbers of every type are read and compared", async () => {
  const names = Object.keys((await load(echoing(), { threads: 1 })).bundle.graphs.run.inputs);
  const of = (suffix, value) => Object.fromEntries(names.map((name) => [name + suffix, value]));
  const answers = {
    settings: {},
    steps: 2,
    ...{ inputs: of("", [0, 1, 1, 0]), outputs: of("_out", [0, 1, 1, 0]), bounds: of("_out", 0.5) },
    ...{ memory: {}, certain: true },
  };
  const content = new TextEncoder().encode(JSON.stringify(answers));
  const model = await load(changed(echoing(), "known_answers.json", content), { threads: 1 });
  assert.deepEqual([(await model.check()).passed, names.length], [true, 10]);
});

test("an invalid file of a step model is refused by the path of the field", async () => {
  const invalid = [
    [({ inputs }) => delete inputs.active, /inputs\.active is missing/],
    [({ outputs }) => (outputs.x = [1]), /outputs\.x is unknown/],
    [({ bounds }) => delete bounds.count, /bounds\.count is missing/],
    [({ bounds }) => (bounds.action = 0), /bounds\.action is 0, expected a number above 0/],
    [({ outputs }) => outputs.action.pop(), /outputs\.action has 17 entries, expected 18/],
    [({ inputs }) => (inputs.active[3] = 2), /inputs\.active\[3\] is 2, expected a whole number from 0 to 1/],
    [({ outputs }) => (outputs.count[3] = 0.5), /outputs\.count\[3\] is 0\.5, expected a whole number/],
    [({ outputs }) => (outputs.count[3] = 2 ** 60), /outputs\.count\[3\] is 11529[0-9]+, expected a whole/],
    [({ inputs }) => (inputs.observation[1] = 1e39), /observation\[1\] is 1e\+39, expected a number of float32/],
    [(answers) => (answers.steps = 0), /steps is 0, expected a whole number from 1/],
    [(answers) => (answers.tokens = [1]), /tokens is unknown/],
  ];
  for (const [change, message] of invalid) {
    const model = await countingWithAnswers(change);
    await refuses(() => model.check(), "bundle_format", message);
  }
});

test("a step model that differs does not open, but once compared it does", async () => {
  await withCache(async (cache, verdicts) => {
    const change = ({ outputs }) => (outputs.count[4] += 1);
    await refuses(
      () => countingWithAnswers(change, { check: "once" }),
      "bundle_graph",
      /: step 5 of the known answers /,
    );
    await countingWithAnswers(undefined, { check: "once" });
    assert.equal(verdicts().length, 1);
  });
});
