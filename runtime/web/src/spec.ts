/** `bundle.json`: the single source of truth about a bundle. Fields have the names of the file. */

import { checkKind, type Axis } from "./arrays.js";
import { EVALUATION, type EvaluationRules } from "./evaluation.js";
import { anything, choice, either, FieldError, list, map, nothing, readFields, record, text, whole } from "./fields.js";
import { BundleError } from "./errors.js";
import { textSha256 } from "./digest.js";
import { dumps, isObject, parse, type Json, type JsonObject } from "./json.js";
import { Budget, type Limits } from "./limits.js";
import { contradictions } from "./contradictions.js";
import { firstLine, isPrintable, named, quoted, shown } from "./messages.js";

/** The version of the format that this package reads. */
export const FORMAT_VERSION = 3;
/** The key of a graph's spec in the file's metadata. */
export const METADATA_KEY = "xlexport.graph";
const DIGEST_KEY = "manifest_sha256";
export const FIRST_MEMORY_FILE = "first_memory.safetensors";
const DESCRIPTIONS = ["README.md", "parity.json", "quantization.json"]; // for people; nothing runs them
const COMPUTING = [".onnx", ".data", ".pt", ".pt2", ".safetensors"];
export const MANIFEST_LIMITS: Limits = { bytes: 2 ** 26, operations: 1_000_000 };
const LONGEST_NAME = 255; // bytes
const LARGEST_FILE = 2 ** 62;
const CONVERT = "Convert it again.";

/** One input or output of a graph. */
export interface Tensor {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly Axis[];
}

/** One carried tensor: the input of a step graph that takes it, and the output with its next value. */
export interface Memory {
  readonly input: string;
  readonly output: string;
  readonly dtype: string;
  readonly shape: readonly Axis[];
  readonly first_value: string | null;
  readonly layout: "ring" | "window" | "state";
}

/** One graph of the bundle; `inputs` and `outputs` are complete, memory included. */
export interface Graph {
  readonly file: string;
  readonly inputs: readonly Tensor[];
  readonly outputs: readonly Tensor[];
  readonly max_segment: number | null;
  readonly format: "onnx" | "torchscript" | "exported-program";
}

/** The tokenizer of a bundle. */
export interface TokenizerSpec {
  readonly kind: "bytes" | "vocabulary" | "tokenizers" | "sentencepiece" | "none";
  readonly file: string | null;
  readonly first_id: number;
}

/** Size and SHA-256 that a file of the bundle must have. */
export interface FileDigest {
  readonly sha256: string;
  readonly size: number;
}

/** The manifest of a bundle. */
export interface Bundle {
  readonly architecture: string;
  readonly config: JsonObject;
  readonly vocab_size: number;
  readonly tokenizer: TokenizerSpec;
  readonly precision: string;
  readonly evaluation: EvaluationRules;
  readonly memory: readonly Memory[];
  readonly graphs: Readonly<Record<string, Graph>>;
  readonly provenance: JsonObject;
  readonly files: Readonly<Record<string, FileDigest>>;
  readonly format_version: number;
}

const shape = list(either(whole, text));

const TENSOR = record({ name: { kind: text }, dtype: { kind: text }, shape: { kind: shape } }, (tensor: Tensor) => {
  checkKind(tensor.name, tensor.dtype, tensor.shape);
  return tensor;
});

const MEMORY = record(
  {
    input: { kind: text },
    output: { kind: text },
    dtype: { kind: text },
    shape: { kind: shape },
    first_value: { kind: either(text, nothing), otherwise: null },
    layout: { kind: choice("ring", "window", "state"), otherwise: "ring" },
  },
  (entry: Memory) => {
    checkKind(entry.input, entry.dtype, entry.shape);
    return entry;
  },
);

const GRAPH = record(
  {
    file: { kind: text },
    inputs: { kind: list(TENSOR) },
    outputs: { kind: list(TENSOR) },
    max_segment: { kind: either(whole, nothing), otherwise: null },
    format: { kind: choice("onnx", "torchscript", "exported-program"), otherwise: "onnx" },
  },
  (graph: Graph) => {
    if (graph.max_segment !== null && graph.max_segment < 1) {
      throw new FieldError(`max_segment is ${graph.max_segment}, expected a whole number of at least 1`);
    }
    for (const [what, tensors] of [
      ["inputs", graph.inputs],
      ["outputs", graph.outputs],
    ] as const) {
      if (new Set(tensors.map((tensor) => tensor.name)).size < tensors.length) {
        throw new FieldError(`${what} of ${named(graph.file)} have the same name`);
      }
    }
    return graph;
  },
);

const TOKENIZER = record(
  {
    kind: { kind: choice("bytes", "vocabulary", "tokenizers", "sentencepiece", "none") },
    file: { kind: either(text, nothing), otherwise: null },
    first_id: { kind: whole, otherwise: 0 },
  },
  (tokenizer: TokenizerSpec) => {
    if (tokenizer.first_id < 0) {
      throw new FieldError(`first_id is ${tokenizer.first_id}, expected a whole number of at least 0`);
    }
    if ((tokenizer.file === null) !== ["bytes", "none"].includes(tokenizer.kind)) {
      const file = tokenizer.file === null ? "None" : named(tokenizer.file);
      throw new FieldError(`tokenizer '${tokenizer.kind}' with file ${file}: only bytes and none have no file`);
    }
    if (tokenizer.file === "") throw new FieldError("the tokenizer's file has no name");
    return tokenizer;
  },
);

const FILE_DIGEST = record({ sha256: { kind: text }, size: { kind: whole } }, (digest: FileDigest) => {
  if (!/^[0-9a-f]{64}$/.test(digest.sha256) || digest.size < 0 || digest.size > LARGEST_FILE) {
    throw new FieldError(
      `${quoted(digest.sha256.slice(0, 70))} and ${shown(digest.size)} bytes, expected a SHA-256 and a size`,
    );
  }
  return digest;
});

const BUNDLE = record({
  architecture: { kind: text },
  config: { kind: map(anything) },
  vocab_size: { kind: whole },
  tokenizer: { kind: TOKENIZER },
  precision: { kind: text },
  evaluation: { kind: EVALUATION },
  memory: { kind: list(MEMORY) },
  graphs: { kind: map(GRAPH) },
  provenance: { kind: map(anything) },
  files: { kind: map(FILE_DIGEST) },
  format_version: { kind: whole, otherwise: FORMAT_VERSION },
});

/**
 * Read `bundle.json`.
 *
 * @param raw - content of the file.
 * @param where - its place, for messages.
 * @throws BundleError - the text is not a manifest, of another format version, or changed; or a field is wrong.
 */
export async function readBundle(raw: Uint8Array, where: string): Promise<Bundle> {
  const fields = parseJson(raw, new Budget(MANIFEST_LIMITS, where, BundleError), "Convert the checkpoint again.");
  if (!isObject(fields) || !["number", "bigint"].includes(typeof fields["format_version"])) {
    throw new BundleError(`${where}: no integer format_version, so not a bundle that xlexport wrote.`);
  }
  const found = Number(fields["format_version"]);
  if (found > FORMAT_VERSION) {
    throw new BundleError(
      `${where}: format version ${found} is newer than ${FORMAT_VERSION}, the newest that this package reads.`,
      "Install a newer xlruntime, or convert the checkpoint again.",
    );
  }
  if (found < FORMAT_VERSION) {
    throw new BundleError(
      `${where}: format version ${found} is of an earlier xlexport, this one reads ${FORMAT_VERSION}.`,
      `Convert the checkpoint again: xlexport convert ${sourceOf(fields)} -o bundle --force${precisionOf(fields)}`,
    );
  }
  const stated = fields[DIGEST_KEY];
  delete fields[DIGEST_KEY];
  if (stated !== undefined && stated !== null && stated !== (await textSha256(dumps(fields, { sortKeys: true })))) {
    throw new BundleError(
      `${where}: was changed since it was written (its ${DIGEST_KEY} differs).`,
      `Copy it again; if you changed it on purpose, remove ${DIGEST_KEY}.`,
    );
  }
  // Without an encoded source, the steps of an encoder-decoder would compute something else.
  if ((fields["encoder"] ?? null) !== null) {
    throw new BundleError(
      `${where}: an encoder-decoder, which this package does not run.`,
      "Run it with the Python package: xlexport translate, or xlruntime.load_translator.",
    );
  }
  delete fields["encoder"];
  let bundle: Bundle;
  try {
    bundle = readFields(BUNDLE, fields);
  } catch (error) {
    if (!(error instanceof FieldError)) throw error;
    throw new BundleError(`${where}: a field is missing or malformed (${error.message}).`, CONVERT, error);
  }
  checkBundle(bundle, where);
  return bundle;
}

/** Refuse contradictions, file names that leave the folder, and files that are used but not listed. */
function checkBundle(bundle: Bundle, where: string): void {
  const problems = [...contradictions(bundle)];
  if (problems.length) throw new BundleError(`${where}: ${problems.join("; ")}.`, CONVERT);
  const outside = Object.keys(bundle.files).filter((name) => !isFileName(name));
  if (outside.length) {
    const names = outside.map(quoted).join(", ").slice(0, 200);
    throw new BundleError(`${where}: file names must stay inside the bundle, found [${names}].`);
  }
  const used = new Set(Object.values(bundle.graphs).map((graph) => graph.file));
  if (bundle.tokenizer.file !== null) used.add(bundle.tokenizer.file);
  if (bundle.memory.some((entry) => entry.first_value !== null)) used.add(FIRST_MEMORY_FILE);
  const guarded = new Set(Object.keys(guardedFiles(bundle)));
  const unlisted = [...used].filter((name) => !guarded.has(name)).sort();
  if (unlisted.length) {
    throw new BundleError(`${where}: files are used but have no digest: ${named(unlisted.join(", "))}.`, CONVERT);
  }
}

/** Return the files that must be those of their digests: all but descriptions, which people may edit. */
export function guardedFiles(bundle: Bundle): Record<string, FileDigest> {
  return Object.fromEntries(Object.entries(bundle.files).filter(([name]) => !DESCRIPTIONS.includes(name)));
}

/** Return the identity of this bundle's numbers: a digest of graphs, weights and first rows, not of other files. */
export async function fingerprint(bundle: Bundle): Promise<string> {
  const computing = Object.entries(bundle.files).filter(([name]) => COMPUTING.some((end) => name.endsWith(end)));
  const digests = Object.fromEntries(computing.map(([name, digest]) => [name, digest.sha256]));
  return textSha256(dumps(digests, { sortKeys: true }));
}

/** Return the text that a graph's file has as metadata: this spec, and which outputs become which inputs. */
export function graphMetadata(graph: Graph, memory: readonly Memory[]): string {
  const taken = new Set(graph.inputs.map((tensor) => tensor.name));
  const carried = memory.filter((entry) => taken.has(entry.input)).map((entry) => withoutImplied(entry));
  return dumps({ ...withoutImplied(graph), memory: carried } as JsonObject, { compact: true });
}

/** Parse a JSON text in UTF-8 within a budget: its brackets, commas and colons are counted before it is read. */
export function parseJson(raw: Uint8Array, budget: Budget, repair: string): Json {
  let [lists, objects, others] = [0, 0, 0];
  for (const byte of raw) {
    if (byte === 0x5b) lists += 1;
    else if (byte === 0x7b) objects += 1;
    else if (byte === 0x2c || byte === 0x3a) others += 1;
  }
  budget.charge(72 * lists + 232 * objects + 100 * others + 2 * raw.length, lists + objects + others);
  try {
    return parse(new TextDecoder("utf-8", { fatal: true }).decode(raw));
  } catch (error) {
    throw new budget.error(`${budget.name}: not valid JSON (${firstLine(error)}).`, repair, error);
  }
}

/** Return the fields of a graph or memory, without defaults that manifest and metadata leave out. */
function withoutImplied(value: Graph | Memory): JsonObject {
  const implied: Record<string, unknown> = { layout: "ring", max_segment: null, format: "onnx" };
  const kept = Object.entries(value).filter(([name, one]) => !(name in implied && implied[name] === one));
  return Object.fromEntries(kept) as JsonObject;
}

function isFileName(name: string): boolean {
  const inside = !name.includes("/") && !["", ".", ".."].includes(name);
  return inside && isPrintable(name) && new TextEncoder().encode(name).length <= LONGEST_NAME;
}

/** Return the name of the checkpoint, if a manifest of another version has it. */
function sourceOf(fields: JsonObject): string {
  const provenance = fields["provenance"];
  const sources = isObject(provenance) ? provenance["sources"] : null;
  const names = isObject(sources) ? Object.keys(sources) : [];
  const source = names.length === 1 && isPrintable(names[0] as string) ? (names[0] as string) : "CHECKPOINT";
  return /^[\w@%+=:,./-]+$/.test(source) ? source : `'${source.replaceAll("'", `'"'"'`)}'`;
}

function precisionOf(fields: JsonObject): string {
  const precision = fields["precision"];
  const known = ["float16", "int8", "weight-int8", "weight-int4"];
  return typeof precision === "string" && known.includes(precision) ? ` --dtype ${precision}` : "";
}
