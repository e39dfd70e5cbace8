"""The interface of an encoder-decoder for applications: targets of sources, and their probabilities."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import numpy as np
import numpy.typing as npt

from .beam_search import Beam, SearchOptions
from .bundle import ENCODE, Encoder
from .documents import Ids, encode
from .engine import Engine
from .errors import OptionError, TooLongError, XlruntimeError
from .load_options import LoadKeywords, LoadOptions
from .memory import Memory
from .opening import open_as
from .providers import owned_value
from .scores import Sum

__all__ = ["Text", "Translation", "Translator", "load_translator"]

Text = str | bytes | npt.NDArray[np.int64] | list[int]


@dataclass(frozen=True)
class Translation:
    """The target that was found for a source.

    Attributes:
        text: the target.
        ids: its tokens, without the end.
        log_prob: natural logarithm of its probability, with the end if it has ended.
        score: `log_prob` / length penalty, by which the search has chosen it.
        ended: whether the model ended it; if not, it was cut off at the longest length.
    """

    text: str
    ids: tuple[int, ...]
    log_prob: float
    score: float
    ended: bool


def load_translator(folder: str | Path, **options: Unpack[LoadKeywords]) -> Translator:
    """Open the bundle of an encoder-decoder. Arguments and errors are those of `load`.

    Raises:
        BundleError: also if the bundle is a language model.
    """
    return open_as(Translator, folder, LoadOptions(**options), translates=True)


class Translator(Engine):
    """An open encoder-decoder. Safe to share between threads."""

    @property
    def encoder(self) -> Encoder:
        """The sizes and reserved ids of the encoder."""
        assert self.bundle.encoder is not None
        return self.bundle.encoder

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
        memory = self.new_targets([self._source(source, "the source")])
        ids = encode(target, self.tokenizer, self.bundle.vocab_size, "the target")
        if len(ids) >= self.longest_target:
            raise TooLongError(
                f"the target: {len(ids):,} tokens, but the model reads at most {self.longest_target - 1:,}.",
                hint="Shorten it.",
            )
        read, predicted = (np.array([part]) for part in ([self.encoder.start, *ids], [*ids, self.encoder.end]))
        total = Sum()
        for start in range(0, read.shape[1], memory.max_segment):
            part = slice(start, start + memory.max_segment)
            total.add(self.step("score", memory, read[:, part], predicted[:, part])["log_prob"])
        return total.value

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
            best = beam.best
            text = self.tokenizer.decode(list(best.ids))
            yield Translation(text, best.ids, best.log_prob, best.score, best.ended)

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
            taken.set_constants({name: owned_value(array, self.device) for name, array in sources.items()})
        return taken
