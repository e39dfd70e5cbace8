// Open bundles and states of strangers, and feed tokens: for tests/reliability/mutate.py.
// Lines and answers are those of runtime/c/tests/open_mutants.cc; an error of another kind ends the program.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

import { load, XlruntimeError } from "xlruntime";

for await (const line of createInterface({ input: process.stdin })) {
  const [bundle, state] = line.split("\t");
  let [model, warned] = [];
  try {
    model = await load(bundle, { threads: 1, onWarning: () => (warned = true) });
    const stream = state ? await model.restore(readFileSync(state)) : await model.stream();
    const { logProbs } = await stream.feed([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]);
    console.log(warned ? "reported" : `ok ${-logProbs.reduce((sum, one) => sum + one, 0)}`);
  } catch (error) {
    if (!(error instanceof XlruntimeError)) throw error;
    console.log(`${error.code} ${error.message}`);
  } finally {
    await model?.release();
  }
}
