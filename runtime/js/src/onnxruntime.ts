/** What this package uses of `onnxruntime-web` and `onnxruntime-node`, which have the same interface. */

import { ProviderError } from "./errors.js";
import { firstLine } from "./messages.js";
import type { Numbers } from "./safetensors.js";

/** A tensor of ONNX Runtime. */
export interface OrtTensor {
  readonly type: string;
  readonly dims: readonly number[];
  readonly location: string;
  readonly data: unknown;
  getData(release?: boolean): Promise<unknown>;
  dispose(): void;
}

/** Tensors by the names of inputs or outputs. */
export type Tensors = Record<string, OrtTensor>;

/** A session of ONNX Runtime. */
export interface OrtSession {
  readonly inputNames: readonly string[];
  readonly outputNames: readonly string[];
  run(feeds: Tensors, fetches: readonly string[]): Promise<Tensors>;
  release(): Promise<void>;
}

/** The module `onnxruntime-web` or `onnxruntime-node`. */
export interface Ort {
  Tensor: new (type: never, data: never, dims: readonly number[]) => OrtTensor;
  InferenceSession: { create(content: Uint8Array, options: never): Promise<OrtSession> };
  env: { wasm: { numThreads?: number }; versions?: { node?: string; web?: string } };
}

/** Optimizers that fuse sums with what follows into slower kernels; Python leaves out the same ones. */
const SLOWER_FUSION = "SkipLayerNormFusion";

/** Where steps run: `cpu` is WebAssembly in a browser. */
export type Device = "cpu" | "webgpu";

/** ONNX Runtime as this environment has it. */
export interface Platform {
  /** Import the module for a device. */
  importOrt(device: Device): Promise<Ort>;
  /** Names of execution providers by device. */
  providers: Partial<Record<Device, string>>;
  /** Bytes that a program can have. */
  memory: number;
  /** Whether two sessions may run at the same time. */
  parallel: boolean;
  /** Return a tensor as the module can read it, if that is not always the tensor itself. */
  readable?: (tensor: OrtTensor) => OrtTensor;
}

let platform: Platform | undefined;

/** Choose the platform of this process; `node.ts` and `browser.ts` do so. */
export function setPlatform(chosen: Platform): void {
  platform = chosen;
}

/** A module of ONNX Runtime, with the rules for its use. */
export class Runtime {
  readonly #turn = inTurn();

  private constructor(
    readonly ort: Ort,
    readonly device: Device,
    private readonly provider: string,
    private readonly threads: number | null,
    private readonly parallel: boolean,
    /** Bytes that a program can have. */
    readonly memory: number,
  ) {}

  /**
   * Return ONNX Runtime for a device.
   *
   * @param threads - threads of one step; null: as many as ONNX Runtime chooses.
   * @param given - the module to use; null imports the one of this platform.
   * @throws ProviderError - the module or the device is missing.
   */
  static async open(device: Device, threads: number | null, given: Ort | null): Promise<Runtime> {
    if (platform === undefined) throw new ProviderError("xlruntime was imported without a platform.");
    const provider = platform.providers[device];
    if (provider === undefined) {
      const have = Object.keys(platform.providers).join(", ");
      throw new ProviderError(`no device ${device} here; there is ${have}.`, "Choose another device.");
    }
    if (device === "webgpu" && !(await hasAdapter())) {
      throw new ProviderError("this browser has no adapter for WebGPU.", "Choose the device cpu, or another browser.");
    }
    const ort = given ?? (await platform.importOrt(device));
    if (threads !== null) ort.env.wasm.numThreads = threads;
    return new Runtime(ort, device, provider, threads, platform.parallel, platform.memory);
  }

  /** Version of ONNX Runtime, if the module has it. */
  get version(): string | undefined {
    return this.ort.env.versions?.node ?? this.ort.env.versions?.web;
  }

  /** Return a tensor. */
  tensor(dtype: string, data: Numbers, dims: readonly number[]): OrtTensor {
    return new this.ort.Tensor(dtype as never, data as never, dims);
  }

  /** Return a tensor of int64. */
  int64(values: readonly number[], dims: readonly number[] = [values.length]): OrtTensor {
    return this.tensor("int64", BigInt64Array.from(values, BigInt), dims);
  }

  /**
   * Open a session.
   *
   * @param data - files of weights by name.
   * @param kept - outputs that stay on the device.
   * @param sines - nodes that a GPU would compute with too large errors: WebGPU allows errors of 2^-11 for sines.
   */
  async session(
    content: Uint8Array,
    data: Record<string, Uint8Array>,
    kept: readonly string[],
    sines: readonly string[],
  ): Promise<OrtSession> {
    const isGpu = this.device === "webgpu";
    const onDevice = isGpu && kept.length > 0;
    const options = {
      executionProviders: [isGpu && sines.length ? { name: this.provider, forceCpuNodeNames: sines } : this.provider],
      logSeverityLevel: 3, // errors; they are raised, too
      enableMemPattern: false, // Python's sessions do not reserve a step's memory either
      extra: {
        session: {
          force_spinning_stop: "1", // threads do not wait busily between steps
          load_model_format: "ONNX", // never ONNX Runtime's own format
        },
        ...(this.device === "cpu" ? { optimization: { disable_specified_optimizers: SLOWER_FUSION } } : {}),
      },
      externalData: Object.entries(data).map(([path, bytes]) => ({ path, data: bytes })),
      ...(this.threads === null ? {} : { intraOpNumThreads: this.threads }),
      ...(onDevice ? { preferredOutputLocation: Object.fromEntries(kept.map((name) => [name, "gpu-buffer"])) } : {}),
    };
    return this.#alone(() => this.ort.InferenceSession.create(content, options as never));
  }

  /** Run a session. */
  async run(session: OrtSession, feeds: Tensors, outputs: readonly string[]): Promise<Tensors> {
    const readable = platform?.readable ?? ((tensor: OrtTensor) => tensor);
    const inputs = Object.fromEntries(Object.entries(feeds).map(([name, tensor]) => [name, readable(tensor)]));
    return this.#alone(() => session.run(inputs, outputs));
  }

  /** Call a function when no other call runs, if this platform allows only one at a time. */
  async #alone<T>(call: () => Promise<T>): Promise<T> {
    return this.parallel ? call() : this.#turn(call);
  }
}

/** Return what runs calls, each after all that it was given before. */
export function inTurn(): <T>(call: () => Promise<T>) => Promise<T> {
  let last: Promise<unknown> = Promise.resolve();
  return async (call) => {
    const result = last.then(call);
    last = result.catch(() => undefined);
    return result;
  };
}

async function hasAdapter(): Promise<boolean> {
  const { gpu } = globalThis.navigator as { gpu?: { requestAdapter(): Promise<unknown> } };
  return gpu !== undefined && (await gpu.requestAdapter()) !== null;
}

/** Import a module, or raise ProviderError with the line that installs it. */
export async function importModule<T>(name: string, load: () => Promise<unknown>): Promise<T> {
  try {
    const module = (await load()) as Record<string, unknown>;
    return (module["InferenceSession"] ? module : module["default"]) as T;
  } catch (error) {
    throw new ProviderError(
      `${name} cannot be loaded (${firstLine(error)}).`,
      `Install it: npm install ${name}`,
      error,
    );
  }
}
