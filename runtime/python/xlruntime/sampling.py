"""Draw tokens from logits, equally in all runtimes (rules 30 to 33), and continue one-step documents."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .documents import Ids, check_length, encode
from .errors import OptionError, TextError, XlruntimeError
from .tokenizer_entry import TokenizerEntry

if TYPE_CHECKING:
    from .engine import Engine
    from .evaluation import EvaluationSettings

__all__ = ["Random", "Sampling", "draw_tokens", "generate_full_document"]

LARGEST_SEED = 2**64 - 1
LARGEST_PENALTY = 1e9  # for repetitions; farther from 1, products of logits are not finite


class Random:
    """Random numbers of SplitMix64; equal seeds, 0 to 2^64 - 1, give equal numbers in all runtimes."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def next(self) -> float:
        """Return the next number: at least 0, below 1."""
        self._state = z = (self._state + 0x9E3779B97F4A7C15) & LARGEST_SEED
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & LARGEST_SEED
        z = (z ^ z >> 27) * 0x94D049BB133111EB & LARGEST_SEED
        return ((z ^ z >> 31) >> 11) * 2.0**-53


def _option(default: Any, help: str, **more: Any) -> Any:
    """Return a field that commands offer as an option."""
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True)
class Sampling:
    """The rule for drawing tokens: probabilities at `temperature`, cut by `top_k`, `top_p` and `min_p`.

    Attributes:
        temperature: divisor of the logits; 0 takes the likeliest token.
        top_k: draw only from the k likeliest tokens; None: from all.
        top_p: draw only from the likeliest tokens that together reach this probability; None or 1: from all.
        seed: seed of the random draws; None: another one for each run.
        min_p: draw only from tokens at least this many times as likely as the likeliest one; 0: from all.
        repetition_penalty: divisor of the positive logits of recent tokens, and factor of their negative ones (Keskar
            et al. 2019, arXiv:1909.05858, as in Hugging Face's library); above 1, tokens repeat less often.
        repetition_window: number of tokens that count as recent, of the prompt and of what was drawn after it.
        ignore_eos: go on after a token that ends a text, which is then drawn like any other.
        stop_token_ids: ids of further tokens that end a continuation.

    Raises:
        OptionError: values are out of range; lists all of them.
    """

    temperature: float = _option(1.0, "Randomness of the draws; 0 takes the likeliest token.", common=True)
    top_k: int | None = _option(None, "Draw only from the k likeliest tokens.", common=True)
    top_p: float | None = _option(
        None, "Draw only from the likeliest tokens whose probabilities add up to this.", common=True
    )
    seed: int | None = _option(None, "Seed of the random draws.", common=True)
    min_p: float = _option(
        0.0, "Draw only from tokens at least this many times as likely as the likeliest one, such as 0.05."
    )
    repetition_penalty: float = _option(
        1.0, "Make repetitions of the last 64 tokens less likely, if above 1. For words and subwords: 1.1 to 1.3."
    )
    repetition_window: int = field(default=64, metadata={"option": False})
    ignore_eos: bool = _option(False, "Go on after a token that ends a text.")
    stop_token_ids: tuple[int, ...] = field(default=(), metadata={"option": False})

    def __post_init__(self) -> None:
        problems = []
        if not self.temperature >= 0:
            problems.append(f"temperature is {self.temperature}, at least 0 is needed")
        if self.top_k is not None and self.top_k < 1:
            problems.append(f"top_k is {self.top_k}, at least 1 is needed")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            problems.append(f"top_p is {self.top_p}, expected more than 0 and at most 1")
        if self.seed is not None and not 0 <= self.seed <= LARGEST_SEED:
            problems.append(f"seed is {self.seed}, expected 0 to {LARGEST_SEED}")
        if not 0 <= self.min_p <= 1:
            problems.append(f"min_p is {self.min_p}, expected 0 to 1")
        if not 1 / LARGEST_PENALTY <= self.repetition_penalty <= LARGEST_PENALTY:
            problems.append(f"repetition_penalty is {self.repetition_penalty}, expected 1e-9 to 1e9")
        if self.repetition_window < 1:
            problems.append(f"repetition_window is {self.repetition_window}, at least 1 is needed")
        if problems:
            raise OptionError("sampling: " + "; ".join(problems) + ".")

    def rng(self) -> Random:
        """Return the random numbers of one run, for `draw`."""
        return Random(secrets.randbits(64) if self.seed is None else self.seed)

    def ends(self, tokenizer: TokenizerEntry) -> frozenset[int]:
        """Return the ids at which a continuation ends."""
        return frozenset(self.stop_token_ids if self.ignore_eos else (*self.stop_token_ids, *tokenizer.end_ids))

    def recent(self, before: Sequence[int] | Ids) -> deque[int]:
        """Return the newest of the tokens `before`, to which the caller appends each token that it draws."""
        return deque(map(int, before[-self.repetition_window :]), self.repetition_window)

    def draw(self, logits: npt.NDArray[np.float32], rng: Random, recent: Sequence[int] = ()) -> int:
        """Draw one token id from logits (n,) of the tokens that may be drawn, after `recent` tokens."""
        scores: npt.NDArray[np.floating[Any]] = logits
        if self.repetition_penalty != 1 and (again := [token for token in recent if token < len(logits)]):
            scores, penalty = logits.astype(np.float64), self.repetition_penalty
            own = scores[again]
            scores[again] = np.where(own < 0, own * penalty, own / penalty)
        if self.temperature == 0:
            return int(scores.argmax())
        with np.errstate(over="ignore"):  # a tiny temperature leaves minus infinity for all but the likeliest
            probabilities = np.exp((scores.astype(np.float64) - scores.max()) / self.temperature)
        tokens = self._candidates(probabilities)
        reached = np.cumsum(probabilities if tokens is None else probabilities[tokens])  # added in order
        place = min(int(np.searchsorted(reached, rng.next() * reached[-1], side="right")), len(reached) - 1)
        return place if tokens is None else int(tokens[place])

    def _candidates(self, probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.int64] | None:
        """Return the tokens (n,) that may be drawn, the likeliest first and equal ones by id; None: all, by id.

        Only the candidates of top_k and top_p are sorted: to sort a vocabulary of 267,735 takes longer than many
        steps.

        Args:
            probabilities: (V,) proportional to the tokens' probabilities.
        """
        V = len(probabilities)
        if self.top_k is None and self.top_p in (None, 1) and not self.min_p:
            return None
        k, total = min(self.top_k or V, V), np.cumsum(probabilities)[-1]
        if k < V:
            least = np.partition(probabilities, V - k)[V - k]  # more than k reach it if some are equal
        else:
            # The less likely tokens together have less probability than 1 - top_p, so none of them is needed.
            least = max(self.min_p, 0.0 if self.top_p is None else (1 - self.top_p) / V * total)
        tokens = np.flatnonzero(probabilities >= least)
        tokens = tokens[np.argsort(-probabilities[tokens], kind="stable")][:k]
        if self.top_p is not None:
            reached = np.cumsum(probabilities[tokens])
            needed = self.top_p * (reached[-1] if k < V else total)
            tokens = tokens[: int(np.searchsorted(reached, needed)) + 1]  # always at least the likeliest one
        return tokens[probabilities[tokens] >= self.min_p]  # the likeliest one has 1


def generate_full_document(
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
        raise TextError("nothing to continue: the prompt is empty.", hint="Give a prompt.")
    check_length(len(ids) + max_tokens, evaluation, f"the prompt and {max_tokens:,} tokens after it")
    return _generate(engine, evaluation, ids, max_tokens, sampling)


def draw_tokens(
    engine: Engine,
    next_logits: Callable[[], npt.NDArray[np.float32]],
    take: Callable[[int], object],
    max_tokens: int,
    sampling: Sampling,
    hint: str,
    before: Sequence[int] | Ids,
) -> Iterator[int]:
    """Yield up to `max_tokens` token ids, each drawn after the ones before it; the one that ends a text is not yielded.

    Args:
        next_logits: runs the model and returns the logits (n_token,) of the next token.
        take: adds a drawn token to the document.
        hint: what a user can do about logits that are not finite.
        before: the tokens before the first draw, as far as they are known.

    Raises:
        XlruntimeError: logits are not finite.
    """
    rng, recent, size = sampling.rng(), sampling.recent(before), engine.drawable
    ends = sampling.ends(engine.bundle.tokenizer)
    for _ in range(max_tokens):
        logits = next_logits()
        if not np.isfinite(logits.max()):  # minus infinity is an impossible token
            raise XlruntimeError("the model gave logits that are not finite, so generation stops.", hint=hint)
        token = sampling.draw(logits[:size], rng, recent)
        recent.append(token)
        take(token)
        if token in ends:
            return
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

    yield from draw_tokens(engine, next_logits, read.append, max_tokens, sampling, "Give another prompt.", ids)
