/** Evaluation settings: how documents are cut into steps, and the sizes of the rings, as whole numbers. */

import { OptionError, TooLongError } from "./errors.js";
import { either, list, object, oneOf, orNull, record, text, truth, whole, type Checked } from "./fields.js";
import { counted, escaped, listed, shown } from "./messages.js";

/** Of any setting, in tokens: larger than any machine's memory, and far from overflowing. */
export const LARGEST_LENGTH = 2 ** 30;
/** "No window": larger than any distance, and safe to add to in int64. */
export const UNLIMITED = 2 ** 62;

const NUMBER = whole(-LARGEST_LENGTH, LARGEST_LENGTH);
const VALUE = either((value) => typeof value === "boolean", truth, NUMBER);
const BOUND = orNull(NUMBER);
const FACTORS = list(NUMBER, 3); // of mem_len, of segment_len, and a constant

/** The check of a setting in the manifest. */
export const SETTING = record({ value: VALUE, meaning: text, minimum: BOUND, maximum: BOUND, off: BOUND });
/** The check of a ring in the manifest. */
export const RING = record({ rows: FACTORS, slots: FACTORS, window: orNull(FACTORS), window_if: orNull(text) });
/** The check of what the manifest says of documents. */
export const DOCUMENT = record({
  segment_len: whole(1, LARGEST_LENGTH),
  max_positions: orNull(whole(1, LARGEST_LENGTH)),
  restart: truth,
  full_document: truth,
  bidirectional: truth,
  fresh_memory: oneOf("empty", "zeros"),
  encoder: orNull(object),
});

/** A setting: its value, its meaning, and its range. */
export type Setting = Checked<typeof SETTING>;
export type SettingValue = Setting["value"];
/** The rings of one capacity: numbers that stand for a · `mem_len` + b · `segment_len` + c. */
export type Ring = Checked<typeof RING>;
/** The parts of a manifest that decide how documents are read. */
export interface EvaluationRules {
  readonly document: Checked<typeof DOCUMENT>;
  readonly settings: Readonly<Record<string, Setting>>;
  readonly rings: Readonly<Record<string, Ring>>;
}

/**
 * Refuse options that nothing reads, such as misspelt ones.
 *
 * @param others - the options that remain after all known ones were taken.
 * @param known - the names of these, for the message.
 * @throws OptionError - there are others.
 */
export function refuseOthers(what: string, others: object, known: string): void {
  const names = Object.keys(others);
  if (names.length) throw new OptionError(`${what}: no option ${listed(names)}, expected ${known}.`);
}

/** Settings that a caller chooses; null keeps the bundle's own value. */
export interface Settings {
  segment_len?: number | null;
  mem_len?: number | null;
}

/** The values of all settings, as a bundle or a saved stream has them. */
export interface Choice {
  readonly segmentLen: number;
  readonly restart: boolean;
  readonly values: Readonly<Record<string, SettingValue>>;
}

/** The sizes of the rings of one symbol. */
export interface RingSizes {
  /** Kept rows of earlier segments. */
  readonly rows: number;
  readonly slots: number;
  /** Most keys that a query sees, itself included. */
  readonly window: number;
}

/**
 * Return the settings of a bundle with the chosen values.
 *
 * @throws OptionError - the bundle has no such setting, it cannot be chosen here, or a value is out of range.
 */
export function choose(rules: EvaluationRules, settings: Settings = {}): EvaluationSettings {
  const { segment_len: segmentLen, ...others } = settings;
  const values = Object.fromEntries(Object.entries(rules.settings).map(([name, { value }]) => [name, value]));
  for (const [name, value] of Object.entries(others)) {
    if (value === null || value === undefined) continue;
    if (name !== "mem_len" || !("mem_len" in rules.settings)) {
      const known = "mem_len" in rules.settings ? "segment_len or mem_len" : "segment_len";
      const hint = "Write a bundle with other values: xlexport configure.";
      throw new OptionError(`no setting ${escaped(name)} to choose, expected ${known}.`, hint);
    }
    values[name] = value;
  }
  const { segment_len: own, restart } = rules.document;
  return new EvaluationSettings(rules, { segmentLen: segmentLen ?? own, restart, values });
}

/** The settings of one document or stream. */
export class EvaluationSettings implements Choice {
  readonly segmentLen: number;
  readonly restart: boolean;
  readonly values: Readonly<Record<string, SettingValue>>;
  readonly rings: Readonly<Record<string, RingSizes>>;
  readonly document: EvaluationRules["document"];
  /** Slots of the largest ring; `segmentLen` without rings. */
  readonly capacity: number;
  /** Rows of earlier segments in the ring that keeps the most; 0 without rings. */
  readonly mostRows: number;
  /** Most keys that a query sees in any ring. */
  readonly widestWindow: number;
  /** Whether scores depend on `segmentLen` and on the ends of feeds. */
  readonly segmentationMatters: boolean;

  /** @throws OptionError - values are out of range; lists all of them. */
  constructor(rules: EvaluationRules, { segmentLen, restart, values }: Choice) {
    this.document = rules.document;
    this.segmentLen = Math.min(segmentLen, rules.document.max_positions ?? segmentLen);
    this.restart = restart;
    this.values = values;
    const problems = [...this.#problems(rules.settings, segmentLen)];
    const memLen = Number(values["mem_len"] ?? 0);
    const size = ([a, b, c]: readonly number[]): number => (a ?? 0) * memLen + (b ?? 0) * this.segmentLen + (c ?? 0);
    const entries = Object.entries(rules.rings).map(([symbol, ring]): [string, RingSizes] => {
      const isLimited = ring.window !== null && (ring.window_if === null || values[ring.window_if] === true);
      const window = isLimited ? size(ring.window) : UNLIMITED;
      return [symbol, { rows: size(ring.rows), slots: size(ring.slots), window }];
    });
    this.rings = Object.fromEntries(entries);
    const rings = Object.values(this.rings);
    for (const [symbol, { rows, slots, window }] of entries) {
      if (window < 1)
        problems.push(`a token would see ${window} keys in ring ${escaped(symbol)}, at least 1 is needed`);
      if (!(rows >= 0 && slots > rows && Number.isSafeInteger(slots)))
        problems.push(`ring ${escaped(symbol)} keeps ${rows} rows in ${slots} slots`);
    }
    if (problems.length) throw new OptionError(`evaluation settings: ${problems.join("; ")}.`);
    this.capacity = rings.length ? Math.max(...rings.map((ring) => ring.slots)) : this.segmentLen;
    this.mostRows = Math.max(0, ...rings.map((ring) => ring.rows));
    this.widestWindow = rings.length ? Math.max(...rings.map((ring) => ring.window)) : UNLIMITED;
    this.segmentationMatters = rings.some((ring) => ring.window === UNLIMITED);
  }

  /** Most tokens of a document that are read before it is refused or restarts; null: any number. */
  get longestPart(): number | null {
    return this.document.full_document ? this.segmentLen : this.document.max_positions;
  }

  /** Most tokens of a document that is scored without a restart; null: any number. */
  get longestDocument(): number | null {
    const longest = this.longestPart;
    return longest === null || this.document.bidirectional ? longest : longest + 1;
  }

  /** Return the longest step if the largest ring has `capacity` slots; longer ones would be silently wrong. */
  maxSegment(capacity: number): number {
    const rings = Object.values(this.rings);
    const spare = rings.length ? Math.min(...rings.map(({ slots, rows }) => slots - rows)) : this.segmentLen;
    return spare + capacity - this.capacity;
  }

  /** Return the slots of a ring if the largest ring has `capacity` slots. */
  slots(symbol: string, capacity: number): number {
    return (this.rings[symbol] as RingSizes).slots + capacity - this.capacity;
  }

  /**
   * Refuse a document of `tokens` tokens that is longer than the model reads, unless it may restart.
   *
   * @param name - the document's name, and what was counted if that is not the document.
   */
  checkLength(tokens: number, name: string, counts = `${counted(tokens)} tokens`): void {
    const { longestPart, longestDocument } = this;
    if (longestPart === null || longestDocument === null || tokens <= longestDocument || this.restart) return;
    throw new TooLongError(
      `${name}: ${counts}, but at most ${counted(longestDocument)} are possible: the model reads ` +
        `${counted(longestPart)} tokens of a document${this.document.bidirectional ? "" : " and predicts one more"}.`,
      "Make it shorter, or let documents begin again: xlexport configure BUNDLE --restart.",
    );
  }

  *#problems(settings: EvaluationRules["settings"], segmentLen: unknown): Iterable<string> {
    if (!isWhole(segmentLen, 1, LARGEST_LENGTH)) {
      yield `segment_len is ${shown(segmentLen)}, expected 1 to ${LARGEST_LENGTH}`;
    }
    for (const [name, setting] of Object.entries(settings)) {
      const expected = rangeOf(setting, this.values[name]);
      if (expected === null) continue;
      yield `${escaped(name)} is ${shown(this.values[name])}, expected ${expected} (${escaped(setting.meaning)})`;
    }
  }
}

/** Return null if a setting may have a value, else what is expected. */
function rangeOf({ value: own, minimum, maximum, off }: Setting, value: unknown): string | null {
  if (typeof own === "boolean") return typeof value === "boolean" ? null : "true or false";
  const [least, most] = [minimum ?? -LARGEST_LENGTH, maximum ?? LARGEST_LENGTH];
  if (isWhole(value, least, most) || (off !== null && value === off)) return null;
  return `${least} to ${most}${off === null ? "" : `, or ${off} for none`}`;
}

function isWhole(value: unknown, least: number, most: number): boolean {
  return Number.isInteger(value) && (value as number) >= least && (value as number) <= most;
}
