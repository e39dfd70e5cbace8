// The kit's cases in this process.
import * as xlruntime from "xlruntime"; // first: it turns off the telemetry of ONNX Runtime
import ort from "onnxruntime-node";

import { runCase } from "./player.mjs";

export async function openRunner({ files, keep }) {
  return {
    runtime: `Node ${process.versions.node}, ONNX Runtime ${ort.env.versions.node}`,
    within: 1e-4,
    run: (name, within, withinBits) =>
      runCase(xlruntime, files, name, { within, withinBits, keep, options: { threads: 1 } }),
    close: async () => undefined,
  };
}
