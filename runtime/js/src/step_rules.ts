/** Rules of the manifest that only step models have: bundles that map numbers to numbers. */

import { STEP_FEEDS, type Bundle, type Graph } from "./bundle.js";
import { escaped, listed, shown } from "./messages.js";

const OF_TOKENS = ["score", "generate", "detail", "positions", "encode"];

/** Yield what a step model may not have. */
export function* stepModelProblems({ graphs, steps, tokenizer, document }: Bundle): Iterable<string> {
  if (!("run" in graphs)) yield "the graph run is missing";
  const others = [
    ...Object.keys(steps).filter((name) => name !== "run"),
    ...OF_TOKENS.filter((name) => name in graphs),
  ];
  if (others.length) yield `beside steps run there are ${listed(others)}`;
  if (tokenizer.kind !== "none" || document.full_document || document.bidirectional || document.restart) {
    yield "steps run have a tokenizer, or rules of documents";
  }
  const runs = (steps["run"] ?? []).flatMap(({ graph }) => graphs[graph] ?? []);
  const listing = (inputs: Graph["inputs"]): string => {
    const entries = Object.entries(inputs);
    return String(entries.map(([name, { feed, dtype, shape }]) => JSON.stringify([name, feed, dtype, shape])).sort());
  };
  if (new Set(runs.map(({ inputs }) => listing(inputs))).size > 1)
    yield "steps of run are graphs with different inputs";
  const isEmpty = ({ inputs, outputs }: Graph): boolean =>
    !Object.keys(outputs).length || !Object.values(inputs).some(({ feed }) => feed === "input");
  if (runs.some(isEmpty)) yield "a graph for steps run has no input, or no output";
  for (const [name, { inputs, outputs }] of Object.entries(graphs)) {
    const shapes = Object.entries(outputs).map(([output, { shape }]) => [output, shape] as const);
    for (const [input, { feed, dtype = "", shape }] of Object.entries(inputs)) {
      if (shape) shapes.push([input, shape]);
      if (!STEP_FEEDS.includes(feed as never) || /float(16|64)/.test(dtype)) {
        yield `input ${escaped(input)} of graph ${escaped(name)} takes ${feed} ${dtype}`;
      }
    }
    for (const [one, shape] of shapes) {
      const [batch, segment, ...sizes] = shape;
      if (batch === "batch" && segment === "segment" && sizes.every((size) => typeof size === "number")) continue;
      yield `${escaped(one)} of graph ${escaped(name)} is ${shown(shape)}, expected batch, segment and numbers`;
    }
  }
}
