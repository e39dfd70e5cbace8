/** The package in Node: bundles in folders, and ONNX Runtime's native library. */

import { FolderSource } from "./folder.js";
import { setFolders } from "./model.js";
import { importModule, setPlatform, type Ort, type OrtTensor } from "./onnxruntime.js";

setPlatform({
  importOrt: () => importModule<Ort>("onnxruntime-node", () => import("onnxruntime-node")),
  providers: { cpu: "cpu" },
  parallel: true,
  readable: asBits,
});
setFolders((path) => new FolderSource(path));

/**
 * Return a tensor whose float16 are 16 bits each. `onnxruntime-node` 1.30 reads only those, but where JavaScript has
 * Float16Array, as in Node 24, `Tensor` holds that.
 */
function asBits(tensor: OrtTensor): OrtTensor {
  const { data } = tensor as { data: Float32Array };
  if (tensor.type !== "float16" || data instanceof Uint16Array) return tensor;
  const value = new Uint16Array(data.buffer, data.byteOffset, data.length);
  return Object.create(tensor, { data: { value } }) as OrtTensor;
}

export { FolderSource } from "./folder.js";
export * from "./index.js";
