// Read manifests, one a line: for tests/conformance/changed_manifests.py.
// Answers are those of runtime/c/tests/read_manifests.cc; an error of another kind ends the program.
import { createInterface } from "node:readline";

import { readManifest } from "../dist/bundle.js";
import { BundleFormatError } from "../dist/errors.js";

for await (const text of createInterface({ input: process.stdin })) {
  try {
    await readManifest(new TextEncoder().encode(text), "bundle.json");
    console.log("taken");
  } catch (error) {
    if (!(error instanceof BundleFormatError)) throw error;
    console.log(error.problem);
  }
}
