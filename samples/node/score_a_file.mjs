// Score a file in Node, and show what surprised the model most: node score_a_file.mjs BUNDLE FILE
//
// Needs: the package of runtime/js, onnxruntime-node, and a bundle of `xlexport convert`.
// Copy this file next to the folder node_modules in which they are installed.
import { createReadStream } from "node:fs";
import { load, XlruntimeError } from "xlruntime";

const [bundle = "bundle", file = "score_a_file.mjs"] = process.argv.slice(2);
try {
  const model = await load(bundle);
  const most = [];
  for await (const part of model.scoreTokens([{ name: file, source: createReadStream(file) }])) {
    part.tokens.forEach((token, at) => most.push({ token, index: part.index[at], nats: -part.logProbs[at] }));
    most.sort((a, b) => b.nats - a.nats).splice(5); // the file may have any length
    if (part.summary === null) continue; // more parts follow
    const { bits, scoredTokens, bitsPerByte } = part.summary;
    console.log(`${file}: ${scoredTokens} tokens, ${bits.toFixed(1)} bits, ${bitsPerByte?.toFixed(4)} bits per byte`);
  }
  for (const { token, index, nats } of most) {
    const text = JSON.stringify(model.tokenizer.decode([token]));
    console.log(`token ${index}, ${text}: ${(nats / Math.LN2).toFixed(1)} bits`);
  }
} catch (error) {
  if (!(error instanceof XlruntimeError)) throw error;
  console.error(error.message); // one line: what is wrong, where, and how to repair it
  process.exitCode = 1;
}
