// Open bundles and states of strangers, and feed tokens: for tests/reliability/mutate.py.
// Lines and answers are those of runtime/c/tests/open_mutants.cc.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

import { load, XlruntimeError } from "xlruntime";

const kept = new Map(); // models of states
let warned;

async function feed(bundle, state) {
  warned = false;
  const model = kept.get(bundle) ?? (await load(bundle, { threads: 1, onWarning: () => (warned = true) }));
  if (state) kept.set(bundle, model);
  try {
    const stream = state ? await model.restore(readFileSync(state)) : await model.stream();
    const { logProbs } = await stream.feed([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]);
    return warned ? "reported" : `ok ${-logProbs.reduce((sum, one) => sum + one, 0)}`;
  } finally {
    if (!state) await model.release();
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const answer = await feed(...line.split("\t")).catch((error) =>
    error instanceof XlruntimeError ? `${error.code} ${error.message}` : `traceback ${error?.stack ?? error}`,
  );
  console.log(answer.replaceAll("\n", "\\n"));
}
