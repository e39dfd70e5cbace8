/** `bundle.json`, read and checked, and the files that it lists. Fields have the names of the file. */

import { BundleDamagedError, BundleFormatError, BundleMismatchError, BundleNotFoundError } from "./errors.js";
import { DOCUMENT, RING, SETTING } from "./evaluation.js";
import {
  either,
  FieldError,
  like,
  list,
  map,
  object,
  oneOf,
  orNull,
  record,
  text,
  truth,
  whole,
  type Check,
  type Checked,
} from "./fields.js";
import { readJson } from "./json.js";
import { counted, escaped, firstLine, listed, shown } from "./messages.js";
import { DTYPE_NAMES } from "./safetensors.js";
import { sha256 } from "./sha256.js";
import type { Source } from "./source.js";

const FORMAT = 5;
const MANIFEST = "bundle.json";
const DIGEST = "bundle.json.sha256";
export const FIRST_MEMORY_FILE = "first_memory.safetensors";
const LARGEST_MANIFEST = 2 ** 26; // bytes
const LARGEST_DIGEST = 1000; // bytes
const LARGEST_AXIS = 2 ** 31 - 1;
const KNOWN_DOMAINS: Record<string, number> = { "ai.xlexport": 1 };
const CONVERT = "Convert the checkpoint again.";
const REWRITE = "Rewrite it: xlexport configure OLD -o NEW";
const COPY = "Copy the bundle again, or convert the checkpoint again.";

const isText = (value: unknown): boolean => typeof value === "string";
const SHAPE = list(either(isText, like(/./s, "a name"), whole(1, LARGEST_AXIS)));
const DTYPE = oneOf(...DTYPE_NAMES);
const SHA256 = like(/^[0-9a-f]{64}$/, "a SHA-256");
const VERSION = like(/^\d{1,4}(\.\d{1,4}){0,3}$/, "a version such as 1.24.1");

const RING_FEEDS = ["offset", "length", "window", "slots"] as const;
/** The feeds of a step model. */
export const STEP_FEEDS = ["input", "memory", "position"] as const;
const FEEDS = ["tokens", "targets", ...STEP_FEEDS, ...RING_FEEDS, "setting", "constant", "source"] as const;

/** What a step feeds to an input, and the ring or setting that it is about; of an `input` its type and shape. */
export interface Feed {
  readonly feed: (typeof FEEDS)[number];
  readonly ring?: string;
  readonly setting?: string;
  readonly dtype?: string;
  readonly shape?: readonly (string | number)[];
}

const FEED: Check<Feed> = (value, place) => {
  object(value, place);
  const { feed } = value as Feed;
  const of = { setting: { setting: text }, input: { dtype: DTYPE, shape: SHAPE } }[feed as string] ?? {};
  const about = RING_FEEDS.includes(feed as never) ? { ring: text } : of;
  record({ feed: oneOf(...FEEDS), ...about })(value, place);
};
const MEMORY_ENTRY = record({
  input: text,
  output: text,
  dtype: DTYPE,
  shape: SHAPE,
  layout: oneOf("ring", "window", "state"),
  first_value: orNull(text),
});
const GRAPH = record({
  file: text,
  format: oneOf("onnx", "torchscript", "exported-program", "executorch"),
  inputs: map(FEED),
  outputs: map(record({ dtype: DTYPE, shape: SHAPE })),
  fixed: map(whole(1, LARGEST_AXIS)),
});
const CHOICE = record({
  graph: text,
  max_segment: orNull(whole(1, LARGEST_AXIS)),
  kernels: list(text),
  device: orNull(oneOf("accelerator")),
});
const TEXT_TOKEN = record({ id: whole(0, LARGEST_AXIS), name: text, source: text });
const BUNDLE = record({
  format: whole(FORMAT, FORMAT),
  requires: record({ onnxruntime: orNull(VERSION), opset: orNull(whole(1, LARGEST_AXIS)), domains: map(whole(1)) }),
  model: record({ architecture: text, config: object, vocab_size: whole(0, LARGEST_AXIS), precision: text }),
  tokenizer: record(
    {
      kind: oneOf("bytes", "vocabulary", "tokenizers", "sentencepiece", "none"),
      file: orNull(text),
      first_id: whole(0, LARGEST_AXIS),
    },
    {
      size: orNull(whole(1, LARGEST_AXIS)),
      settled: orNull(oneOf("gpt2", "llama3", "gpt4o", "words", "letters")),
      bpe: orNull(text),
      begin: orNull(TEXT_TOKEN),
      adds_begin: truth,
      ends: list(TEXT_TOKEN),
    },
  ),
  document: DOCUMENT,
  settings: map(SETTING),
  rings: map(RING),
  memory: list(MEMORY_ENTRY),
  graphs: map(GRAPH),
  steps: map(list(CHOICE)),
  meaning: map(text),
  provenance: object,
  fingerprint: SHA256,
  files: map(record({ sha256: SHA256, size: whole(0) })),
});

/** The manifest. */
export type Bundle = Checked<typeof BUNDLE>;
/** A carried tensor: the input of a step graph that takes it, and the output with its next value. */
export type MemoryEntry = Checked<typeof MEMORY_ENTRY>;
/** A graph; `outputs` are without memories. */
export type Graph = Checked<typeof GRAPH>;
/** A graph that can run a step of some purpose, and when a runtime may choose it. */
export type Choice = Checked<typeof CHOICE>;

/** Return the index of the axis of rows; null for a state. */
export function rowAxis(entry: MemoryEntry): number | null {
  if (entry.layout === "ring") return entry.shape.findIndex((axis) => typeof axis === "string" && axis !== "batch");
  return entry.layout === "window" ? entry.shape.length - 2 : null;
}

/**
 * Read the content of `bundle.json`.
 *
 * @throws BundleFormatError - it is not JSON, of another format, has a wrong field, names what is not there, or requires
 *     what this package lacks.
 */
export async function readManifest(raw: Uint8Array, where: string): Promise<Bundle> {
  if (raw.length > LARGEST_MANIFEST) {
    throw new BundleFormatError(`${where}: more than ${counted(LARGEST_MANIFEST)} bytes.`, CONVERT);
  }
  let value: unknown;
  try {
    value = readJson(raw, ["model", "config"], ["provenance"]);
  } catch (error) {
    throw new BundleFormatError(`${where}: not JSON (${firstLine(error)}).`, COPY, error);
  }
  const { format, format_version: old } = (value ?? {}) as Record<string, unknown>;
  if (format !== FORMAT) {
    const older = format === FORMAT - 1 ? REWRITE : CONVERT;
    const hint = Number(format) > FORMAT ? "Install a newer xlruntime." : older;
    throw new BundleFormatError(`${where}: format ${shown(format ?? old ?? null)}, expected ${FORMAT}.`, hint);
  }
  try {
    BUNDLE(value, "");
  } catch (error) {
    if (!(error instanceof FieldError)) throw error;
    throw new BundleFormatError(`${where}: ${error.message}.`, CONVERT, error);
  }
  const bundle = value as Bundle;
  const problems = [...lacking(bundle)];
  if (problems.length) throw new BundleFormatError(`${where}: ${problems.join("; ")}.`, "Use the Python package.");
  problems.push(...problemsOf(bundle));
  if (isStepModel(bundle)) problems.push(...(await import("./step_rules.js")).stepModelProblems(bundle));
  if (problems.length) throw new BundleFormatError(`${where}: ${problems.slice(0, 5).join("; ")}.`, CONVERT);
  return bundle;
}

/** Yield what a bundle requires and this package lacks; ONNX Runtime's version is compared when it is loaded. */
function* lacking(bundle: Bundle): Iterable<string> {
  // Without an encoded source, the steps of an encoder-decoder would compute something else.
  if (bundle.document.encoder !== null) yield "an encoder-decoder, which only load_translator of Python runs";
  const format = Object.values(bundle.graphs).find((graph) => graph.format !== "onnx")?.format;
  if (format !== undefined) yield `graphs of ${format}, which need PyTorch`;
  for (const [domain, version] of Object.entries(bundle.requires.domains)) {
    if (version > (KNOWN_DOMAINS[domain] ?? 0)) yield `operators of ${escaped(domain)} ${version}, which are unknown`;
  }
}

/** Yield names of parts that are not there, and numbers out of range. Python's reader also names contradictions. */
function* problemsOf(bundle: Bundle): Iterable<string> {
  const { memory, graphs, steps, rings, settings, tokenizer } = bundle;
  const isStep = isStepModel(bundle);
  if (!isStep && !("score" in graphs)) yield "the graph score is missing";
  if ("run" in steps !== isStep) yield `vocab_size is ${bundle.model.vocab_size}, but 0 is of models with steps run`;
  for (const [name, graph] of Object.entries(graphs)) yield* graphProblems(bundle, escaped(name), graph);
  for (const [purpose, choices] of Object.entries(steps)) yield* stepProblems(bundle, escaped(purpose), choices);
  for (const entry of memory) {
    const name = `memory ${escaped(entry.input)}`;
    const free = entry.shape.slice(1).filter((axis) => typeof axis === "string");
    if (entry.shape[0] !== "batch") yield `${name} has no axis batch in front`;
    if (free.length !== (entry.layout === "ring" ? 1 : 0) || free.some((axis) => !(axis in rings))) {
      yield `${name} is a ${entry.layout} with free axes ${shown(free)}, expected those of rings`;
    }
    if (entry.layout === "window" && entry.shape.length < 3) yield `${name} is a window without rows`;
  }
  for (const [symbol, ring] of Object.entries(rings)) {
    if (ring.window_if !== null && typeof settings[ring.window_if]?.value !== "boolean") {
      yield `the window of ring ${escaped(symbol)} depends on ${escaped(ring.window_if)}, which is not a boolean setting`;
    }
  }
  const { begin = null, ends = [] } = tokenizer;
  const outside = [...ends, ...(begin ? [begin] : [])].filter(({ id }) => id >= bundle.model.vocab_size);
  if (outside.length)
    yield `tokens that begin or end a text are outside the vocabulary: ${outside.map(({ id }) => id)}`;
  yield* fileProblems(bundle);
}

/** Return whether a model maps numbers to numbers, without tokens. */
export function isStepModel({ model }: Bundle): boolean {
  return model.vocab_size === 0;
}

/** Yield contradictions of the graphs of a step. */
function* stepProblems({ graphs }: Bundle, purpose: string, choices: readonly Choice[]): Iterable<string> {
  const unknown = choices.filter(({ graph }) => !(graph in graphs));
  if (unknown.length) yield `steps of ${purpose} name missing graphs: ${listed(unknown.map(({ graph }) => graph))}`;
  const listing = ({ graph }: Choice): string => {
    const outputs = Object.entries(graphs[graph]?.outputs ?? {});
    return String(outputs.map(([name, { dtype, shape }]) => JSON.stringify([name, dtype, shape])).sort());
  };
  if (new Set(choices.map(listing)).size > 1) yield `steps of ${purpose} are graphs with different outputs`;
}

/** Yield contradictions of a graph's inputs, and memory among its outputs. */
function* graphProblems(bundle: Bundle, name: string, graph: Graph): Iterable<string> {
  for (const [input, { feed, ring, setting }] of Object.entries(graph.inputs)) {
    const isThere =
      (feed !== "input" || isStepModel(bundle)) &&
      (feed !== "constant" || input in (bundle.graphs["positions"]?.outputs ?? {})) &&
      (feed !== "memory" || bundle.memory.some((entry) => entry.input === input)) &&
      (ring === undefined || ring in bundle.rings) &&
      (setting === undefined || setting in bundle.settings) &&
      feed !== "source" &&
      (name !== "positions" || feed === "slots" || feed === "setting");
    if (!isThere) yield `input ${escaped(input)} of graph ${name} takes a ${feed} that is not there`;
  }
  const carried = bundle.memory.find(({ output }) => output in graph.outputs);
  if (carried !== undefined) yield `graph ${name} lists the memory ${escaped(carried.output)} among its outputs`;
}

/** Yield files whose names leave the folder, and files that are used but not listed. */
function* fileProblems(bundle: Bundle): Iterable<string> {
  for (const name of Object.keys(bundle.files)) {
    const isPlain = !/[/\\:\p{C}]|[^\P{Z} ]/u.test(name) && !["", ".", ".."].includes(name);
    if (!isPlain || new TextEncoder().encode(name).length > 255)
      yield `${shown(name)} is not the name of a file in a bundle`;
  }
  const used = new Set(Object.values(bundle.graphs).map((graph) => graph.file));
  for (const name of [bundle.tokenizer.file, bundle.tokenizer.bpe ?? null]) if (name !== null) used.add(name);
  if (bundle.memory.some((entry) => entry.first_value !== null)) used.add(FIRST_MEMORY_FILE);
  const unlisted = [...used].filter((name) => !(name in bundle.files));
  if (unlisted.length) yield `files are used but not listed: ${listed(unlisted)}`;
}

/** Compare names by their bytes in UTF-8. */
export function byBytes(a: string, b: string): number {
  const [x, y] = [new TextEncoder().encode(a), new TextEncoder().encode(b)];
  const at = x.findIndex((byte, index) => byte !== y[index]);
  return at < 0 ? x.length - y.length : (x[at] as number) - (y[at] ?? -1);
}

/** What a page can show while a bundle is loading: bytes so far, and of all files. */
export interface Progress {
  file: string;
  loaded: number;
  total: number;
}

/** The files of one bundle: read, and compared with their digests, each time that they are used. */
export class BundleFiles {
  readonly where: string;
  readonly #kept = new Map<string, Uint8Array<ArrayBuffer>>();

  private constructor(
    private readonly source: Source,
    readonly bundle: Bundle,
    /** The SHA-256 of `bundle.json`. */
    readonly digest: string,
    private readonly check: boolean,
  ) {
    this.where = source.where;
  }

  /**
   * Read the manifest, and check the files that it lists.
   *
   * @param digest - the expected SHA-256 of `bundle.json`; null: any.
   * @param check - whether files are compared with their digests.
   * @throws BundleNotFoundError - there is no manifest.
   * @throws BundleMismatchError - the manifest is not the expected one.
   * @throws BundleFormatError - the manifest is of another format, or malformed.
   * @throws BundleDamagedError - files are missing or changed; lists all of them.
   */
  static async open(
    source: Source,
    digest: string | null,
    check: boolean,
    report: (progress: Progress) => void,
  ): Promise<BundleFiles> {
    const manifest = `${source.where}/${MANIFEST}`;
    const raw = await source.read(MANIFEST, LARGEST_MANIFEST);
    if (raw === null) {
      throw new BundleNotFoundError(
        `${source.where}: no ${MANIFEST} in it, so not a bundle.`,
        "Make one with `xlexport convert CHECKPOINT`.",
      );
    }
    const found = await sha256(raw);
    const line = await source.read(DIGEST, LARGEST_DIGEST);
    const stated = line && new TextDecoder().decode(line).split(" ", 1)[0];
    if (stated !== null && stated !== found) {
      throw new BundleDamagedError(`${manifest}: was changed, ${DIGEST} has another SHA-256.`, COPY);
    }
    if (digest !== null && digest !== found) {
      throw new BundleMismatchError(
        `${manifest}: its SHA-256 is ${found}, expected ${shown(digest)}.`,
        "Use the bundle that this application was made with.",
      );
    }
    const files = new BundleFiles(source, await readManifest(raw, manifest), found, check);
    if (stated === null) throw new BundleDamagedError(`${source.where}: ${DIGEST} is missing.`, COPY);
    if (check) await files.#checkAll(report);
    return files;
  }

  /** Return the place of a file, for messages. */
  place(name: string): string {
    return `${this.where}/${name}`;
  }

  /**
   * Return the content of a file.
   *
   * @throws BundleDamagedError - the file is missing, or not the one of its digest.
   */
  async read(name: string): Promise<Uint8Array<ArrayBuffer>> {
    const content = this.#kept.get(name) ?? (await this.#fresh(name));
    if (typeof content === "string") throw new BundleDamagedError(`${this.where}: ${content}.`, COPY);
    return content;
  }

  async #checkAll(report: (progress: Progress) => void): Promise<void> {
    const total = Object.values(this.bundle.files).reduce((sum, { size }) => sum + size, 0);
    let loaded = 0;
    const problems: string[] = [];
    for (const file of Object.keys(this.bundle.files)) {
      const content = await this.#fresh(file, (bytes) => report({ file, loaded: (loaded += bytes), total }));
      if (typeof content === "string") problems.push(content);
    }
    if (problems.length) throw new BundleDamagedError(`${this.where}: ${problems.join("; ")}.`, COPY);
  }

  /** Return the content of a file, or the problem of it. */
  async #fresh(name: string, progress?: (bytes: number) => void): Promise<Uint8Array<ArrayBuffer> | string> {
    const { size, sha256: digest } = this.bundle.files[name] as Bundle["files"][string];
    const content = await this.source.read(name, this.check ? size : Number.MAX_SAFE_INTEGER, progress);
    if (content === null) return `${name} is missing`;
    if (this.check && content.length !== size) {
      return `${name} has ${content.length > size ? `more than ${size}` : content.length} bytes, expected ${size}`;
    }
    if (this.check && (await sha256(content)) !== digest) return `${name} was changed (its SHA-256 differs)`;
    if (this.source.keep) this.#kept.set(name, content);
    return content;
  }
}
