import { readFileSync, writeFileSync } from "node:fs";
import { load } from "xlruntime";
const D = "/tmp/wt/runjs-data/";
for (const name of process.argv.slice(2)) {
  const { rows, lengths, inputs, outputs, position } = JSON.parse(readFileSync(`${D}${name}.json`));
  const model = await load(D + name, { threads: 1 });
  const S = lengths.reduce((a, b) => a + b, 0);
  const raw = (p) => { const b = readFileSync(p); return b.buffer.slice(b.byteOffset, b.byteOffset + b.length); };
  const ins = Object.fromEntries(Object.entries(inputs).map(([k, d]) => [k, d === "bool" ? new Uint8Array(raw(`${D}${name}.in.${k}`)) : new Float32Array(raw(`${D}${name}.in.${k}`))]));
  const outs = Object.fromEntries(outputs.map((k) => [k, new Float32Array(raw(`${D}${name}.out.${k}`))]));
  const part = (a, at, n) => { const z = a.length / rows / S; const r = new a.constructor(rows * n * z); for (let i = 0; i < rows; i++) r.set(a.subarray((i * S + at) * z, (i * S + at + n) * z), i * n * z); return r; };
  async function walk(stream, from, reset = false) {
    let at = lengths.slice(0, from).reduce((a, b) => a + b, 0), worst = 0;
    const t = performance.now();
    for (let i = from; i < lengths.length; i++) {
      const n = lengths[i];
      const found = await stream.run(Object.fromEntries(Object.entries(ins).map(([k, a]) => [k, part(a, at, n)])));
      for (const k of outputs) { const w = part(outs[k], at, n); found[k].forEach((v, j) => { const d = Math.abs(v - w[j]); if (!(d <= worst)) worst = d; }); }
      at += n;
      if (reset && i === Math.floor(lengths.length / 2)) { await stream.reset(rows - 1); writeFileSync(`${D}${name}.js.state`, await stream.save()); }
    }
    return [worst, stream.position, ((performance.now() - t) / 1000).toFixed(1)];
  }
  console.log(name, "whole", await walk(await model.stepStream({ rows }), 0, true), position);
  console.log(name, "from Python's state", await walk(await model.restoreStepStream(readFileSync(`${D}${name}.py.state`)), Math.floor(lengths.length / 2) + 1));
}
