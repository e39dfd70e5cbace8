/** An open bundle: the sessions of its graphs, fresh memories, and the steps that they run. */

import {
  BundleFiles,
  FIRST_MEMORY_FILE,
  isStepModel,
  rowAxis,
  type Bundle,
  type Choice,
  type Graph,
} from "./bundle.js";
import { BundleFormatError, OptionError, XlruntimeError } from "./errors.js";
import { choose, UNLIMITED, type EvaluationSettings, type Settings } from "./evaluation.js";
import { bytesOfPlan, Memory, settingOf } from "./memory.js";
import { counted, firstLine, listed, shown } from "./messages.js";
import type { OrtTensor, Runtime, Tensors } from "./onnxruntime.js";
import { allFinite, product, readSafetensors, zeros, type HostTensor } from "./safetensors.js";
import { numbersOf } from "./scores.js";
import { Session } from "./session.js";
import type { Tokenizer } from "./tokenizers/tokenizer.js";

const KEPT_CONSTANTS = 4; // sets of positional keys kept for later streams
const AGAIN = "Convert the checkpoint again.";

/** An open bundle; `Model` adds what applications call. */
export class Engine {
  /** The place of the bundle, for messages. */
  readonly where: string;
  /** The manifest. */
  readonly bundle: Bundle;
  /** The SHA-256 of `bundle.json`, as `load` takes it. */
  readonly digest: string;
  /** The identity of the bundle's numbers, to which saved streams belong. */
  readonly fingerprint: string;
  /** Version of ONNX Runtime, if its module has it. */
  readonly onnxruntime: string | undefined;
  readonly #sessions = new Map<string, Promise<Session>>();
  readonly #constants = new Map<string, Promise<Tensors>>();
  #firstValues: ReadonlyMap<string, HostTensor> = new Map();

  /** Use `load`, which also opens the graph for scoring. */
  constructor(
    protected readonly files: BundleFiles,
    protected readonly runtime: Runtime,
    private readonly ownTokenizer: Tokenizer,
    /** What is called with warnings. */
    readonly warn: (message: string) => void,
  ) {
    this.where = files.where;
    this.bundle = files.bundle;
    this.digest = files.digest;
    this.fingerprint = files.bundle.fingerprint;
    this.onnxruntime = runtime.version;
  }

  /** Text to token ids and back. A step model has none: an OptionError. */
  get tokenizer(): Tokenizer {
    this.choices("score");
    return this.ownTokenizer;
  }

  /** Open what every use needs, to fail now and not at the first document. */
  async open(): Promise<void> {
    await this.#session(this.#mainGraph(isStepModel(this.bundle) ? "run" : "score"));
    const entries = this.bundle.memory.filter((entry) => entry.first_value !== null);
    if (!entries.length) return;
    const place = this.files.place(FIRST_MEMORY_FILE);
    const content = await this.files.read(FIRST_MEMORY_FILE);
    try {
      this.#firstValues = readSafetensors(content).tensors;
    } catch (error) {
      throw new BundleFormatError(`${place}: not a file of tensors (${firstLine(error)}).`, AGAIN, error);
    }
    const wrong = entries.filter((entry) => {
      const value = this.#firstValues.get(entry.first_value as string);
      const shape = entry.shape.filter((_, axis) => axis !== 0 && axis !== rowAxis(entry));
      return !(value?.dtype === "float32" && String(value.shape) === String(shape) && allFinite(value));
    });
    if (wrong.length) {
      throw new BundleFormatError(`${place}: no first values of ${listed(wrong.map((entry) => entry.input))}.`, AGAIN);
    }
  }

  /**
   * Return the bundle's evaluation settings with the chosen ones replaced; null keeps the bundle's own.
   *
   * @throws OptionError - a value is out of range, or cannot be chosen.
   */
  evaluation(settings: Settings = {}): EvaluationSettings {
    return choose(this.bundle, settings);
  }

  /**
   * Return fresh memory for a document, or for `rows` of a step model; `capacity` is the number of slots of the largest
   * ring.
   */
  async newMemory(evaluation: EvaluationSettings, capacity = evaluation.capacity, rows?: number): Promise<Memory> {
    this.#checkFixed(rows === undefined ? "score" : "run", evaluation, rows ?? 1);
    if (!(Number.isSafeInteger(capacity) && evaluation.maxSegment(capacity) >= 1)) {
      throw new OptionError(
        `a capacity of ${capacity} slots is too small for a segment: ${evaluation.mostRows} rows are kept.`,
      );
    }
    const plan = { entries: this.bundle.memory, evaluation, capacity, rows: rows ?? 1 };
    if (2 * bytesOfPlan(plan) > (this.runtime.memory * 3) / 4) {
      // a step returns new tensors
      const what = `${counted(plan.rows)} rows of ${counted(capacity)} slots`;
      const problem = `the memory of ${what} takes more than three quarters of that of this machine.`;
      throw new OptionError(problem, "Choose a smaller mem_len or segment_len, or fewer rows.");
    }
    return new Memory({
      ...plan,
      runtime: this.runtime,
      firstValues: this.#firstValues,
      constants: await this.#constantsOf(evaluation, capacity),
    });
  }

  /**
   * Run one segment, and keep its memory; return the outputs of `purpose`. Graphs of a fixed length run one after the
   * other.
   *
   * @throws OptionError - no graph takes so many tokens.
   */
  async step(purpose: string, memory: Memory, tokens: readonly number[], targets: readonly number[]): Promise<Tensors> {
    const kept = memory.length;
    const parts: Tensors[] = [];
    for (let begin = 0; begin < tokens.length;) {
      const part = (ids: readonly number[], n: number): OrtTensor =>
        this.runtime.int64(ids.slice(begin, begin + n), [1, n]);
      const given = (n: number): Tensors => ({ tokens: part(tokens, n), targets: part(targets, n) });
      const length = kept + begin; // each token sees as many others as in one step
      const [outputs, n] = await this.runGraph(purpose, memory, tokens.length - begin, given, length);
      parts.push(outputs);
      begin += n;
    }
    return parts.length === 1 ? (parts[0] as Tensors) : this.#joined(purpose, parts);
  }

  /**
   * Run the graph for the first of `S` steps, and keep its memory; return its outputs, and how many steps it took.
   *
   * @param given - returns what the first n steps are given: `tokens` and `targets`, or each `input`.
   * @throws OptionError - no graph takes so many.
   */
  async runGraph(
    purpose: string,
    memory: Memory,
    S: number,
    given: (n: number) => Tensors,
    length = memory.length,
  ): Promise<[Tensors, number]> {
    const [name, n] = this.#graphFor(purpose, S, memory);
    const session = await this.#session(name);
    const outputs = await session.run(memory.feeds(session.graph, given(n), length), n, memory.plan.rows);
    memory.advance(outputs, n, length);
    return [outputs, n];
  }

  /** Join the outputs of consecutive graphs: those for each token one after the other, and of the others the last. */
  #joined(purpose: string, parts: readonly Tensors[]): Tensors {
    const outputs = { ...parts.at(-1) };
    for (const [name, { dtype, shape }] of Object.entries(this.#graph(this.#mainGraph(purpose)).outputs)) {
      if (shape[1] !== "segment") continue;
      const tensors = parts.map((part) => part[name] as OrtTensor);
      const n = tensors.reduce((sum, { dims }) => sum + (dims[1] as number), 0);
      const dims = (tensors[0] as OrtTensor).dims.map((size, axis) => (axis === 1 ? n : size));
      const data = zeros(dtype, product(dims));
      let place = 0;
      for (const tensor of tensors) {
        data.set(tensor.data as never, place);
        place += product(tensor.dims);
      }
      outputs[name] = this.runtime.tensor(dtype, data, dims);
    }
    return outputs;
  }

  /** Return the logits of the token after a step. */
  async logits(memory: Memory, tokens: readonly number[]): Promise<Float32Array> {
    const outputs = await this.step("generate", memory, tokens, tokens); // targets do not matter
    const logits = numbersOf(outputs, "logits", "float32", this.bundle.model.vocab_size);
    // Minus infinity is an impossible token.
    if (logits.some(Number.isFinite) && logits.every((logit) => logit < Infinity)) return logits;
    throw new XlruntimeError("the model gave logits that are not finite, so generation stops.", "Begin again.");
  }

  /** Open the graph for detail, and refuse a number of likeliest tokens that it does not list. */
  async checkTop(top: number): Promise<void> {
    const { graph } = await this.#session(this.#mainGraph("detail"));
    const most = Number(graph.outputs["top_ids"]?.shape.at(-1)) || 0;
    if (!(top >= 0 && top <= most)) {
      throw new OptionError(`top is ${top}, expected 0 to ${most}, the likeliest tokens that this bundle lists.`);
    }
  }

  /** Return `segmentLen`, or the longest step of the graphs for `purpose` if that is shorter. */
  longestStep(purpose: string, segmentLen: number): number {
    const lengths = this.choices(purpose).map((choice) => this.#graph(choice.graph).fixed["segment"] ?? mostOf(choice));
    return Math.min(segmentLen, Math.max(...lengths));
  }

  /** Close all graphs and free their memory; they open again when they are needed. */
  async release(): Promise<void> {
    const opened = [...this.#sessions.values()];
    this.#sessions.clear();
    this.#constants.clear();
    for (const session of await Promise.allSettled(opened)) {
      if (session.status === "fulfilled") await session.value.release();
    }
  }

  /** Refuse to begin a document that the graphs of fixed shapes cannot read, or would score otherwise. */
  #checkFixed(purpose: string, { segmentationMatters, segmentLen }: EvaluationSettings, rows: number): void {
    const longest = this.longestStep(purpose, segmentLen);
    const fixed = this.bundle.graphs[purpose]?.fixed ?? {};
    if (!(Number.isInteger(rows) && rows > 0 && rows === (fixed["batch"] ?? rows))) {
      throw new OptionError(
        `${this.where}: its batch is of ${fixed["batch"] ?? "1 or more"} rows, not ${shown(rows)}.`,
        "Choose others, or convert the checkpoint again with --fixed batch=1.",
      );
    }
    if (Object.keys(fixed).length && segmentationMatters && segmentLen > longest) {
      throw new OptionError(
        `segment_len is ${segmentLen}, at most ${longest} is possible: scores depend on it, and shapes are fixed.`,
        "Choose a smaller one, or convert with another --fixed.",
      );
    }
  }

  /** Return the graph for the first tokens of a step of `S`, and how many it takes: all, unless it fixes their number. */
  #graphFor(purpose: string, S: number, { plan }: Memory): [string, number] {
    const sizeOf = (axis: string): number =>
      axis in plan.evaluation.rings ? plan.evaluation.slots(axis, plan.capacity) : plan.rows;
    const fits = ({ fixed }: Graph): boolean =>
      Object.entries(fixed).every(([axis, size]) => (axis === "segment" ? size <= S : size === sizeOf(axis)));
    const found = this.choices(purpose).find((choice) => S <= mostOf(choice) && fits(this.#graph(choice.graph)));
    if (found !== undefined) return [found.graph, this.#graph(found.graph).fixed["segment"] ?? S];
    throw new OptionError(`${this.where}: no graph for ${purpose} takes a segment of ${S}.`, "Split it.");
  }

  /**
   * Return the graphs of a purpose that this device can run without kernels, in order of preference.
   *
   * @throws OptionError - there are none; says which calls a language model and a step model have.
   */
  choices(purpose: string): readonly Choice[] {
    const accelerated = this.runtime.device === "webgpu";
    const all = this.bundle.steps[purpose] ?? [];
    const choices = all.filter(({ kernels, device }) => !kernels.length && (device === null || accelerated));
    if (choices.length) return choices;
    const names = Object.keys(this.bundle.steps).sort();
    const hint = isStepModel(this.bundle) ? "Call Model.stepStream and StepStream.run." : "Call Model.stream.";
    throw new OptionError(
      `${this.where}: no graph for ${purpose} runs here; there are steps for ${listed(names)}.`,
      isStepModel(this.bundle) === (purpose === "run") ? null : hint,
    );
  }

  /** Return the graph for the longest steps of a purpose. */
  #mainGraph(purpose: string): string {
    return this.choices(purpose).reduce((best, choice) => (mostOf(choice) > mostOf(best) ? choice : best)).graph;
  }

  #graph(name: string): Graph {
    return this.bundle.graphs[name] as Graph;
  }

  /** Return an open graph. */
  async #session(name: string): Promise<Session> {
    return cached(this.#sessions, name, () => Session.open(name, this.files, this.runtime));
  }

  /** Return the outputs of the graph `positions`: computed once for each combination of settings and slots. */
  async #constantsOf(evaluation: EvaluationSettings, capacity: number): Promise<Tensors> {
    const graph = this.bundle.graphs["positions"];
    if (graph === undefined) return {};
    const inputs = Object.entries(graph.inputs);
    const values = inputs.map(([name, feed]) => [name, settingOf(feed, evaluation, capacity)] as const);
    const constants = cached(this.#constants, JSON.stringify(values), async () => {
      const session = await Session.open("positions", this.files, this.runtime); // it holds weights of its own
      const feeds = values.map(([name, value]) => [name, this.runtime.int64([value])]);
      const outputs = await session.run(Object.fromEntries(feeds), 0);
      if (this.runtime.device === "cpu") await session.release();
      return outputs;
    });
    for (const old of [...this.#constants.keys()].slice(0, -KEPT_CONSTANTS)) this.#constants.delete(old);
    return constants;
  }
}

/** Return the most tokens of a step. */
function mostOf(choice: Choice): number {
  return choice.max_segment ?? UNLIMITED;
}

/** Return the value of a key, made once; a failure is not kept. */
async function cached<T>(values: Map<string, Promise<T>>, key: string, make: () => Promise<T>): Promise<T> {
  const value = values.get(key) ?? make();
  values.set(key, value);
  value.catch(() => values.delete(key));
  return value;
}
