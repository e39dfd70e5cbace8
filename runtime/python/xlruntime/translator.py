"""The interface of an encoder-decoder for applications: targets of sources, and their probabilities.

Beam search keeps the likeliest beginnings of a target, and extends all of them by one token at a time. A beginning that
ends leaves the search and takes its place in the beam with it, so a beam of one is greedy search. The length penalty
is that of Wu et al. 2016 (arXiv:1609.08144), section 7, without its coverage term.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Unpack

import numpy as np
import numpy.typing as npt

from .bundle import ENCODE, Encoder
from .check_once import open_checked
from .documents import Ids, encode
from .engine import Engine
from .errors import OptionError, TooLongError, XlruntimeError
from .known_answers import CheckResult, check
from .load_options import LoadKeywords, LoadOptions
from .memory import Memory
from .scores import Sum

__all__ = ["Beam", "SearchOptions", "Text", "Translation", "Translator", "length_penalty", "load_translator"]

Text = str | bytes | npt.NDArray[np.int64] | list[int]


@dataclass(frozen=True)
class SearchOptions:
    """The settings of a search.

    Attributes:
        beams: width of the beam search; 1 is greedy search.
        length_penalty: exponent of the penalty; 0 compares log-probabilities, and larger ones prefer longer targets.
        max_tokens: most tokens of a target, including its end; None: as many as the model reads.

    Raises:
        OptionError: values are out of range; lists all of them.
    """

    beams: int = 1
    length_penalty: float = 0.0
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.beams < 1:
            problems.append(f"beams is {self.beams}, at least 1 is needed")
        if not 0 <= self.length_penalty < math.inf:
            problems.append(f"length_penalty is {self.length_penalty}, expected a number of at least 0")
        if self.max_tokens is not None and self.max_tokens < 1:
            problems.append(f"max_tokens is {self.max_tokens}, at least 1 is needed")
        if problems:
            raise OptionError("search: " + "; ".join(problems) + ".")


@dataclass(frozen=True)
class Translation:
    """A target that a search has found for a source.

    Attributes:
        ids: its tokens, without the end.
        log_prob: natural logarithm of its probability, with the end if it has ended.
        score: `log_prob` / length penalty, by which targets are compared.
        ended: whether the model ended it; if not, it was cut off at the longest length.
        text: the target as text; empty while the search goes on.
    """

    ids: tuple[int, ...]
    log_prob: float
    score: float
    ended: bool
    text: str = ""


def length_penalty(tokens: int, exponent: float) -> float:
    """Return ((5 + tokens) / 6) ^ exponent, by which the log-probability of a target is divided."""
    return float(((5 + tokens) / 6) ** exponent)


@dataclass
class Beam:
    """The search for one source's target.

    Attributes:
        options: its settings.
        end: id that ends a target.
        longest: most tokens of a target, its end included.
        ids: the beginnings that are extended, the likeliest first.
        log_probs: (n,) their log-probabilities.
        ended: the targets that have ended.
    """

    options: SearchOptions
    end: int
    longest: int
    ids: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    log_probs: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))
    ended: list[Translation] = field(default_factory=list)

    def extend(self, log_probs: npt.NDArray[np.float64]) -> list[int]:
        """Extend all beginnings by the likeliest tokens.

        Equal ones are ordered by their beginnings, then by the ids of tokens, so results do not depend on chance.

        Args:
            log_probs: (n, V) of each token after each beginning; minus infinity forbids one.

        Returns:
            For each new beginning the index of the one that it extends. None are left if the search has ended.
        """
        totals = self.log_probs[:, None] + log_probs  # (n, V)
        parents, sums, before = [], [], self.ids
        self.ids = []
        for place in _largest(totals.ravel(), self.options.beams - len(self.ended)):
            parent, token = divmod(int(place), totals.shape[1])
            total = float(totals[parent, token])
            if token == self.end:
                self.ended.append(self._target(before[parent], len(before[parent]) + 1, total, True))
            else:
                parents.append(parent)
                sums.append(total)
                self.ids.append((*before[parent], token))
        self.log_probs = np.array(sums)
        return [] if self._is_over() else parents

    @property
    def best(self) -> Translation:
        """The best target that has ended; if none has, the likeliest beginning."""
        if self.ended:
            return max(self.ended, key=lambda target: target.score)  # the first of equal ones
        return self._target(self.ids[0], len(self.ids[0]), float(self.log_probs[0]), False)

    def _is_over(self) -> bool:
        """Return whether no beginning is left that can be extended to a better target than the best one."""
        if not self.ids or len(self.ids[0]) == self.longest:
            return True
        # Log-probabilities only fall, and no penalty is larger than that of the longest target.
        bound = float(self.log_probs[0]) / length_penalty(self.longest, self.options.length_penalty)
        return bool(self.ended) and self.best.score >= bound

    def _target(self, ids: tuple[int, ...], tokens: int, log_prob: float, ended: bool) -> Translation:
        return Translation(ids, log_prob, log_prob / length_penalty(tokens, self.options.length_penalty), ended)


def _largest(values: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Return the places of the `count` largest values above minus infinity, largest first, equal ones in order."""
    count = min(count, len(values))
    places = np.flatnonzero(values >= np.partition(values, len(values) - count)[len(values) - count])
    places = places[np.argsort(-values[places], kind="stable")][:count]
    return places[values[places] > -math.inf]


def load_translator(folder: str | Path, **options: Unpack[LoadKeywords]) -> Translator:
    """Open the bundle of an encoder-decoder. Arguments and errors are those of `load`.

    Raises:
        BundleError: also if the bundle is a language model.
    """
    return open_checked(Translator, folder, LoadOptions.of(options))


class Translator(Engine):
    """An open encoder-decoder. Safe to share between threads."""

    kind = "encoder-decoder"

    @property
    def encoder(self) -> Encoder:
        """The sizes and reserved ids of the encoder."""
        assert self.bundle.encoder is not None
        return self.bundle.encoder

    def check(self) -> CheckResult:
        """Score the target of the bundle's known answers on this machine; see `Model.check`."""
        with self._files.unchanged():
            return check(self)

    def translate(
        self, sources: Iterable[Text], *, options: SearchOptions | None = None, batch_size: int = 16
    ) -> Iterator[Translation]:
        """Yield the target of each source, in order.

        Args:
            options: the search, by default greedy.
            batch_size: sources that are read together. Each is searched on its own.

        Raises:
            OptionError: `batch_size` is below 1.
            TextError, TokenError: a source is too long, or not usable.
            XlruntimeError: the model gave numbers that are not finite.
        """
        if batch_size < 1:
            raise OptionError(f"batch size is {batch_size}, at least 1 is needed.")
        numbered = enumerate(sources, 1)
        while batch := list(itertools.islice(numbered, batch_size)):
            ids = [self._source(source, f"source {number:,}") for number, source in batch]
            yield from self._search(ids, options or SearchOptions())

    def log_prob(self, source: Text, target: Text) -> float:
        """Return the natural logarithm of a target's probability, with its end, given a source.

        Raises:
            TextError, TokenError: a text is too long, or not usable.
        """
        total = Sum()
        total.add(self.token_log_probs(source, target))
        return total.value

    def token_log_probs(self, source: Text, target: Text) -> npt.NDArray[np.float32]:
        """Return the natural logarithm of each probability (S + 1,) of a target's tokens and its end, given a source.

        Raises:
            TextError, TokenError: a text is too long, or not usable.
        """
        memory = self.new_targets([self._source(source, "the source")])
        ids = encode(target, self.tokenizer, self.bundle.vocab_size, "the target")
        if len(ids) >= self.longest_target:
            raise TooLongError(
                f"the target: {len(ids):,} tokens, but the model reads at most {self.longest_target - 1:,}.",
                hint="Shorten it.",
            )
        read, predicted = (np.array([part]) for part in ([self.encoder.start, *ids], [*ids, self.encoder.end]))
        parts = [slice(start, start + memory.max_segment) for start in range(0, read.shape[1], memory.max_segment)]
        return np.concatenate(
            [self.step("score", memory, read[:, part], predicted[:, part])["log_prob"][0] for part in parts]
        )

    @property
    def longest_target(self) -> int:
        """Most tokens of a target, its end included."""
        longest = self.bundle.evaluation.max_positions
        assert longest is not None
        return longest

    def new_targets(self, sources: Sequence[Ids]) -> Memory:
        """Encode sources, and return memory for the beginnings of their targets, one row for each."""
        longest = max(1, *map(len, sources))
        padded = np.full((len(sources), longest), self.encoder.pad, np.int64)
        for row, source in zip(padded, sources, strict=True):
            row[: len(source)] = source
        memory = self.new_memory(self.bundle.settings, len(sources))
        session = self.session(ENCODE)
        memory.set_constants(self._run_on_device(session, dict.fromkeys(session.graph.inputs, padded)))
        return memory

    def _source(self, source: Text, name: str) -> Ids:
        """Return the ids of a source."""
        ids = encode(source, self.tokenizer, self.bundle.vocab_size, name)
        if len(ids) > self.encoder.source_len:
            raise TooLongError(
                f"{name}: {len(ids):,} tokens, but the model reads at most {self.encoder.source_len:,}.",
                hint="Shorten it, or split it.",
            )
        return ids

    def _search(self, sources: Sequence[Ids], options: SearchOptions) -> Iterator[Translation]:
        """Search the targets of some sources together: a row of the batch for each beginning of each of them."""
        longest = min(options.max_tokens or self.longest_target, self.longest_target)
        beams = [Beam(options, self.encoder.end, longest) for _ in sources]
        memory = self.new_targets(sources)
        owners = list(range(len(sources)))  # of the batch's rows
        tokens = np.full((len(sources), 1), self.encoder.start, np.int64)
        while owners:
            log_probs = self._log_probs(self.step("generate", memory, tokens, tokens)["logits"])  # any target
            rows: list[int] = []
            for owner in dict.fromkeys(owners):
                first = owners.index(owner)
                parents = beams[owner].extend(log_probs[first : first + owners.count(owner)])
                rows += [first + parent for parent in parents]
            following = [owners[row] for row in rows]
            if rows and rows != list(range(len(owners))):
                memory = self._taken(memory, rows, following != owners)
            owners = following
            last = [ids[-1] for owner in dict.fromkeys(owners) for ids in beams[owner].ids]
            tokens = np.array(last, np.int64)[:, None]
        for beam in beams:
            yield replace(beam.best, text=self.tokenizer.decode(list(beam.best.ids)))

    def _log_probs(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return log-probabilities (R, V); padding and the start never continue a target."""
        if not np.isfinite(logits).all():
            raise XlruntimeError(
                "the model gave logits that are not finite, so the search stops.", hint="Give other texts."
            )
        scores = logits.astype(np.float64)
        scores -= scores.max(axis=1, keepdims=True)
        scores -= np.log(np.exp(scores).sum(axis=1, keepdims=True))
        scores[:, [self.encoder.pad, self.encoder.start]] = -np.inf
        return scores

    def _taken(self, memory: Memory, rows: Sequence[int], moved: bool) -> Memory:
        """Return copies of these rows of a memory.

        Args:
            moved: whether rows get other sources. Otherwise the sources of all rows stay as they are.
        """
        taken = memory.take(rows)
        if moved:
            sources = {name: value.numpy()[list(rows)] for name, value in memory.constants.items()}
            constant = self.session(ENCODE).constant
            taken.set_constants({name: constant(array) for name, array in sources.items()})
        return taken
