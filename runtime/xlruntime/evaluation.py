"""Evaluation settings: a bundle declares them, a caller chooses values, and graphs take them as inputs.

    EvaluationRules                   the declarations in `bundle.json`
    ├── settings: {name: Setting}     type, range, default, meaning, and the graph input that takes the value
    └── rings: {symbol: Ring}         the rows that rings of one capacity keep, and the rows that a query sees

    EvaluationSettings                the values of all settings for one stream or one run

The runtime knows only two settings by name: `segment_len` and `restart`, by which it cuts documents itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .errors import OptionError
from .messages import listed, named, one_line, shown

__all__ = [
    "UNBOUNDED_WINDOW",
    "EvaluationRules",
    "EvaluationSettings",
    "FirstMemory",
    "Ring",
    "Setting",
    "SettingValue",
]

LARGEST_LENGTH = 2**30  # of any number: larger than any machine's memory, and far from overflowing
UNBOUNDED_WINDOW = 2**62  # "no window": larger than any distance, and safe to add to in int64
OWN = ("segment_len", "restart")  # settings of the walk itself, which every bundle has

FirstMemory = Literal["empty", "zeros"]
SettingValue = int | bool


@dataclass(frozen=True)
class Setting:
    """One evaluation setting of a bundle.

    Attributes:
        type: `integer` or `boolean`.
        default: the value unless the caller chooses another.
        meaning: one line for people, unit included.
        input: graph input that takes the value, int64 (1,); None: only the runtime uses it.
        minimum, maximum: range of an integer; None leaves that end to `LARGEST_LENGTH`.
        off: integer outside the range that switches the setting off; None: it cannot be off.
    """

    type: Literal["integer", "boolean"]
    default: SettingValue
    meaning: str
    input: str | None = None
    minimum: int | None = None
    maximum: int | None = None
    off: int | None = None

    def __post_init__(self) -> None:
        if problem := self.problem(self.default):
            raise ValueError(f"its default {problem}")
        if max(abs(self.minimum or 0), abs(self.maximum or 0), abs(self.off or 0)) > LARGEST_LENGTH:
            raise ValueError(f"its range reaches beyond {LARGEST_LENGTH}")

    def problem(self, value: object) -> str | None:
        """Return the problem of a value, or None if it can be chosen."""
        if self.type == "boolean":
            return None if isinstance(value, bool) else f"is {shown(value)}, expected true or false"
        if isinstance(value, bool) or not isinstance(value, int):
            return f"is {shown(value)}, expected a whole number"
        least = -LARGEST_LENGTH if self.minimum is None else self.minimum
        most = LARGEST_LENGTH if self.maximum is None else self.maximum
        if least <= value <= most or value == self.off:
            return None
        off = "" if self.off is None else f", or {self.off} for none"
        expected = f"{least}" if least == most else f"{least} to {most}"
        return f"is {value}, expected {expected}{off}"


@dataclass(frozen=True)
class Ring:
    """The rings of one capacity: which rows they keep, and which graph inputs describe them.

    Attributes:
        rows: setting with the number of kept rows of earlier segments.
        same_length: boolean setting. If true, every query sees equally many keys: at most `rows` + `window_extra`,
            itself included. None: always true. If false, the first query of a segment sees fewer keys than the last.
        window_extra: 1 if the original code counts the query in addition to the kept rows, else 0.
        offset: graph input, int64 (1,): slot that takes the step's first row.
        length: graph input, int64 (B,): kept rows that each batch row may see; None: no graph has it.
        window: graph input, int64 (1,): most keys that a query sees, itself included; None: no graph has it.
    """

    rows: str
    same_length: str | None = None
    window_extra: int = 0
    offset: str = "offset"
    length: str | None = "memory_length"
    window: str | None = "window"

    def __post_init__(self) -> None:
        if self.window_extra not in (0, 1):
            raise ValueError(f"window_extra is {self.window_extra}, expected 0 or 1")


@dataclass(frozen=True)
class EvaluationRules:
    """The rules for walking a bundle's documents, and the settings that a caller may choose.

    Attributes:
        segment_len: default number of tokens in one step; with `whole` the longest document.
        settings: declared settings by name, without `segment_len` and `restart`, which every bundle has.
        rings: ring rules, by the symbol of the capacity in the shapes of memories.
        first_memory: `empty`: a fresh ring has no rows. `zeros`: it is full, and queries attend to it.
        max_positions: most tokens of a document that the model can read; None: any number.
        restart: default for whether a longer document begins again at each multiple of `max_positions`.
        whole: whether a document is one step, without carried memory.
        reads_last: whether the model also reads a document's last token, and the prediction after it is dropped. Only
            with `whole`, if later tokens change earlier scores.
    """

    segment_len: int
    settings: Mapping[str, Setting] = field(default_factory=dict)
    rings: Mapping[str, Ring] = field(default_factory=dict)
    first_memory: FirstMemory = "empty"
    max_positions: int | None = None
    restart: bool = False
    whole: bool = False
    reads_last: bool = False

    def __post_init__(self) -> None:
        problems = [f"the setting {name!r} is the runtime's own" for name in OWN if name in self.settings]
        for symbol, ring in self.rings.items():
            problems += self._ring_problems(symbol, ring)
        if self.whole and self.rings:
            problems.append("a document is one step, so nothing is kept in rings")
        if self.reads_last and not self.whole:
            problems.append("reads_last is true, but a document is not one step")
        problems += _walk_problems(self, self.segment_len, self.restart)
        if problems:
            raise OptionError(f"evaluation settings: {'; '.join(problems)}.")

    def _ring_problems(self, symbol: str, ring: Ring) -> Iterator[str]:
        rows = self.settings.get(ring.rows)
        if rows is None or rows.type != "integer" or rows.minimum is None or rows.minimum < 0 or rows.off is not None:
            yield f"ring {shown(symbol)} keeps {shown(ring.rows)} rows, which is not an integer setting of at least 0"
        if ring.same_length is not None:
            limit = self.settings.get(ring.same_length)
            if limit is None or limit.type != "boolean":
                yield f"ring {shown(symbol)} is limited by {shown(ring.same_length)}, which is not a boolean setting"

    @property
    def longest_part(self) -> int | None:
        """Most tokens of a document that are read before it is refused or restarts; None: any number.

        One more can be scored, because the last one is not read unless `reads_last`.
        """
        return _longest_part(self, self.segment_len)

    def choose(
        self, segment_len: int | None = None, restart: SettingValue | None = None, **settings: SettingValue | None
    ) -> EvaluationSettings:
        """Return settings with the chosen values; None keeps the bundle's default.

        A segment is never longer than a document can be.

        Raises:
            OptionError: the bundle has no such setting, or a value is out of range; lists all of them.
        """
        given = {name: value for name, value in settings.items() if value is not None}
        if strange := [name for name in given if name not in self.settings]:
            have = ", ".join(map(named, ("segment_len", *self.settings)))
            raise OptionError(
                f"{listed(map(named, strange))}: not among the settings of this bundle ({have}).",
                repair="Leave it out.",
            )
        values = {name: given.get(name, setting.default) for name, setting in self.settings.items()}
        length = self.segment_len if segment_len is None else segment_len
        if self.max_positions is not None:
            length = min(length, self.max_positions)
        return EvaluationSettings(self, length, self.restart if restart is None else bool(restart), values)

    def adopt(self, chosen: EvaluationSettings) -> EvaluationRules:
        """Return these rules with the chosen values as defaults."""
        settings = {name: replace(setting, default=chosen.values[name]) for name, setting in self.settings.items()}
        return replace(self, segment_len=chosen.segment_len, restart=chosen.restart, settings=settings)


@dataclass(frozen=True)
class EvaluationSettings:
    """The settings of one walk; `settings["mem_len"]` is the value of a setting.

    If a document exceeds the model's positions, scoring fails, or with `restart` position and memory are reset. The
    first token after a reset is still predicted from the old context; the second only from the first.

    Attributes:
        rules: the rules that these settings follow.
        segment_len: tokens in one step; with `whole` the longest document.
        restart: see above.
        values: the values of the bundle's other settings, by name.

    Raises:
        OptionError: values are out of range; lists all of them.
    """

    rules: EvaluationRules
    segment_len: int
    restart: bool
    values: Mapping[str, SettingValue]

    def __post_init__(self) -> None:
        problems = _walk_problems(self.rules, self.segment_len, self.restart)
        problems += [
            f"{named(name)} {problem} ({one_line(setting.meaning)})"
            for name, setting in self.rules.settings.items()
            if (problem := setting.problem(self.values.get(name)))
        ]
        problems = problems or [
            f"{ring.rows} is 0 and {ring.same_length} is true, so a token would see no key"
            for symbol, ring in self.rules.rings.items()
            if self.window(symbol) < 1
        ]
        if problems:
            raise OptionError(f"evaluation settings: {'; '.join(problems)}.")

    def __getitem__(self, name: str) -> SettingValue:
        """Return the value of a setting; KeyError if the bundle has no such setting."""
        return self.values[name]

    def get(self, name: str) -> SettingValue | None:
        """Return the value of a setting, or None if the bundle has no such setting."""
        return self.values.get(name)

    @property
    def whole(self) -> bool:
        """Whether a document is one step, without carried memory."""
        return self.rules.whole

    @property
    def reads_last(self) -> bool:
        """Whether the model also reads a document's last token."""
        return self.rules.reads_last

    @property
    def max_positions(self) -> int | None:
        """Most tokens of a document that the model can read; None: any number."""
        return self.rules.max_positions

    @property
    def first_memory(self) -> FirstMemory:
        """The rule for a fresh ring: no rows, or as many as it keeps."""
        return self.rules.first_memory

    def changed(self, **settings: SettingValue | None) -> EvaluationSettings:
        """Return these settings with the given ones replaced; None keeps a value.

        Raises:
            OptionError: as `EvaluationRules.choose`.
        """
        given = {name: value for name, value in settings.items() if value is not None}
        return self.rules.choose(**self.to_dict() | given)

    @property
    def segmentation_matters(self) -> bool:
        """Whether scores depend on `segment_len` and on the ends of feeds; not if all queries see equally many keys."""
        return any(not self._equal(ring) for ring in self.rules.rings.values())

    @property
    def longest_part(self) -> int | None:
        """Most tokens of a document that are read before it is refused or restarts; None: any number."""
        return _longest_part(self.rules, self.segment_len)

    @property
    def longest_document(self) -> int | None:
        """Most tokens of a document that is scored without a restart; None: any number."""
        longest = self.longest_part
        return longest if longest is None or self.reads_last else longest + 1

    @property
    def most_rows(self) -> int:
        """Rows of earlier segments in the ring that keeps the most; 0 if there is none."""
        return max(map(self.rows, self.rules.rings), default=0)

    def rows(self, symbol: str) -> int:
        """Return the rows of earlier segments that rings of this capacity keep."""
        return int(self.values[self.rules.rings[symbol].rows])

    def window(self, symbol: str) -> int:
        """Return the most keys that a query sees in rings of this capacity, itself included."""
        ring = self.rules.rings[symbol]
        return self.rows(symbol) + ring.window_extra if self._equal(ring) else UNBOUNDED_WINDOW

    @property
    def widest_window(self) -> int:
        """Most keys that a query sees in any ring, itself included; unbounded without rings."""
        return max(map(self.window, self.rules.rings), default=UNBOUNDED_WINDOW)

    def capacity(self, segment_len: int | None = None) -> int:
        """Return the slots that the largest ring needs: a step must not overwrite rows that its first query sees."""
        return self.most_rows + (segment_len or self.segment_len)

    def slots(self, symbol: str, capacity: int | None = None) -> int:
        """Return the slots of rings of this symbol if the largest ring has `capacity` slots; None: just enough."""
        return self.rows(symbol) + self.max_segment(self.capacity() if capacity is None else capacity)

    def max_segment(self, capacity: int) -> int:
        """Return the longest step if the largest ring has `capacity` slots; longer ones would be silently wrong."""
        return capacity - self.most_rows

    def inputs(self) -> dict[str, int]:
        """Return the values that graphs take, by the names of their inputs."""
        return {
            setting.input: int(self.values[name])
            for name, setting in self.rules.settings.items()
            if setting.input is not None
        }

    def for_documents(self, longest: int) -> EvaluationSettings:
        """Return settings whose rings keep no more rows than a document of `longest` tokens has.

        Scores of such documents are the same. The result is this object itself if no ring can be smaller, or if a
        fresh ring has rows that queries see.
        """
        if self.first_memory == "zeros":
            return self
        names = {ring.rows for ring in self.rules.rings.values()}
        kept = {name: max(longest, self.rules.settings[name].minimum or 0) for name in names}
        smaller = {name: rows for name, rows in kept.items() if rows < int(self.values[name])}
        return replace(self, values={**self.values, **smaller}) if smaller else self

    def to_dict(self) -> dict[str, Any]:
        """Return all values by name, as `EvaluationRules.choose` takes them."""
        return {"segment_len": self.segment_len, "restart": self.restart, **self.values}

    def _equal(self, ring: Ring) -> bool:
        return ring.same_length is None or bool(self.values[ring.same_length])


def _longest_part(rules: EvaluationRules, segment_len: int) -> int | None:
    limits = [rules.max_positions, segment_len if rules.whole else None]
    return min((limit for limit in limits if limit is not None), default=None)


def _walk_problems(rules: EvaluationRules, segment_len: int, restart: bool) -> list[str]:
    """Return the problems of the rules for cutting documents."""
    problems = []
    if not 1 <= segment_len <= LARGEST_LENGTH:
        problems.append(f"segment_len is {segment_len}, expected 1 to {LARGEST_LENGTH}")
    if rules.max_positions is not None and rules.max_positions < 1:
        problems.append(f"max_positions is {rules.max_positions}, at least 1 is needed")
    if restart and _longest_part(rules, segment_len) is None:
        problems.append("restart is chosen, but documents may be of any length, so nothing ever restarts")
    return problems
