"""The known answers of a bundle: what the trained model computes of a few inputs, which a machine must reproduce."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt

from .bundle import RUN, Bundle
from .errors import BundleFormatError, OptionError
from .execution_providers import CPU_PROVIDER
from .json_fields import read_fields
from .limits import Limits, read_json
from .messages import listed, named, shown
from .tokenizer_entry import TokenId

if TYPE_CHECKING:
    from .engine import Engine
    from .memory import Memory

__all__ = [
    "ANSWERS_FILE",
    "LARGEST_FILE",
    "CheckResult",
    "KnownAnswers",
    "KnownSteps",
    "KnownTargets",
    "check",
    "read_answers",
    "walk",
]

ANSWERS_FILE = "known_answers.json"
LARGEST_FILE = 40_000  # bytes
AGAIN = "Convert the checkpoint again."

Arrays = Mapping[str, npt.NDArray[Any]]
Shapes = Mapping[str, tuple[Annotated[int, range(2**53)], ...]]


class _Answers(ABC):
    """What both kinds of known answers share; a subclass is a dataclass with all fields of the file."""

    settings: Mapping[str, int | bool]
    memory: Shapes
    certain: bool
    unit: ClassVar[str]  # what is counted
    number: ClassVar[str]  # what a number of an output is in a message

    @abstractmethod
    def arrays(self, bundle: Bundle) -> tuple[Arrays, Arrays, Arrays]:
        """Return by name inputs (n, …), outputs (n, …) that they must give, and bounds (n,).

        Raises:
            ValueError: the answers are not for this bundle; the message has the path of the field.
        """

    @classmethod
    def read(cls, engine: Engine) -> Self | None:
        """Read the known answers of an open bundle; return None if it has none.

        Raises:
            BundleFormatError: the file breaks a rule; the message has the path of the field.
        """
        entry, file = engine.bundle.files.get(ANSWERS_FILE), engine.folder / ANSWERS_FILE
        if entry is None:
            return None
        try:
            if entry.size > LARGEST_FILE:
                raise ValueError(f"has {entry.size:,} bytes, at most {LARGEST_FILE:,} are expected")
            answers = read_fields(cls, read_json(file, Limits(1 << 21), BundleFormatError, AGAIN, strict=True))
            n = len(next(iter(answers.arrays(engine.bundle)[0].values())))
            longest = engine.evaluation(**answers.settings).longest_part
            if longest is not None and n > longest:
                raise ValueError(f"has {n} {cls.unit}s to read, the model reads {longest}")
        except (ValueError, TypeError) as error:
            if isinstance(error, BundleFormatError):
                raise
            text = error.message if isinstance(error, OptionError) else str(error)
            raise BundleFormatError(f"{file}: {text.rstrip('.')}.", hint=AGAIN) from error
        return answers


@dataclass(frozen=True)
class KnownAnswers(_Answers):
    """The content of `known_answers.json`.

    Attributes:
        settings: the evaluation settings of the walk, by name.
        tokens: (n + 1,) ids of one document, whose last is not read.
        log_probs: (n,) of each token but the first, in nats.
        bounds: (n,) the largest differences that count as rounding.
        memory: shape of each carried memory after the walk, for one batch row, by its input.
        margin: the smallest relative lead of a bucket over the next one; null without LSH attention.
        certain: whether a failure refuses the bundle. Otherwise rounding alone may choose another bucket.
    """

    settings: Mapping[str, int | bool]
    tokens: tuple[TokenId, ...]
    log_probs: tuple[float, ...]
    bounds: tuple[float, ...]
    memory: Shapes
    margin: float | None
    certain: bool

    unit: ClassVar[str] = "token"
    number: ClassVar[str] = "the log-probability"

    def __post_init__(self) -> None:
        n = len(self.log_probs)
        if n < 1 or (len(self.tokens), len(self.bounds)) != (n + 1, n):
            counts = f"{len(self.tokens)} tokens and {len(self.bounds)} bounds for {n} log_probs"
            raise ValueError(f"{counts}, expected one more token and as many bounds")
        if (place := next((i for i, bound in enumerate(self.bounds) if bound <= 0), None)) is not None:
            raise ValueError(f"bounds[{place}] is {self.bounds[place]:g}, expected a number above 0")

    def arrays(self, bundle: Bundle) -> tuple[Arrays, Arrays, Arrays]:
        """Return ids (n,) with the token after each, scores and bounds (n,); see `_Answers.arrays`."""
        for place, token in enumerate(self.tokens):
            if token >= bundle.vocab_size:
                raise ValueError(f"tokens[{place}] is {token}, expected 0 to {bundle.vocab_size - 1}")
        ids = np.array(self.tokens, np.int64)
        scores, bounds = ({"log_prob": np.array(numbers)} for numbers in (self.log_probs, self.bounds))
        return {"tokens": ids[:-1], "targets": ids[1:]}, scores, bounds


@dataclass(frozen=True)
class KnownTargets(KnownAnswers):
    """The content of `known_answers.json` of an encoder-decoder: `tokens` are its start, a target and its end.

    Attributes:
        source: ids of the text whose target is scored.
    """

    source: tuple[TokenId, ...]

    def arrays(self, bundle: Bundle) -> tuple[Arrays, Arrays, Arrays]:
        """Return what `KnownAnswers` does."""
        assert bundle.encoder is not None
        if len(self.source) > (most := bundle.encoder.source_len):
            raise ValueError(f"source has {len(self.source)} tokens, the model reads {most}")
        if (largest := max(self.source, default=0)) >= bundle.vocab_size:
            raise ValueError(f"source has the token {largest}, expected 0 to {bundle.vocab_size - 1}")
        return super().arrays(bundle)


@dataclass(frozen=True)
class KnownSteps(_Answers):
    """The content of `known_answers.json` of a step model.

    Attributes:
        settings, memory: as of `KnownAnswers`.
        steps: number of steps, of one row.
        inputs, outputs: the numbers of all steps by name, one step after the other; booleans are 0 and 1.
        bounds: by the name of an output, the largest difference that counts as rounding; 0.5 if it is not of floats.
        certain: whether a failure refuses the bundle. Otherwise rounding alone may choose another integer.
    """

    settings: Mapping[str, int | bool]
    steps: Annotated[int, range(1, LARGEST_FILE)]
    inputs: Mapping[str, tuple[int | float, ...]]
    outputs: Mapping[str, tuple[int | float, ...]]
    bounds: Mapping[str, float]
    memory: Shapes
    certain: bool

    unit: ClassVar[str] = "step"
    number: ClassVar[str] = "the output {}"

    def arrays(self, bundle: Bundle) -> tuple[Arrays, Arrays, Arrays]:
        """Return inputs and outputs (n, …) of the dtypes that graphs have, and bounds (n,); see `_Answers.arrays`."""
        graph = bundle.graphs[RUN]
        feeds = {name: feed for name, feed in graph.inputs.items() if feed.feed == "input"}
        inputs, outputs = self._series("inputs", feeds), self._series("outputs", graph.outputs)
        if self.bounds.keys() != outputs.keys() or not all(bound > 0 for bound in self.bounds.values()):
            raise ValueError(f"bounds is {shown(dict(self.bounds))}, expected a number above 0 for each output")
        return inputs, outputs, {name: np.full(self.steps, bound) for name, bound in self.bounds.items()}

    def _series(self, kind: str, tensors: Mapping[str, Any]) -> Arrays:
        """Return the numbers of `inputs` or `outputs` as arrays (n, …), in the order of the graph."""
        given, arrays = getattr(self, kind), {}
        if given.keys() != tensors.keys():
            raise ValueError(f"{kind} has {listed(map(named, given))}, expected {listed(map(named, tensors))}")
        for name, tensor in tensors.items():
            shape, numbers = (self.steps, *map(int, tensor.shape[2:])), np.array(given[name], np.float64)
            if len(numbers) != math.prod(shape):
                raise ValueError(f"{kind}.{named(name)} has {len(numbers)} numbers, expected {math.prod(shape)}")
            with np.errstate(all="ignore"):
                array = numbers.astype(tensor.dtype)
            is_whole = (array == numbers) & (np.abs(numbers) < 2**53)  # which every reader of JSON keeps
            if not (held := np.isfinite(array) if array.dtype.kind == "f" else is_whole).all():
                place = int(np.argmin(held))
                what = f"{kind}.{named(name)}[{place}] is {numbers[place]:g}"
                raise ValueError(f"{what}, expected a number of {tensor.dtype}")
            arrays[name] = array.reshape(shape)
        return arrays


@dataclass(frozen=True)
class CheckResult:
    """The result of `Model.check`; its text is one line.

    Attributes:
        passed: None if the bundle has no known answers.
        tokens: number of scores that were compared, or of the steps of a step model.
        largest: the largest difference from an answer, divided by its bound.
        problem: the first difference: where, found and expected.
        certain: whether a failure means that the bundle computes wrong numbers here. It does not on a provider for
            which no bound was measured, or if rounding alone may choose another bucket.
    """

    passed: bool | None
    tokens: int = 0
    largest: float = 0.0
    problem: str | None = None
    certain: bool = True

    def __str__(self) -> str:
        if self.passed is None:
            return "no known answers"
        return self.problem or f"{self.tokens} known answers, largest difference {self.largest:.2g} of its bound"


def read_answers(engine: Engine) -> KnownAnswers | KnownSteps | None:
    """Read the known answers of an open bundle of any kind; see `KnownAnswers.read`."""
    if engine.bundle.purpose == RUN:
        return KnownSteps.read(engine)
    return (KnownAnswers if engine.bundle.encoder is None else KnownTargets).read(engine)


def walk(
    engine: Engine,
    inputs: Arrays,
    settings: Mapping[str, int | bool],
    seconds: float = math.inf,
    source: Sequence[int] | None = None,
    after_step: Callable[[Memory], None] | None = None,
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, tuple[int, ...]]]:
    """Run inputs (n, …) as one document or series, in steps of `segment_len`.

    Args:
        settings: the evaluation settings.
        seconds: time after which no other step begins.
        source: ids of the text that an encoder-decoder translates.
        after_step: is called with the memory after each step.

    Returns:
        The outputs (n, …) by name, and the shape of each memory for one batch row.
    """
    evaluation, rows = engine.evaluation(**settings), engine.bundle.fixed.get("batch", 1)
    purpose, translator = engine.bundle.purpose, cast("Any", engine)
    memory = engine.new_memory(evaluation, rows) if source is None else translator.new_targets([np.array(source)])
    longest = min(memory.max_segment, engine.longest_step(purpose, evaluation.segment_len))
    n, deadline = len(next(iter(inputs.values()))), time.monotonic() + seconds
    parts: list[dict[str, npt.NDArray[Any]]] = []
    for start in range(0, n, longest):
        if start and time.monotonic() > deadline:
            break
        part = {name: array[None, start : start + longest].repeat(rows, axis=0) for name, array in inputs.items()}
        parts.append(engine.run(purpose, memory, part))
        if after_step is not None:
            after_step(memory)
    found = {name: np.concatenate([part[name][0] for part in parts]) for name in parts[0]}
    return found, {entry.input: (1, *memory.array(entry).shape[1:]) for entry in memory.entries}


def check(engine: Engine, seconds: float = math.inf) -> CheckResult:
    """Compare an open bundle with its known answers; see `Model.check`.

    Args:
        seconds: time after which the other answers are not looked at.
    """
    answers = read_answers(engine)
    if answers is None:
        return CheckResult(None)
    inputs, outputs, bounds = answers.arrays(engine.bundle)
    found, shapes = walk(engine, inputs, answers.settings, seconds, getattr(answers, "source", None))
    n = len(next(iter(found.values())))
    problem = None
    for name in sorted(shapes.keys() | answers.memory.keys()):
        shape, expected = shapes.get(name), answers.memory.get(name)
        if problem is None and (shape is None or expected is None or tuple(shape) != tuple(expected)):
            problem = f"memory {name} has the shape {shape and [*shape]}, expected {expected and [*expected]}"
    largest, first = 0.0, n
    for name, array in outputs.items():
        values, wanted = (each[:n].reshape(n, -1).astype(np.float64) for each in (found[name], array))
        difference = np.abs(values - wanted) / bounds[name][:n, None]
        within = difference <= 1  # not for NaN
        largest = max(largest, float(np.max(difference, where=~np.isnan(difference), initial=0)))
        place, at = divmod(int(np.argmin(within)), values.shape[1])
        if not within.all() and place < first:
            first = place
            problem = (
                f"{answers.unit} {place + 1} of the known answers has {answers.number.format(named(name))} "
                f"{values[place, at]:.7g}, expected {wanted[place, at]:.7g} within {bounds[name][place]:.0e}"
            )
    certain = answers.certain and engine.device.provider == CPU_PROVIDER
    return CheckResult(problem is None, n, largest, problem, certain)
