/** Evaluation settings: a bundle declares them, a caller chooses values, and graphs take them as inputs. */

import { OptionError } from "./errors.js";
import { choice, either, FieldError, map, nothing, record, text, truth, whole, type Kind } from "./fields.js";
import { escaped, listed, named, shown } from "./messages.js";

const LARGEST_LENGTH = 2 ** 30; // of any number: larger than any machine's memory, and far from overflowing
/** "No window": larger than any distance, and safe to add to in int64. */
export const UNBOUNDED_WINDOW = 2 ** 62;
const OWN = ["segment_len", "restart"]; // settings of the walk itself, which every bundle has

/** The value of a setting. */
export type SettingValue = number | boolean;

/** Chosen settings by their names in the bundle, and `segment_len` and `restart`; null keeps the bundle's own value. */
export interface Settings {
  segment_len?: number | null;
  restart?: boolean | null;
  [name: string]: SettingValue | null | undefined;
}

/** One evaluation setting of a bundle; the fields are those of `bundle.json`. */
export interface Setting {
  readonly type: "integer" | "boolean";
  readonly default: SettingValue;
  readonly meaning: string;
  readonly input: string | null;
  readonly minimum: number | null;
  readonly maximum: number | null;
  readonly off: number | null;
}

/** The rings of one capacity; the fields are those of `bundle.json`. */
export interface Ring {
  readonly rows: string;
  readonly same_length: string | null;
  readonly window_extra: number;
  readonly offset: string;
  readonly length: string | null;
  readonly window: string | null;
}

interface RuleFields {
  readonly segment_len: number;
  readonly settings: Record<string, Setting>;
  readonly rings: Record<string, Ring>;
  readonly first_memory: "empty" | "zeros";
  readonly max_positions: number | null;
  readonly restart: boolean;
  readonly whole: boolean;
  readonly reads_last: boolean;
}

const SETTING = record(
  {
    type: { kind: choice("integer", "boolean") },
    default: { kind: either(whole, truth) },
    meaning: { kind: text },
    input: { kind: either(text, nothing), otherwise: null },
    minimum: { kind: either(whole, nothing), otherwise: null },
    maximum: { kind: either(whole, nothing), otherwise: null },
    off: { kind: either(whole, nothing), otherwise: null },
  },
  (setting: Setting) => {
    const problem = problemOf(setting, setting.default);
    if (problem) throw new FieldError(`its default ${problem}`);
    const ends = [setting.minimum, setting.maximum, setting.off].map((end) => Math.abs(end ?? 0));
    if (Math.max(...ends) > LARGEST_LENGTH) throw new FieldError(`its range reaches beyond ${LARGEST_LENGTH}`);
    return setting;
  },
);

const RING = record(
  {
    rows: { kind: text },
    same_length: { kind: either(text, nothing), otherwise: null },
    window_extra: { kind: whole, otherwise: 0 },
    offset: { kind: text, otherwise: "offset" },
    length: { kind: either(text, nothing), otherwise: "memory_length" },
    window: { kind: either(text, nothing), otherwise: "window" },
  },
  (ring: Ring) => {
    if (ring.window_extra !== 0 && ring.window_extra !== 1) {
      throw new FieldError(`window_extra is ${ring.window_extra}, expected 0 or 1`);
    }
    return ring;
  },
);

/** The type of the field `evaluation` of a manifest. */
export const EVALUATION: Kind = record(
  {
    segment_len: { kind: whole },
    settings: { kind: map(SETTING), otherwise: {} },
    rings: { kind: map(RING), otherwise: {} },
    first_memory: { kind: choice("empty", "zeros"), otherwise: "empty" },
    max_positions: { kind: either(whole, nothing), otherwise: null },
    restart: { kind: truth, otherwise: false },
    whole: { kind: truth, otherwise: false },
    reads_last: { kind: truth, otherwise: false },
  },
  (fields: RuleFields) => new EvaluationRules(fields),
);

/** The rules for walking a bundle's documents, and the settings that a caller may choose. */
export class EvaluationRules implements RuleFields {
  readonly segment_len!: number;
  readonly settings!: Record<string, Setting>;
  readonly rings!: Record<string, Ring>;
  readonly first_memory!: "empty" | "zeros";
  readonly max_positions!: number | null;
  readonly restart!: boolean;
  readonly whole!: boolean;
  readonly reads_last!: boolean;

  constructor(fields: RuleFields) {
    Object.assign(this, fields);
    const problems = OWN.filter((name) => Object.hasOwn(this.settings, name)).map(
      (name) => `the setting '${name}' is the runtime's own`,
    );
    for (const [symbol, ring] of Object.entries(this.rings)) problems.push(...this.#ringProblems(symbol, ring));
    if (this.whole && Object.keys(this.rings).length) {
      problems.push("a document is one step, so nothing is kept in rings");
    }
    if (this.reads_last && !this.whole) problems.push("reads_last is true, but a document is not one step");
    problems.push(...walkProblems(this, this.segment_len, this.restart));
    if (problems.length) throw new FieldError(`evaluation settings: ${problems.join("; ")}.`);
  }

  *#ringProblems(symbol: string, ring: Ring): Iterable<string> {
    const rows = own(this.settings, ring.rows);
    if (rows?.type !== "integer" || rows.minimum === null || rows.minimum < 0 || rows.off !== null) {
      yield `ring ${shown(symbol)} keeps ${shown(ring.rows)} rows, which is not an integer setting of at least 0`;
    }
    if (ring.same_length !== null && own(this.settings, ring.same_length)?.type !== "boolean") {
      yield `ring ${shown(symbol)} is limited by ${shown(ring.same_length)}, which is not a boolean setting`;
    }
  }

  /**
   * Return settings with the chosen values.
   *
   * @throws OptionError - the bundle has no such setting, or a value is out of range; lists all of them.
   */
  choose(chosen: Settings = {}): EvaluationSettings {
    const { segment_len, restart, ...others } = chosen;
    const given = Object.entries(others).filter(([, value]) => value !== null && value !== undefined);
    const strange = given.map(([name]) => name).filter((name) => !Object.hasOwn(this.settings, name));
    if (strange.length) {
      const have = ["segment_len", ...Object.keys(this.settings)].map(named).join(", ");
      throw new OptionError(
        `${listed(strange.map(named))}: not among the settings of this bundle (${have}).`,
        "Leave it out.",
      );
    }
    const values: Record<string, SettingValue> = {};
    for (const [name, setting] of Object.entries(this.settings)) values[name] = setting.default;
    for (const [name, value] of given) values[name] = value as SettingValue;
    const length = segment_len ?? this.segment_len;
    const cut = this.max_positions === null ? length : Math.min(length, this.max_positions);
    return new EvaluationSettings(this, cut, Boolean(restart ?? this.restart), values);
  }
}

/** The settings of one walk. */
export class EvaluationSettings {
  readonly rules: EvaluationRules;
  readonly segmentLen: number;
  readonly restart: boolean;
  readonly values: Readonly<Record<string, SettingValue>>;

  constructor(rules: EvaluationRules, segmentLen: number, restart: boolean, values: Record<string, SettingValue>) {
    this.rules = rules;
    this.segmentLen = segmentLen;
    this.restart = restart;
    this.values = values;
    let problems = walkProblems(rules, segmentLen, restart);
    for (const [name, setting] of Object.entries(rules.settings)) {
      const problem = problemOf(setting, values[name]);
      if (problem) problems.push(`${named(name)} ${problem} (${escaped(setting.meaning)})`);
    }
    if (!problems.length) {
      problems = Object.entries(rules.rings)
        .filter(([symbol]) => this.window(symbol) < 1)
        .map(([, ring]) => `${ring.rows} is 0 and ${ring.same_length} is true, so a token would see no key`);
    }
    if (problems.length) throw new OptionError(`evaluation settings: ${problems.join("; ")}.`);
  }

  /** Whether scores depend on `segment_len` and on the ends of feeds. */
  get segmentationMatters(): boolean {
    return Object.values(this.rules.rings).some((ring) => !this.#isEqual(ring));
  }

  /** Most tokens of a document that are read before it is refused or restarts; null: any number. */
  get longestPart(): number | null {
    return longestPart(this.rules, this.segmentLen);
  }

  /** Most tokens of a document that is scored without a restart; null: any number. */
  get longestDocument(): number | null {
    const longest = this.longestPart;
    return longest === null || this.rules.reads_last ? longest : longest + 1;
  }

  /** Rows of earlier segments in the ring that keeps the most; 0 if there is none. */
  get mostRows(): number {
    return Math.max(0, ...this.#symbols.map((symbol) => this.rows(symbol)));
  }

  /** Most keys that a query sees in any ring, itself included; unbounded without rings. */
  get widestWindow(): number {
    return this.#symbols.length ? Math.max(...this.#symbols.map((symbol) => this.window(symbol))) : UNBOUNDED_WINDOW;
  }

  /** The slots that the largest ring needs: a step must not overwrite rows that its first query sees. */
  get capacity(): number {
    return this.mostRows + this.segmentLen;
  }

  get #symbols(): string[] {
    return Object.keys(this.rules.rings);
  }

  /** Return the rows of earlier segments that rings of this capacity keep. */
  rows(symbol: string): number {
    return Number(this.values[this.#ring(symbol).rows]);
  }

  /** Return the most keys that a query sees in rings of this capacity, itself included. */
  window(symbol: string): number {
    const ring = this.#ring(symbol);
    return this.#isEqual(ring) ? this.rows(symbol) + ring.window_extra : UNBOUNDED_WINDOW;
  }

  /** Return the slots of rings of this symbol if the largest ring has `capacity` slots. */
  slots(symbol: string, capacity: number): number {
    return this.rows(symbol) + this.maxSegment(capacity);
  }

  /** Return the longest step if the largest ring has `capacity` slots; longer ones would be silently wrong. */
  maxSegment(capacity: number): number {
    return capacity - this.mostRows;
  }

  /** Return the values that graphs take, by the names of their inputs. */
  inputs(): Record<string, number> {
    const found: Record<string, number> = {};
    for (const [name, setting] of Object.entries(this.rules.settings)) {
      if (setting.input !== null) found[setting.input] = Number(this.values[name]);
    }
    return found;
  }

  /** Return all values by name, as `EvaluationRules.choose` takes them. */
  toObject(): Record<string, SettingValue> {
    return { segment_len: this.segmentLen, restart: this.restart, ...this.values };
  }

  #ring(symbol: string): Ring {
    return this.rules.rings[symbol] as Ring;
  }

  #isEqual(ring: Ring): boolean {
    return ring.same_length === null || Boolean(this.values[ring.same_length]);
  }
}

/** Return the value of a name that an object has itself. */
export function own<T>(object: Record<string, T>, name: string): T | undefined {
  return Object.hasOwn(object, name) ? object[name] : undefined;
}

/** Return the problem of a setting's value, or null if it can be chosen. */
function problemOf(setting: Setting, value: unknown): string | null {
  if (setting.type === "boolean")
    return typeof value === "boolean" ? null : `is ${shown(value)}, expected true or false`;
  if (typeof value !== "number" || !Number.isInteger(value)) return `is ${shown(value)}, expected a whole number`;
  const least = setting.minimum ?? -LARGEST_LENGTH;
  const most = setting.maximum ?? LARGEST_LENGTH;
  if ((least <= value && value <= most) || value === setting.off) return null;
  const off = setting.off === null ? "" : `, or ${setting.off} for none`;
  return `is ${value}, expected ${least === most ? least : `${least} to ${most}`}${off}`;
}

function longestPart(rules: RuleFields, segmentLen: number): number | null {
  const limits = [rules.max_positions, rules.whole ? segmentLen : null].filter((limit) => limit !== null);
  return limits.length ? Math.min(...limits) : null;
}

function walkProblems(rules: RuleFields, segmentLen: number, restart: boolean): string[] {
  const problems = [];
  if (!(Number.isInteger(segmentLen) && segmentLen >= 1 && segmentLen <= LARGEST_LENGTH)) {
    problems.push(`segment_len is ${segmentLen}, expected 1 to ${LARGEST_LENGTH}`);
  }
  if (rules.max_positions !== null && rules.max_positions < 1) {
    problems.push(`max_positions is ${rules.max_positions}, at least 1 is needed`);
  }
  if (restart && longestPart(rules, segmentLen) === null) {
    problems.push("restart is chosen, but documents may be of any length, so nothing ever restarts");
  }
  return problems;
}
