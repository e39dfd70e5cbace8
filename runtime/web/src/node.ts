/** The package in Node: bundles in folders, and ONNX Runtime's native library. */

import { FolderSource } from "./folder.js";
import { setFolders } from "./model.js";
import { importModule, setPlatform, type Ort } from "./onnxruntime.js";

setPlatform({
  importOrt: () => importModule<Ort>("onnxruntime-node", () => import("onnxruntime-node")),
  providers: { cpu: "cpu" },
  parallel: true,
});
setFolders((path) => new FolderSource(path));

export { FolderSource } from "./folder.js";
export * from "./index.js";
