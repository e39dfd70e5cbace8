// Read a text, save the stream, and continue the text from the file: node save_and_generate.mjs BUNDLE
//
// Needs: the package of runtime/js, onnxruntime-node, and a bundle of `xlexport convert` with text.
// Copy this file next to the folder node_modules in which they are installed.
// Python's `Model.restore` goes on from the same file, and JavaScript from one that Python's `Stream.save` wrote.
import { readFile, writeFile } from "node:fs/promises";
import { load } from "xlruntime";

const model = await load(process.argv[2] ?? "bundle");
const stream = await model.stream();
await stream.feed("It was a dark night, ");
await stream.feed("and ");
await writeFile("stream.safetensors", await stream.save());

for (const ending of ["the rain fell.", "the rain sang."]) {
  const { logProbs } = await stream.scoreContinuation(ending); // the stream stays where it is
  const bits = -logProbs.reduce((sum, logProb) => sum + logProb, 0) / Math.LN2;
  console.log(`${bits.toFixed(1)} bits for ${JSON.stringify(ending)}`);
}

const restored = await model.restore(await readFile("stream.safetensors"));
const drawn = [];
for await (const token of restored.generate(null, { maxTokens: 40, sampling: { temperature: 0.7, seed: 1 } })) {
  drawn.push(token);
}
console.log(JSON.stringify(model.tokenizer.decode(drawn)));
