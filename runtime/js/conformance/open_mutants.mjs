// Open bundles and states of strangers, and feed tokens: for tests/reliability/mutate.py.
// Lines and answers are those of runtime/c/tests/open_mutants.cc.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

import { load, XlruntimeError } from "xlruntime";

async function feed(bundle, state) {
  let warned = false;
  const model = await load(bundle, { threads: 1, onWarning: () => (warned = true) });
  try {
    const stream = state ? await model.restore(readFileSync(state)) : await model.stream();
    const { logProbs } = await stream.feed([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]);
    return warned ? "reported" : `ok ${-logProbs.reduce((sum, one) => sum + one, 0)}`;
  } finally {
    await model.release();
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const answer = await feed(...line.split("\t")).catch((error) =>
    error instanceof XlruntimeError ? `${error.code} ${error.message}` : `traceback ${error?.stack ?? error}`,
  );
  console.log(answer.replaceAll("\n", "\\n"));
}
