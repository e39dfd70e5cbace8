"""Declare settings as fields of dataclasses, with help and limits; `options_of` reads the declarations.

Validation, command-line options, recipes and lists of settings are made of these declarations.
"""

import dataclasses
import math
import operator
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from xltraining.errors import ConfigError
from xltraining.messages import listed, shown

__all__ = [
    "Kind",
    "ModelConfig",
    "Option",
    "PlainFields",
    "limit_problems",
    "options_of",
    "setting",
    "type_problems",
]

Kind = Literal["integer", "number", "text", "boolean", "choice", "integers", "numbers", "names", "booleans"]
_KINDS: Mapping[Any, Kind] = {int: "integer", float: "number", str: "text", bool: "boolean"}
_PLURALS: Mapping[Any, Kind] = {int: "integers", float: "numbers", str: "names", bool: "booleans"}
_EXPECTED: Mapping[Kind, str] = {
    "integer": "an integer",
    "number": "a finite number",
    "text": "a text",
    "boolean": "true or false",
    "choice": "a text",
    "integers": "a tuple of integers",
    "numbers": "a tuple of finite numbers",
    "names": "a tuple of texts",
    "booleans": "a tuple of true and false",
}
# The attributes of an option that limit a value.
_LIMITS: tuple[tuple[str, str, Callable[[Any, Any], bool]], ...] = (
    ("at least", "minimum", operator.lt),
    ("above", "above", operator.le),
    ("at most", "maximum", operator.gt),
    ("below", "below", operator.ge),
)


def setting(default: Any, help: str = "", **metadata: Any) -> Any:
    """Return a field of a dataclass that is a setting.

    Args:
        help: a sentence for people; a field without one is for files only, and no command offers it.
        metadata: further attributes of its `Option`, such as `minimum`.
    """
    return dataclasses.field(default=default, metadata={"help": help, **metadata})


@dataclass(frozen=True)
class Option:
    """A setting, with the data for its validation, its option on the command line and its help.

    Attributes:
        name: the name in Python, such as `clamp_len`.
        kind: the kind of the value; the plural ones are tuples, which the command line separates by commas.
        help: a sentence for `--help`, without the default.
        default: the value if the user gives none; None: a computed one, or the model's own.
        choices: the values of a `choice`, or of each part of `names`.
        minimum, maximum: the smallest and the largest value, or part of a tuple.
        above, below: limits that are not allowed themselves.
        longest: the most parts of a tuple.
        optional: whether None is a value.
        common: whether commands have an option `--clamp-len`; otherwise `--set clamp_len=VALUE` gives it.
        flags: the spellings of the option, if the name does not say them.
        metavar: the word for a value in help; empty: that of the kind.
        shown: the default in words, if its value does not say it.
        heading: the part of help that has the option.
        identity: whether a run with another value is another run, which cannot be resumed.
        scope: the models that have the setting, in the plural, for error messages; empty: all of the architecture.
        problem: returns what is wrong with a value of the right kind, or None.
    """

    name: str
    kind: Kind
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    minimum: float = -math.inf
    maximum: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    longest: int = sys.maxsize
    optional: bool = False
    common: bool = False
    flags: tuple[str, ...] = ()
    metavar: str = ""
    shown: str = ""
    heading: str = ""
    identity: bool = True
    scope: str = ""
    problem: Callable[[Any], str | None] = lambda value: None

    @property
    def spelling(self) -> str:
        """The name on the command line."""
        if not self.common:
            return f"--set {self.name}"
        return self.flags[-1] if self.flags else f"--{self.name.replace('_', '-')}"

    @property
    def limits(self) -> str:
        """Limits of the value, such as "at least 1, below 3"; empty if there are none."""
        limits = [(words, getattr(self, name)) for words, name, _ in _LIMITS]
        return ", ".join(f"{words} {limit:,}" for words, limit in limits if not math.isinf(limit))

    def type_problem(self, value: object, largest: int = sys.maxsize) -> str | None:
        """Return what is wrong with the kind of a value, or with integers far too large; None if nothing is."""
        if value is None and self.optional:
            return None
        plural = self.kind in _PLURALS.values()
        parts = value if isinstance(value, tuple) else (value,)
        if plural != isinstance(value, tuple) or not all(map(self._is_right, parts)):
            return f"must be {_EXPECTED[self.kind]}{' or None' if self.optional else ''}, found {shown(value)}"
        if self.kind in ("integer", "integers") and any(abs(part) > largest for part in parts):
            return f"must be at most {largest:,}, found a larger number"
        if len(parts) > self.longest:
            return f"must be at most {self.longest}, found {len(parts):,}"
        wrong = sorted({shown(part) for part in parts if self.choices and part not in self.choices})
        if wrong:
            return f"must be {'' if plural else 'one '}of {', '.join(self.choices)}, found {listed(wrong[:5])}"
        return None

    def limit_problem(self, value: Any) -> str | None:
        """Return what is wrong with a value of the right kind, or None."""
        if value is None:
            return None
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, str):
                return None
            for words, name, is_beyond in _LIMITS:
                if is_beyond(part, getattr(self, name)):
                    return f"must be {words} {getattr(self, name):,}, found {part:,}"
        return None

    def _is_right(self, part: object) -> bool:
        if self.kind in ("boolean", "booleans"):
            return isinstance(part, bool)
        if self.kind in ("integer", "integers"):
            return isinstance(part, int) and not isinstance(part, bool)
        if self.kind in ("number", "numbers"):
            return isinstance(part, int | float) and not isinstance(part, bool) and abs(part) <= sys.float_info.max
        return isinstance(part, str)


def options_of(kind: type[Any]) -> dict[str, Option]:
    """Return the settings of a dataclass by name; kinds, choices and defaults are those of its fields."""
    hints = get_type_hints(kind)
    return {
        one.name: _option(
            one.name, hints[one.name], None if one.default is MISSING else one.default, {"help": "", **one.metadata}
        )
        for one in fields(kind)
        if one.metadata.get("option", True)
    }


def _option(name: str, hint: Any, default: Any, metadata: Mapping[str, Any]) -> Option:
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)  # the first kind counts
    plain, optional = next(part for part in parts if part is not types.NoneType), types.NoneType in parts
    if get_origin(plain) is Literal:
        metadata = {"choices": get_args(plain), **metadata}
        return Option(name, "choice", default=default, optional=optional, **metadata)
    kind = _PLURALS[get_args(plain)[0]] if get_origin(plain) is tuple else _KINDS.get(plain, "text")
    return Option(name, kind, default=default, optional=optional, **metadata)


def type_problems(kind: type[Any], values: Mapping[str, Any], largest: int = sys.maxsize) -> list[str]:
    """Return the problems of values for fields of a dataclass that are of a wrong kind, or integers above `largest`."""
    return _problems(kind, values, lambda option, value: option.type_problem(value, largest))


def limit_problems(kind: type[Any], values: Mapping[str, Any]) -> list[str]:
    """Return the problems of values of the right kinds that are beyond the limits of their fields."""
    return _problems(kind, values, Option.limit_problem)


def _problems(kind: type[Any], values: Mapping[str, Any], problem_of: Callable[[Option, Any], str | None]) -> list[str]:
    problems = {name: problem_of(option, values[name]) for name, option in options_of(kind).items() if name in values}
    return [f"{name} {problem}" for name, problem in problems.items() if problem is not None]


class PlainFields:
    """A frozen dataclass whose fields are plain values; plain mappings hold its tuples as lists."""

    NAME: ClassVar[str]  # of the architecture, in messages
    LARGEST: ClassVar[int] = sys.maxsize  # the largest integer of a field
    LATER: ClassVar[tuple[str, ...]] = ()
    """Fields that earlier versions lack: `to_dict` leaves out their defaults, so that files stay readable there."""

    def __post_init__(self) -> None:
        kind, values = type(self), vars(self)
        problems = type_problems(kind, values, self.LARGEST) or [*limit_problems(kind, values), *self.contradictions()]
        problems = problems or [*self.excesses()]
        if problems:
            raise ConfigError(f"invalid {self.NAME} configuration: {'; '.join(problems)}.")

    def contradictions(self) -> Iterable[str]:
        """Yield the problems of values that do not go together, or have rules of their own."""
        return ()

    def excesses(self) -> Iterable[str]:
        """Yield the problems of sizes that follow from several fields, if there are no other problems."""
        return ()

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build a configuration from a plain mapping, as in a checkpoint.

        Raises:
            ConfigError: names are unknown, or values invalid. The message lists all of them.
        """
        names = {field.name for field in fields(cls)}  # type: ignore[arg-type]  # every subclass is a dataclass
        unknown = sorted(str(name) for name in values if name not in names)
        if unknown:
            raise ConfigError(
                f"unknown names in the {cls.NAME} configuration: {listed(unknown)}.",
                hint=f"Remove or correct them; the known names are {', '.join(sorted(names))}.",
            )
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values for JSON; `from_dict` reads them back."""
        values = asdict(self)  # type: ignore[call-overload]
        for field in fields(self):  # type: ignore[arg-type]
            if field.name in self.LATER and values[field.name] == field.default:
                del values[field.name]
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


class ModelConfig(PlainFields):
    """The configuration of a model: a frozen dataclass with at least these fields."""

    LARGEST: ClassVar[int] = 1 << 31  # a file's configuration must not cause sizes beyond torch's limits
    LARGEST_MATRIX: ClassVar[int] = 1 << 48
    RUN_SETTINGS: ClassVar[tuple[str, ...]] = ()
    """Settings of `TrainingConfig` that this architecture heeds and not all others do."""
    INSTEAD: ClassVar[Mapping[str, str]] = {}
    """What this architecture has instead of settings of others, as parts of sentences."""

    n_token: int
    """Size of the vocabulary."""
    tgt_len: int
    """Tokens in a training segment."""

    @property
    def position_limit(self) -> int | None:
        """Number of positions with an embedding: after so many tokens a document must restart; None: no limit."""
        return None

    @property
    def position_limit_source(self) -> str:
        """Origin of the limit, as the end of a message; empty if the limit is a field itself."""
        return ""

    @property
    def whole_document(self) -> bool:
        """Whether each call reads a whole document, because the model cannot carry memory."""
        return False

    @classmethod
    def for_training(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a new model: the chosen ones, and those that follow from them."""
        return dict(values)

    @classmethod
    def without_effect(cls, values: Mapping[str, Any]) -> Iterable[str]:
        """Yield the problems of chosen values that would have no effect on a new model, as parts of sentences."""
        return ()

    def too_large(self, sizes: Mapping[str, int]) -> Iterable[str]:
        """Yield the problems of matrices with more numbers than torch allows.

        Args:
            sizes: numbers in a matrix, by the product that gives them.
        """
        for product, size in sizes.items():
            if size > self.LARGEST_MATRIX:
                yield f"{product} must be at most {self.LARGEST_MATRIX:,}, found {size:,}"
