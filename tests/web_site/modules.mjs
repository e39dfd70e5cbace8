// Modules of a site's worker in Node: answers a request, which comes as JSON.
import { readFileSync } from "node:fs";

import * as xlruntime from "xlruntime";

const request = JSON.parse(readFileSync(0, "utf-8"));
const { aligned, decoded, tokenize } = await import(`${request.worker}/places.js`);
const { StreamDocument, FullDocument } = await import(`${request.worker}/open_document.js`);

const answers = {
  decoded: ({ raw }) => {
    const { text, after } = decoded(Uint8Array.from(raw));
    return { units: Array.from(text, (_, at) => text.charCodeAt(at)).length, codes: codes(text), after: [...after] };
  },

  async tokenize({ bundle, offsets, source, ended }) {
    const model = await xlruntime.load(bundle, { threads: 1 });
    try {
      const given = Array.isArray(source) ? Uint8Array.from(source) : source;
      const found = await tokenize({ xlruntime, model, offsets }, given, ended);
      return { ...found, ids: [...found.ids], start: [...found.start], text: codes(found.text) };
    } catch (error) {
      return { error: `${error.name}: ${error.message}` };
    }
  },

  aligned: ({ pieces, text }) => {
    const decode = (ids) => ids.map((id, place) => (place ? pieces[id] : pieces[id].trimStart())).join("");
    return [...aligned({ decode }, pieces.map((_, id) => id), text)];
  },

  // Each document after the other, as edits give them: the bits of all, and how many tokens the model read for each.
  async score({ bundle, documents, interrupted }) {
    const model = await xlruntime.load(bundle, { threads: 1, onWarning: () => undefined });
    const top = "detail" in model.bundle.graphs ? 2 : null;
    const isWhole = model.bundle.document.full_document;
    const document = isWhole ? new FullDocument(model, top) : new StreamDocument(await model.stream(), top);
    const found = [];
    const { step } = model;
    let read = 0;
    model.step = (...given) => {
      read += given[2].length;
      return step.apply(model, given);
    };
    for (const [number, ids] of documents.entries()) {
      read = 0;
      const kept = await document.set(ids);
      for (let steps = 0; !document.isDone && !(interrupted && number % 2 && steps === 2); steps++) await document.step();
      const own = [];
      if (document.isDone) for await (const part of model.scoreTokens([ids], { top })) own.push(part);
      const rank = own.flatMap((part) => part.rank ?? []);
      const bits = own.flatMap((part) => Array.from(part.logProbs, (value) => -value / Math.LN2));
      const counted = read - (document.isDone ? ids.length - 1 : 0);
      found.push({ kept, read: counted, isDone: document.isDone, bits: [...document.table.bits], ranks: [...document.table.rank], own: { bits, rank } });
    }
    return found;
  },
};

function codes(text) {
  return Array.from({ length: text.length }, (_, at) => text.charCodeAt(at));
}

console.log(JSON.stringify(await answers[request.ask](request)));
