/** The package in a browser, in the page or in a worker: ONNX Runtime in WebAssembly or on WebGPU. */

import { importModule, setPlatform, type Ort } from "./onnxruntime.js";

setPlatform({
  importOrt: (device) =>
    device === "webgpu"
      ? importModule<Ort>("onnxruntime-web", () => import("onnxruntime-web/webgpu"))
      : importModule<Ort>("onnxruntime-web", () => import("onnxruntime-web/wasm")),
  providers: { cpu: "wasm", webgpu: "webgpu" },
  memory: 2 ** 32, // of WebAssembly
  parallel: false,
});

export * from "./index.js";
