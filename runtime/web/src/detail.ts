/** Rank, entropy and likeliest tokens, which the graph `detail` adds to the scores. */

import type { Numbers } from "./arrays.js";
import type { Engine } from "./engine.js";
import { OptionError } from "./errors.js";
import type { OrtTensor } from "./onnxruntime.js";
import type { Detail } from "./scores.js";

/** Open the graph for detail, and refuse a number of likeliest tokens that it does not list. */
export async function checkDetail(engine: Engine, detail: number): Promise<void> {
  await engine.session("detail");
  const outputs = engine.bundle.graphs["detail"]?.outputs ?? [];
  const most = outputs.find((tensor) => tensor.name === "top_ids")?.shape.at(-1);
  if (!(detail >= 0) || (typeof most === "number" && detail > most)) {
    throw new OptionError(`detail is ${detail}, expected 0 to ${most}, the likeliest tokens that this bundle lists.`);
  }
}

/** Return the detail of no tokens. */
export function noDetail(): Detail {
  return { rank: [], entropy: new Float32Array(0), topIds: [], topLogProbs: [] };
}

/** Return the detail of the first `n` predictions of a step, with the `k` likeliest tokens of each. */
export function detailOf(outputs: Record<string, OrtTensor>, n: number, k: number): Detail {
  const data = (name: string): Numbers => outputs[name]?.data as Numbers;
  const listed = outputs["top_ids"]?.dims.at(-1) ?? 0;
  const places = Array.from({ length: n }, (_, at) => at);
  const [ids, values] = [data("top_ids"), data("top_log_probs") as Float32Array];
  return {
    rank: Array.from(data("rank").slice(0, n) as BigInt64Array, Number),
    entropy: (data("entropy") as Float32Array).slice(0, n),
    topIds: places.map((at) => Array.from(ids.slice(at * listed, at * listed + k) as BigInt64Array, Number)),
    topLogProbs: places.map((at) => values.slice(at * listed, at * listed + k)),
  };
}

/** Return the detail of consecutive parts as one. */
export function joinDetail(parts: readonly Detail[]): Detail {
  return {
    rank: parts.flatMap((part) => part.rank),
    entropy: Float32Array.from(parts.flatMap((part) => [...part.entropy])),
    topIds: parts.flatMap((part) => part.topIds),
    topLogProbs: parts.flatMap((part) => part.topLogProbs),
  };
}
