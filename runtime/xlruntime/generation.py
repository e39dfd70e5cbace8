"""Draw tokens from logits, and continue documents that are read in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .documents import Ids, check_length, encode
from .engine import Engine
from .errors import OptionError, TextError, XlruntimeError
from .evaluation import EvaluationSettings

__all__ = ["Sampling", "draw_tokens", "generate_whole"]


@dataclass(frozen=True)
class Sampling:
    """The rule for drawing tokens: from probabilities at `temperature`, cut by `top_k`, then by `top_p`.

    Attributes:
        temperature: divisor of the logits; 0 takes the likeliest token.
        top_k: draw only from the k likeliest tokens; None: from all.
        top_p: draw only from the likeliest tokens that together reach this probability; None: from all.
        seed: seed of the random draws; None: another one for each run.

    Raises:
        OptionError: values are out of range; lists all of them.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        problems = []
        if not self.temperature >= 0:
            problems.append(f"temperature is {self.temperature}, at least 0 is needed")
        if self.top_k is not None and self.top_k < 1:
            problems.append(f"top_k is {self.top_k}, at least 1 is needed")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            problems.append(f"top_p is {self.top_p}, expected more than 0 and at most 1")
        if self.seed is not None and self.seed < 0:
            problems.append(f"seed is {self.seed}, at least 0 is needed")
        if problems:
            raise OptionError("sampling: " + "; ".join(problems) + ".")

    def rng(self) -> np.random.Generator:
        """Return the random source of one run, for `draw`."""
        return np.random.default_rng(self.seed)

    def draw(self, logits: npt.NDArray[np.float32], rng: np.random.Generator) -> int:
        """Draw one token id from logits (n_token,)."""
        if self.temperature == 0:
            return int(logits.argmax())
        with np.errstate(over="ignore"):  # a tiny temperature leaves minus infinity for all but the likeliest
            scores = (logits.astype(np.float64) - logits.max()) / self.temperature
        tokens, probabilities = self._candidates(scores)
        return int(rng.choice(tokens, p=probabilities / probabilities.sum()))

    def _candidates(self, scores: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return tokens (n,) that may be drawn, and weights (n,) proportional to their probabilities.

        Only the candidates of top_k and top_p are sorted: to sort a vocabulary of 267,735 takes longer than many
        steps.
        """
        V = len(scores)
        k = V if self.top_k is None else min(self.top_k, V)
        probabilities = np.exp(scores)
        if k < V:
            tokens = np.flatnonzero(scores >= np.partition(scores, V - k)[V - k])  # more than k if some are equal
        elif self.top_p is not None:
            # The less likely tokens together have less probability than 1 - top_p, so none of them is needed.
            tokens = np.flatnonzero(probabilities >= (1 - self.top_p) / V * probabilities.sum())
        else:
            return np.arange(V), probabilities
        tokens = tokens[np.argsort(-scores[tokens], kind="stable")][:k]  # likeliest first; equal ones by id
        if self.top_p is not None:
            total = probabilities[tokens].sum() if k < V else probabilities.sum()
            reached = (probabilities[tokens] / total).cumsum()
            tokens = tokens[: int(np.searchsorted(reached, self.top_p)) + 1]  # always at least the likeliest one
        return tokens, probabilities[tokens]


def generate_whole(
    engine: Engine,
    evaluation: EvaluationSettings,
    prompt: str | bytes | npt.NDArray[np.int64] | list[int],
    max_tokens: int,
    sampling: Sampling,
) -> Iterator[int]:
    """Continue `prompt`: yield token ids as they are drawn.

    Raises:
        OptionError, TextError: as `Model.generate`.
    """
    if max_tokens < 0:
        raise OptionError(f"max_tokens is {max_tokens}, at least 0 is needed.")
    ids = encode(prompt, engine.tokenizer, engine.bundle.vocab_size, "the prompt")
    if not len(ids):
        raise TextError("nothing to continue: the prompt is empty.", repair="Give a prompt.")
    check_length(len(ids) + max_tokens, evaluation, f"the prompt and {max_tokens:,} tokens after it")
    return _generate(engine, evaluation, ids, max_tokens, sampling)


def draw_tokens(
    next_logits: Callable[[], npt.NDArray[np.float32]],
    take: Callable[[int], object],
    max_tokens: int,
    sampling: Sampling,
    repair: str,
) -> Iterator[int]:
    """Yield up to `max_tokens` token ids, each drawn after the ones before it.

    Args:
        next_logits: runs the model and returns the logits (n_token,) of the next token.
        take: adds a drawn token to the document.
        repair: the repair in the message about logits that are not finite.

    Raises:
        XlruntimeError: logits are not finite.
    """
    rng = sampling.rng()
    for _ in range(max_tokens):
        logits = next_logits()
        if not np.isfinite(logits).all():
            raise XlruntimeError("the model gave logits that are not finite, so generation stops.", repair=repair)
        token = sampling.draw(logits, rng)
        take(token)
        yield token


def _generate(
    engine: Engine, evaluation: EvaluationSettings, ids: Ids, max_tokens: int, sampling: Sampling
) -> Iterator[int]:
    longest = evaluation.longest_part
    assert longest is not None
    memory, read = engine.new_memory(evaluation), ids.tolist()

    def next_logits() -> npt.NDArray[np.float32]:
        part = np.array([read[(len(read) - 1) // longest * longest :]], np.int64)
        memory.restart(0)
        logits: npt.NDArray[np.float32] = engine.step("generate", memory, part, part)["logits"][0]  # any target
        return logits

    yield from draw_tokens(next_logits, read.append, max_tokens, sampling, "Give another prompt.")
