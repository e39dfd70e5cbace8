// Play the cases of a conformance kit, in Node or in a browser, and compare what they give with what is expected.
//
// The kit and its actions are described in tests/conformance/README.md of the repository.

const CODE = "utf-8";
const COUNTS = [
  "tokens",
  "scored_tokens",
  "unknown_tokens",
  "words",
  "chars",
  "bytes",
  "dropped_chars",
  "dropped_bytes",
];
const TOTALS = ["nats", "bits", "bits_per_byte", "bits_per_char", "bits_per_token", "perplexity"];
const COLUMNS = ["index", "tokens", "log_probs", "context"];
const ARRAYS = {
  ...{ float32: Float32Array, bool: Uint8Array, int8: Int8Array, int16: Int16Array, int32: Int32Array },
  ...{ int64: BigInt64Array, uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array },
};
const COMPUTED = new Set(["log_probs", "entropy", "top_log_probs", "totals"]);

/** One case while it is played: the open bundle, its streams and the states that they have saved. */
export class Player {
  /**
   * @param xlruntime - the package.
   * @param kit - how the kit is read: `list(folder)` names files, `read(path)` returns bytes, `state(name)` a state of
   *     another runtime or null.
   * @param options - of `load`.
   */
  constructor(xlruntime, kit, options = {}) {
    this.xlruntime = xlruntime;
    this.kit = kit;
    this.options = { onWarning: () => undefined, ...options };
    this.model = null;
    this.streams = new Map();
    this.states = new Map();
  }

  async play(action) {
    return this[`do_${action.do}`](action);
  }

  /** Free what the case holds on a GPU. */
  async end() {
    for (const stream of this.streams.values()) await stream.close();
    await this.model?.release();
  }

  async do_open({ bundle, files = {}, digest = null }) {
    const found = new Map();
    for (const name of await this.kit.list(`bundles/${bundle}`)) {
      if (!(name in files)) found.set(name, await this.kit.read(`bundles/${bundle}/${name}`));
    }
    for (const [name, path] of Object.entries(files)) if (path !== null) found.set(name, await this.kit.read(path));
    await this.end();
    const source = new this.xlruntime.FilesSource(found, bundle);
    this.model = await this.xlruntime.load(source, { ...this.options, digest });
    const { fingerprint, digest: own } = this.model;
    const { model, graphs } = this.model.bundle;
    return { vocab_size: model.vocab_size, fingerprint, graphs: Object.keys(graphs).sort(), digest: own };
  }

  async do_check() {
    const { passed, tokens } = await this.model.check();
    return { passed, tokens };
  }

  async do_encode({ text }) {
    return { ids: this.model.tokenizer.encode(await this.source(text)) };
  }

  async do_decode({ ids }) {
    return { text: this.model.tokenizer.decode(ids) };
  }

  async do_score({ document, settings = {}, detail = null, bos = null }) {
    const parts = [];
    const documents = [{ name: "the document", source: await this.source(document) }];
    for await (const part of this.model.scoreTokens(documents, { top: detail, bos, ...settings })) parts.push(part);
    const places = parts.every((part) => part.starts !== null) ? ["starts", "ends"] : [];
    const detailed = detail === null ? [] : ["rank", "entropy", "top_ids", "top_log_probs"];
    const found = columns([...COLUMNS, ...places, ...detailed], parts);
    const { summary } = parts.at(-1);
    found.counts = mapped(COUNTS, summary);
    found.totals = mapped(TOTALS, summary);
    if (found.totals.perplexity === Infinity) found.totals.perplexity = "Infinity";
    return found;
  }

  async do_stream({ as, settings = {}, capacity = null, rows = 1 }) {
    const stream = this.isStepModel
      ? await this.model.stepStream({ ...settings, rows })
      : await this.model.stream({ ...settings, ...(capacity === null ? {} : { capacity }) });
    this.streams.set(as, stream);
    return { capacity: stream.capacity };
  }

  async do_feed({ stream, piece }) {
    return columns(COLUMNS, [await this.streams.get(stream).feed(await this.source(piece))]);
  }

  async do_run({ stream, inputs }) {
    const { inputs: feeds, outputs } = this.model.bundle.graphs.run;
    const given = Object.entries(inputs).map(([name, values]) => [name, arrayOf(feeds[name]?.dtype, flat(values))]);
    const found = await this.streams.get(stream).run(Object.fromEntries(given));
    const lists = Object.entries(found).map(([name, array]) => {
      const plain = outputs[name].dtype === "bool" ? Boolean : Number;
      return [name, { isFloat: outputs[name].dtype.startsWith("float"), values: Array.from(array, plain) }];
    });
    return { outputs: Object.fromEntries(lists) };
  }

  async do_score_continuation({ stream, piece }) {
    return columns(COLUMNS, [await this.streams.get(stream).scoreContinuation(await this.source(piece))]);
  }

  /** Feed pieces, pass the stream through a saved state, and flush it: how much is held differs by runtime. */
  async do_grow({ stream, pieces }) {
    const parts = [];
    for (const piece of pieces) parts.push(await this.streams.get(stream).feed(await this.source(piece)));
    this.streams.set(stream, await this.model.restore(await this.streams.get(stream).save()));
    parts.push(await this.streams.get(stream).flush());
    return columns(COLUMNS, parts);
  }

  async do_fork({ stream, as }) {
    this.streams.set(as, await this.streams.get(stream).fork());
    return { position: this.streams.get(as).position };
  }

  async do_reset({ stream, row = null }) {
    await this.streams.get(stream).reset(row);
    return { position: this.streams.get(stream).position };
  }

  async do_generate({ stream, prompt = null, max_tokens, sampling, settings = {} }) {
    const { seed = null, ignore_eos: ignoreEos = false, ...others } = sampling;
    const rule = { seed: typeof seed === "string" ? BigInt(seed) : seed };
    for (const [name, value] of Object.entries(others)) rule[camelCase(name)] = value;
    const options = { maxTokens: max_tokens, sampling: rule, ignoreEos };
    const given = prompt === null ? null : await this.source(prompt);
    const ids = [];
    const drawn = stream
      ? this.streams.get(stream).generate(given, options)
      : this.model.generate(given, { ...options, ...settings });
    for await (const id of drawn) ids.push(id);
    return { ids };
  }

  /** Save a stream for other runtimes; how much text it holds is not compared. */
  async do_leave({ stream, as }) {
    this.states.set(as, await this.streams.get(stream).save());
    return {};
  }

  async do_save({ stream, as, same_as = as }) {
    const raw = await this.streams.get(stream).save();
    this.states.set(as, raw);
    const size = Number(new DataView(raw.buffer).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder(CODE).decode(raw.subarray(8, 8 + size)));
    const { __metadata__: metadata, ...tensors } = header;
    const { digest: _, ...texts } = metadata;
    const kinds = Object.entries(tensors).map(([name, { dtype, shape }]) => [name, [dtype, shape]]);
    const same = this.states.get(same_as).toString() === raw.toString();
    return { metadata: texts, tensors: Object.fromEntries(kinds), same };
  }

  async do_restore({ state, as, capacity = null }) {
    const raw =
      this.states.get(state) ?? (await this.kit.state?.(state)) ?? (await this.kit.read(`states/${state}.safetensors`));
    const stream = this.isStepModel
      ? await this.model.restoreStepStream(raw)
      : await this.model.restore(raw, capacity === null ? {} : { capacity });
    this.streams.set(as, stream);
    return { position: stream.position };
  }

  get isStepModel() {
    return this.model.bundle.model.vocab_size === 0;
  }

  async source(given) {
    if ("base64" in given) return Uint8Array.from(atob(given.base64), (one) => one.charCodeAt(0));
    if ("file" in given) return this.kit.read(given.file);
    return given.ids ?? given.text;
  }
}

/**
 * Play a case, and return its problems, the largest difference, and what was left out.
 *
 * An exception is a problem of the case, and so is one when the case ends.
 *
 * @param within - allowed difference of log-probabilities and entropies, in nats; of totals, relative. That of a case
 *     with low precision holds if it is wider.
 * @param withinBits - allowed difference of documents in bits per token.
 * @param keep - is called with the name and the content of states that the case saves.
 */
export async function runCase(xlruntime, kit, name, { within, withinBits, keep = null, options = {} }) {
  const compared = { problems: [], largest: 0, largestBits: 0, leftOut: new Set(), lowPrecision: false };
  Object.assign(compared, { within, totals: within, withinBits });
  const player = new Player(xlruntime, kit, options);
  let where = name;
  try {
    const { actions, within: own } = JSON.parse(new TextDecoder(CODE).decode(await kit.read(`cases/${name}.json`)));
    if (own) widen(compared, own);
    for (const [number, action] of actions.entries()) {
      where = `${name}, action ${number} (${action.do})`;
      await playAction(xlruntime, player, action, where, compared, keep);
    }
  } catch (error) {
    compared.problems.push(`${where}: ${describe(error)}`);
  }
  try {
    await player.end();
  } catch (error) {
    compared.problems.push(`${name}, its end: ${describe(error)}`);
  }
  return compared;
}

async function playAction(xlruntime, player, action, where, compared, keep) {
  let found;
  try {
    found = await player.play(action);
  } catch (error) {
    const wanted = action.error;
    if (!wanted || !(error instanceof xlruntime.XlruntimeError)) throw error;
    if (error.code !== wanted.code) compared.problems.push(`${where}: ${describe(error)}; expected ${wanted.code}`);
    return;
  }
  if (action.error) compared.problems.push(`${where}: nothing was refused, expected ${action.error.code}`);
  else compare(action.expect, found, where, compared);
  if (action.keep && keep) await keep(action.keep, player.states.get(action.as));
}

/** Return the class, the code and the message of what was thrown, which WebAssembly lets be a number. */
function describe(error) {
  return error instanceof Error
    ? `${error.name}${error.code ? ` (${error.code})` : ""}: ${error.message}`
    : `Error: ${error}`;
}

/** Take the bounds of a case with low precision; the mean of a document is no further off than its tokens. */
function widen(compared, { nats, totals }) {
  compared.lowPrecision = true;
  compared.withinBits = Math.max(compared.withinBits, nats * Math.LOG2E);
  compared.totals = Math.max(compared.within, totals);
  compared.within = Math.max(compared.within, nats);
}

function compare(expected, found, where, compared) {
  for (const [name, value] of Object.entries(expected)) {
    if (!(name in found)) {
      if (name === "starts" || name === "ends") compared.leftOut.add("places of tokens");
      else compared.problems.push(`${where}: ${name} is missing`);
    } else if (COMPUTED.has(name)) {
      numbers(value, found[name], `${where}: ${name}`, name === "totals", compared);
      if (name === "totals") bitsPerToken(value, found[name], where, compared);
    } else if (name === "outputs") {
      for (const [output, values] of Object.entries(value)) {
        const { isFloat = false, values: others = null } = found.outputs[output] ?? {};
        const place = `${where}: ${output}`;
        if (!isFloat) equal(values, others, place, compared);
        else numbers(flat(values).map(Math.fround), others, place, true, compared, true);
      }
    } else if (name === "top_ids") {
      likeliest(expected, found, `${where}: ${name}`, compared);
    } else {
      equal(value, found[name], `${where}: ${name}`, compared);
    }
  }
}

function equal(expected, found, where, compared) {
  if (JSON.stringify(flat(expected)) === JSON.stringify(flat(found))) return;
  compared.problems.push(`${where} is ${short(found)}, expected ${short(expected)}`);
}

function numbers(expected, found, where, relative, compared, counts = !relative) {
  const [wanted, given] = [flat(expected), flat(found)];
  if (wanted.length !== given.length || wanted.some((value, at) => !isSame(value, given[at]))) {
    compared.problems.push(`${where} is ${short(found)}, expected ${short(expected)}`);
    return;
  }
  let largest = 0;
  wanted.forEach((value, at) => {
    if (typeof value !== "number") return;
    // Expected numbers are the shortest decimals of float32.
    const difference = Math.abs((relative ? value : Math.fround(value)) - given[at]);
    const bounded = difference / (relative ? Math.max(1, Math.abs(value)) : 1);
    if (!(bounded <= largest)) largest = Number.isNaN(bounded) ? Infinity : bounded;
  });
  if (counts) compared.largest = Math.max(compared.largest, largest);
  const allowed = relative ? compared.totals : compared.within;
  if (!(largest <= allowed)) {
    compared.problems.push(`${where} differs by up to ${largest}, allowed ${allowed}`);
  }
}

/** Compare the mean of a document, in which differences of tokens that are not biased cancel out. */
function bitsPerToken(expected, found, where, compared) {
  if (typeof expected.bits_per_token !== "number") return;
  const difference = Math.abs(expected.bits_per_token - found.bits_per_token);
  compared.largestBits = Math.max(compared.largestBits, difference);
  if (difference <= compared.withinBits) return;
  compared.problems.push(`${where}: bits per token differ by ${difference}, allowed ${compared.withinBits}`);
}

/** Return whether both are numbers, or else equal. */
function isSame(a, b) {
  return typeof a === "number" ? typeof b === "number" : a === b;
}

/** Compare lists of ids. Equally likely ones, up to rounding, may be in another order. */
function likeliest(expected, found, where, compared) {
  expected.top_ids.forEach((wanted, place) => {
    const [given, values] = [found.top_ids[place], expected.top_log_probs[place]];
    const near = (a, b) => Math.abs(values[a] - values[b]) <= 2 * compared.within;
    const wrong = wanted.some((id, rank) => {
      if (id === given[rank] || near(rank, values.length - 1)) return false;
      return !wanted.some((other, at) => near(rank, at) && other === given[rank]);
    });
    if (wrong) compared.problems.push(`${where}: place ${place} has ${given}, expected ${wanted}`);
  });
}

/** Return columns of parts of scores, under the names of the kit. */
function columns(names, parts) {
  const plain = (value) => (ArrayBuffer.isView(value) ? Array.from(value) : value);
  const column = (name) => parts.flatMap((part) => Array.from(part[camelCase(name)], plain));
  return Object.fromEntries(names.map((name) => [name, column(name)]));
}

/** Return the array of an input; if it cannot hold the values, one of a type that no input has. */
function arrayOf(dtype, values) {
  const isBool = dtype === "bool";
  const fits = values.every((value) => typeof value === (isBool ? "boolean" : "number"));
  if (!fits || !(dtype in ARRAYS) || (/int/.test(dtype) && !values.every(Number.isInteger))) return new Float64Array(1);
  const array = ARRAYS[dtype].from(values, dtype.endsWith("64") ? BigInt : Number);
  return dtype === "float32" || values.every((value, at) => Number(array[at]) === Number(value))
    ? array
    : new Float64Array(1);
}

function mapped(names, object) {
  return Object.fromEntries(names.map((name) => [name, object[camelCase(name)]]));
}

function camelCase(name) {
  return name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
}

function flat(value) {
  if (Array.isArray(value)) return value.flatMap(flat);
  if (value !== null && typeof value === "object")
    return Object.keys(value)
      .sort()
      .flatMap((name) => flat(value[name]));
  return [value];
}

function short(value) {
  const text = JSON.stringify(value);
  return text.length <= 100 ? text : `${text.slice(0, 100)}…`;
}
