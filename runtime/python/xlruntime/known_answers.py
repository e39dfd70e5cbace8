"""The known answers of a bundle: tokens with the trained model's own scores, which a machine must reproduce."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np

from .errors import BundleFormatError, OptionError
from .execution_providers import CPU_PROVIDER
from .json_fields import read_fields
from .limits import Limits, read_json
from .tokenizer_entry import TokenId

if TYPE_CHECKING:
    from .engine import Engine

__all__ = ["ANSWERS_FILE", "LARGEST_FILE", "CheckResult", "KnownAnswers", "check", "walk"]

ANSWERS_FILE = "known_answers.json"
LARGEST_FILE = 40_000  # bytes
AGAIN = "Convert the checkpoint again."


@dataclass(frozen=True)
class KnownAnswers:
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
    memory: Mapping[str, tuple[Annotated[int, range(2**53)], ...]]
    margin: float | None
    certain: bool

    def __post_init__(self) -> None:
        n = len(self.log_probs)
        if n < 1 or (len(self.tokens), len(self.bounds)) != (n + 1, n):
            counts = f"{len(self.tokens)} tokens and {len(self.bounds)} bounds for {n} log_probs"
            raise ValueError(f"{counts}, expected one more token and as many bounds")
        if (place := next((i for i, bound in enumerate(self.bounds) if bound <= 0), None)) is not None:
            raise ValueError(f"bounds[{place}] is {self.bounds[place]:g}, expected a number above 0")

    @classmethod
    def read(cls, engine: Engine) -> KnownAnswers | None:
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
            vocab_size = engine.bundle.vocab_size
            for place, token in enumerate(answers.tokens):
                if token >= vocab_size:
                    raise ValueError(f"tokens[{place}] is {token}, expected 0 to {vocab_size - 1}")
            longest = engine.evaluation(**answers.settings).longest_part
            if longest is not None and len(answers.log_probs) > longest:
                raise ValueError(f"has {len(answers.log_probs)} tokens to read, the model reads {longest}")
        except (ValueError, TypeError) as error:
            if isinstance(error, BundleFormatError):
                raise
            text = error.message if isinstance(error, OptionError) else str(error)
            raise BundleFormatError(f"{file}: {text.rstrip('.')}.", hint=AGAIN) from error
        return answers


@dataclass(frozen=True)
class CheckResult:
    """The result of `Model.check`; its text is one line.

    Attributes:
        passed: None if the bundle has no known answers.
        tokens: number of scores that were compared.
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


def walk(
    engine: Engine, tokens: tuple[int, ...], seconds: float = math.inf, **settings: int | bool
) -> tuple[list[float], dict[str, list[int]]]:
    """Score tokens (n + 1,) as one document, in steps of `segment_len`.

    Args:
        seconds: time after which no other step begins.

    Returns:
        Log-probabilities (n,) of each token but the first, and the shape of each memory for one batch row.
    """
    evaluation, rows = engine.evaluation(**settings), engine.bundle.fixed.get("batch", 1)
    memory, ids = engine.new_memory(evaluation, rows), np.array([tokens], np.int64).repeat(rows, axis=0)
    longest = min(memory.max_segment, engine.longest_step("score", evaluation.segment_len))
    scores, deadline = list[float](), time.monotonic() + seconds
    while (start := len(scores)) < len(tokens) - 1 and not (start and time.monotonic() > deadline):
        stop = min(start + longest, len(tokens) - 1)
        outputs = engine.step("score", memory, ids[:, start:stop], ids[:, start + 1 : stop + 1])
        scores += outputs["log_prob"][0].tolist()
    return scores, {entry.input: [1, *memory.array(entry).shape[1:]] for entry in memory.entries}


def check(engine: Engine, seconds: float = math.inf) -> CheckResult:
    """Compare an open bundle with its known answers; see `Model.check`.

    Args:
        seconds: time after which the other answers are not looked at.
    """
    answers = KnownAnswers.read(engine)
    if answers is None:
        return CheckResult(None)
    found, shapes = walk(engine, answers.tokens, seconds, **answers.settings)
    n = len(found)
    difference = np.abs(np.array(found) - answers.log_probs[:n]) / answers.bounds[:n]
    within = difference <= 1  # not for NaN
    problem = None
    for name in sorted(shapes.keys() | answers.memory.keys()):
        shape, expected = shapes.get(name), answers.memory.get(name)
        if problem is None and (shape is None or expected is None or tuple(shape) != tuple(expected)):
            problem = f"memory {name} has the shape {shape}, expected {expected and [*expected]}"
    if not within.all():
        i = int(np.argmin(within))
        problem = (
            f"token {i + 1} of the known answers has the log-probability {found[i]:.7g}, expected "
            f"{answers.log_probs[i]:.7g} within {answers.bounds[i]:.0e}"
        )
    largest = float(np.max(difference, where=~np.isnan(difference), initial=0))
    certain = answers.certain and engine.device.provider == CPU_PROVIDER
    return CheckResult(problem is None, n, largest, problem, certain)
