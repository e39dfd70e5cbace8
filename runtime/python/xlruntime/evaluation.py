"""Evaluation settings: bundles declare them, callers choose values, and graphs take these as inputs.

    EvaluationRules                   the declarations in `bundle.json`
    ├── settings: {name: Setting}     value, meaning and range
    └── rings: {symbol: Ring}         the rows that rings of one capacity keep, and the rows that a query sees

    EvaluationSettings                the values of all settings for one stream or one run

The runtime knows three settings by name: `mem_len`, on which rings depend, and its own `segment_len` and `restart`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from .errors import OptionError
from .messages import listed, named, one_line, shown

__all__ = [
    "MEM_LEN",
    "UNBOUNDED_WINDOW",
    "EvaluationRules",
    "EvaluationSettings",
    "FreshMemory",
    "Length",
    "Ring",
    "Setting",
    "SettingValue",
]

LARGEST_LENGTH = 2**30  # of any number: larger than any machine's memory, and far from overflowing
LARGEST_SIZE = 2**53 - 1  # of a ring: exact in any runtime
UNBOUNDED_WINDOW = 2**62  # "no window": larger than any distance, and safe to add to in int64
OWN = ("segment_len", "restart")  # settings of the runtime itself, which every bundle has
MEM_LEN = "mem_len"

FreshMemory = Literal["empty", "zeros"]
SettingValue = int | bool
Length = Annotated[int, range(1, LARGEST_LENGTH + 1)]
Number = Annotated[int, range(-LARGEST_LENGTH, LARGEST_LENGTH + 1)]
Linear = tuple[Number, Number, Number]  # (a, b, c): a · mem_len + b · segment_len + c


@dataclass(frozen=True)
class Setting:
    """One evaluation setting of a bundle.

    Attributes:
        value: an integer or a boolean, unless the caller chooses another.
        meaning: one line for people, unit included.
        minimum, maximum: range of an integer; None leaves that end to `LARGEST_LENGTH`.
        off: integer outside the range that switches the setting off; None: it cannot be off.
    """

    value: Number | bool
    meaning: str
    minimum: Number | None = None
    maximum: Number | None = None
    off: Number | None = None

    def __post_init__(self) -> None:
        if problem := self.problem(self.value):
            raise ValueError(f"its value {problem}")
        if self.is_boolean and (self.minimum, self.maximum, self.off) != (None, None, None):
            raise ValueError("it is a boolean, which has no range")

    @property
    def is_boolean(self) -> bool:
        """Whether the value is true or false."""
        return isinstance(self.value, bool)

    def problem(self, value: object) -> str | None:
        """Return the problem of a value, or None if it can be chosen."""
        if self.is_boolean:
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
    """The rings of one capacity. Numbers are (a, b, c), for a · `mem_len` + b · `segment_len` + c.

    Attributes:
        rows: kept rows of earlier segments.
        slots: kept rows and room for a step.
        window: keys that a query sees at most, itself included; None: any number. If it is unlimited, the first query
            of a segment sees fewer keys than the last.
        window_if: boolean setting without which the window is unlimited; None: the window always holds.
    """

    rows: Linear
    slots: Linear
    window: Linear | None = None
    window_if: str | None = None


@dataclass(frozen=True)
class EvaluationRules:
    """The rules for walking a bundle's documents, and the settings that a caller may choose.

    Attributes:
        segment_len: default number of tokens in one step; with `full_document` the longest document.
        settings: declared settings by name, without `segment_len` and `restart`, which every bundle has.
        rings: ring rules, by the symbol of the capacity in the shapes of memories.
        fresh_memory: `empty`: a fresh ring has no rows. `zeros`: it is full, and queries attend to it.
        max_positions: most tokens of a document that the model can read; None: any number.
        restart: default for whether a longer document begins again at each multiple of `max_positions`.
        full_document: whether a document is one step, without carried memory.
        bidirectional: whether the model also reads a document's last token, and the prediction after it is dropped.
            Only with `full_document`, if later tokens change earlier scores.
    """

    segment_len: Length
    settings: Mapping[str, Setting] = field(default_factory=dict)
    rings: Mapping[str, Ring] = field(default_factory=dict)
    fresh_memory: FreshMemory = "empty"
    max_positions: Length | None = None
    restart: bool = False
    full_document: bool = False
    bidirectional: bool = False

    def __post_init__(self) -> None:
        problems = [f"the setting {name!r} is the runtime's own" for name in OWN if name in self.settings]
        for symbol, ring in self.rings.items():
            if ring.window_if is not None and ring.window_if not in self._booleans:
                problems.append(f"ring {shown(symbol)} has a window if {shown(ring.window_if)}, no boolean setting")
        if MEM_LEN in self._booleans:
            problems.append(f"{MEM_LEN} is not a number")
        if self.full_document and self.rings:
            problems.append("a document is one step, so nothing is kept in rings")
        if self.bidirectional and not self.full_document:
            problems.append("bidirectional is true, but a document is not one step")
        if problems:
            raise OptionError(f"evaluation settings: {'; '.join(problems)}.")
        self.choose()  # refuses values out of range

    @property
    def _booleans(self) -> set[str]:
        return {name for name, setting in self.settings.items() if setting.is_boolean}

    @property
    def longest_part(self) -> int | None:
        """Most tokens of a document that are read before it is refused or restarts; None: any number.

        One more can be scored, because the last one is not read unless `bidirectional`.
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
        choices = {name: value for name, value in settings.items() if value is not None}
        if unknown := [name for name in choices if name not in self.settings]:
            have = ", ".join(map(named, ("segment_len", *self.settings)))
            raise OptionError(
                f"{listed(map(named, unknown))}: not among the settings of this bundle ({have}).",
                hint="Leave it out.",
            )
        values = {name: choices.get(name, setting.value) for name, setting in self.settings.items()}
        length = self.segment_len if segment_len is None else segment_len
        if self.max_positions is not None and length <= LARGEST_LENGTH:
            length = min(length, self.max_positions)
        return EvaluationSettings(self, length, self.restart if restart is None else bool(restart), values)

    def adopt(self, chosen: EvaluationSettings) -> EvaluationRules:
        """Return these rules with the chosen values."""
        settings = {name: replace(setting, value=chosen.values[name]) for name, setting in self.settings.items()}
        return replace(self, segment_len=chosen.segment_len, restart=chosen.restart, settings=settings)


@dataclass(frozen=True)
class EvaluationSettings:
    """The settings of one walk; `settings["mem_len"]` is the value of a setting.

    If a document exceeds the model's positions, scoring fails, or with `restart` position and memory are reset. The
    first token after a reset is still predicted from the old context; the second only from the first.

    Attributes:
        rules: the rules that these settings follow.
        segment_len: tokens in one step; with `full_document` the longest document.
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
        problems = []
        if not 1 <= self.segment_len <= LARGEST_LENGTH:
            problems.append(f"segment_len is {self.segment_len}, expected 1 to {LARGEST_LENGTH}")
        if self.restart and self.longest_part is None:
            problems.append("restart is chosen, but documents may be of any length, so nothing ever restarts")
        problems += [
            f"{named(name)} {problem} ({one_line(setting.meaning)})"
            for name, setting in self.rules.settings.items()
            if (problem := setting.problem(self.values.get(name)))
        ]
        problems = problems or list(self._ring_problems())
        if problems:
            raise OptionError(f"evaluation settings: {'; '.join(problems)}.")

    def _ring_problems(self) -> Iterator[str]:
        for symbol in self.rules.rings:
            if self.window(symbol) < 1:
                yield f"a window of {self.window(symbol)} keys in ring {shown(symbol)}, so a token would see no key"
            if not 0 <= self.rows(symbol) < self.slots(symbol) <= LARGEST_SIZE:
                yield (
                    f"ring {shown(symbol)} keeps {self.rows(symbol)} rows in {self.slots(symbol)} slots, which leaves "
                    "no room for a token"
                )

    def __getitem__(self, name: str) -> SettingValue:
        """Return the value of a setting; KeyError if the bundle has no such setting."""
        return self.values[name]

    def get(self, name: str) -> SettingValue | None:
        """Return the value of a setting, or None if the bundle has no such setting."""
        return self.values.get(name)

    @property
    def full_document(self) -> bool:
        """Whether a document is one step, without carried memory."""
        return self.rules.full_document

    @property
    def bidirectional(self) -> bool:
        """Whether the model also reads a document's last token."""
        return self.rules.bidirectional

    @property
    def max_positions(self) -> int | None:
        """Most tokens of a document that the model can read; None: any number."""
        return self.rules.max_positions

    @property
    def fresh_memory(self) -> FreshMemory:
        """The rule for a fresh ring: no rows, or as many as it keeps."""
        return self.rules.fresh_memory

    def changed(self, **settings: SettingValue | None) -> EvaluationSettings:
        """Return these settings with the given ones replaced; None keeps a value.

        Raises:
            OptionError: as `EvaluationRules.choose`.
        """
        changes = {name: value for name, value in settings.items() if value is not None}
        return self.rules.choose(**self.to_dict() | changes)

    @property
    def segmentation_matters(self) -> bool:
        """Whether scores depend on how a document is cut; they do not if all queries see equally many keys."""
        return any(self.window(symbol) == UNBOUNDED_WINDOW for symbol in self.rules.rings)

    @property
    def longest_part(self) -> int | None:
        """Most tokens of a document that are read before it is refused or restarts; None: any number."""
        return _longest_part(self.rules, self.segment_len)

    @property
    def longest_document(self) -> int | None:
        """Most tokens of a document that is scored without a restart; None: any number."""
        longest = self.longest_part
        return longest if longest is None or self.bidirectional else longest + 1

    @property
    def most_rows(self) -> int:
        """Rows of earlier segments in the ring that keeps the most; 0 if there is none."""
        return max(map(self.rows, self.rules.rings), default=0)

    def rows(self, symbol: str) -> int:
        """Return the rows of earlier segments that rings of this capacity keep."""
        return self._number(self.rules.rings[symbol].rows)

    def window(self, symbol: str) -> int:
        """Return the most keys that a query sees in rings of this capacity, itself included."""
        window = self.rules.rings[symbol].window
        return UNBOUNDED_WINDOW if window is None or not self._limits(symbol) else self._number(window)

    @property
    def widest_window(self) -> int:
        """Most keys that a query sees in any ring, itself included; unbounded without rings."""
        return max(map(self.window, self.rules.rings), default=UNBOUNDED_WINDOW)

    def capacity(self, segment_len: int | None = None) -> int:
        """Return the slots of the largest ring for steps of `segment_len` tokens; without rings, this number."""
        length = segment_len or self.segment_len
        return max((self._number(ring.slots, length) for ring in self.rules.rings.values()), default=length)

    def slots(self, symbol: str, capacity: int | None = None) -> int:
        """Return the slots of this symbol's rings if the largest ring has `capacity` slots; None: just enough."""
        more = 0 if capacity is None else capacity - self.capacity()
        return self._number(self.rules.rings[symbol].slots) + more

    def max_segment(self, capacity: int) -> int:
        """Return the longest step for `capacity` slots of the largest ring; longer ones would be silently wrong."""
        return min((self.slots(symbol, capacity) - self.rows(symbol) for symbol in self.rules.rings), default=capacity)

    def for_documents(self, longest: int) -> EvaluationSettings:
        """Return settings whose rings keep no more rows than a document of `longest` tokens has.

        Scores of such documents are the same. The result is this object itself if no ring can be smaller, or if a
        fresh ring has rows that queries see.
        """
        if self.fresh_memory == "zeros" or MEM_LEN not in self.values:
            return self
        least = self.rules.settings[MEM_LEN].minimum or 0
        for ring in self.rules.rings.values():
            for a, b, c in [ring.rows, *([] if ring.window is None else [ring.window])]:
                if a:
                    least = max(least, -((b * self.segment_len + c - longest) // a))
        return replace(self, values={**self.values, MEM_LEN: least}) if least < self.values[MEM_LEN] else self

    def to_dict(self) -> dict[str, Any]:
        """Return all values by name, as `EvaluationRules.choose` takes them."""
        return {"segment_len": self.segment_len, "restart": self.restart, **self.values}

    def _limits(self, symbol: str) -> bool:
        name = self.rules.rings[symbol].window_if
        return name is None or bool(self.values[name])

    def _number(self, linear: Linear, segment_len: int | None = None) -> int:
        a, b, c = linear
        return a * int(self.values.get(MEM_LEN, 0)) + b * (segment_len or self.segment_len) + c


def _longest_part(rules: EvaluationRules, segment_len: int) -> int | None:
    limits = [rules.max_positions, segment_len if rules.full_document else None]
    return min((limit for limit in limits if limit is not None), default=None)
