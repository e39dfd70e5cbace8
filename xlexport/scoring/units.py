"""Lines, words and regions of documents: sums of the scores of their tokens, computed while the text is read.

A word is a text between white space (ASCII). It includes the white space before it; the last word of a document also
includes the white space after it. A line ends with its newline. A token counts for the unit that holds its first byte
that is not white space. A token of white space alone counts for the word after it, and for the line in which it begins.
A region is cut where its source says (`regions`), and otherwise treated as a word. So are words without punctuation.
In a text that is joined from rows, each row is a unit, and a token counts for the row in which it ends.
So each token, byte and character of a document counts once, and the sums over its units are the document's sums.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xlexport.scoring.inputs import TextSource
from xlruntime import TokenScores
from xlruntime.documents import IS_SPACE, Tokenizer
from xlruntime.tokenizers import VocabularyTokenizer
from xlruntime.words import byte_places, token_anchors, word_edges

By = Literal["line", "word", "region"]

__all__ = ["By", "Unit", "UnitSplitter"]

NEWLINE = ord("\n")
LONGEST_TEXT = 1000  # bytes of a unit that are kept to show it

Array = npt.NDArray[np.int64]


@dataclass
class Unit:
    """The part of a line, a word or a region that has been read so far.

    Attributes:
        index: place among the document's units, from 0.
        start, end: its place, in the unit of the tokens' offsets; for a word or region without the white space
            around it.
        tokens, scored_tokens, words, chars, bytes: numbers of each in it, with the white space before a word.
        filled: whether it has more than white space.
        scored_chars, scored_bytes: numbers of characters and bytes that scored tokens represent.
        nats: sum of the scored tokens' surprisal.
        context: how many tokens the prediction of its first scored token attended to; None: no token has a score.
        text: its UTF-8 bytes as Latin-1 characters, of a word or region without the white space around it: at most
            LONGEST_TEXT.
        entropy_first, entropy_sum: entropy of the prediction of its first scored token, and the sum over its scored
            tokens, in nats; None if the scores have no such detail, or no token has a score.
        begins: natural logarithm of the probability that the text before it ended there; 0 for the first unit, unless
            its first token ends the last word of a context; None: not known, or a token continues over this place.
        corrected: `nats` with the correction for boundaries; None if it cannot be known.
    """

    index: int
    start: int
    end: int
    tokens: int = 0
    scored_tokens: int = 0
    words: int = 0
    filled: bool = False
    chars: int = 0
    bytes: int = 0
    scored_chars: int = 0
    scored_bytes: int = 0
    nats: float = 0.0
    context: int | None = None
    text: str = ""
    entropy_first: float | None = None
    entropy_sum: float | None = None
    begins: float | None = None
    corrected: float | None = None

    @property
    def complete(self) -> bool:
        """Whether the unit has tokens and all have a score; otherwise its sums are meaningless."""
        return 0 < self.scored_tokens == self.tokens

    def add(self, other: Unit) -> None:
        """Add the counts of `other`."""
        for name in ("tokens", "scored_tokens", "words", "chars", "bytes", "scored_chars", "scored_bytes", "nats"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.context = other.context if self.context is None else self.context
        self.text = (self.text + other.text)[:LONGEST_TEXT]
        self.add_entropy(other.entropy_first, other.entropy_sum)

    def add_entropy(self, first: float | None, together: float | None) -> None:
        """Add the entropies of further tokens."""
        self.entropy_first = first if self.entropy_first is None else self.entropy_first
        if together is not None:
            self.entropy_sum = together + (self.entropy_sum or 0.0)

    def correct(self, following: float | None) -> None:
        """Compute `corrected`, if all tokens are scored.

        Args:
            following: natural logarithm of the probability that the text ends after it; None: not known.
        """
        if self.begins is not None and following is not None and self.complete:
            self.corrected = self.nats + self.begins - following


class UnitSplitter:
    """Splits one document into lines, words or regions, part by part.

    Args:
        source: keeps the part of the document's text that is not split yet.
        tokenizer: the model's; decides what offsets count, and whether text between tokens has no token.
        follows: whether the document follows a context, whose last word its first token may end.
    """

    def __init__(self, by: By, source: TextSource, tokenizer: Tokenizer, follows: bool = False) -> None:
        vocabulary = tokenizer.vocabulary if isinstance(tokenizer, VocabularyTokenizer) else None
        self._by = by
        self._holds_last = by != "line"  # it includes the white space after it
        self._source = source
        self._in_bytes = tokenizer.offsets_in_bytes
        self._drops = vocabulary is not None and vocabulary.kind != "words"
        self._chars = 0  # characters before source.base
        self._before = NEWLINE  # the byte before it
        self._anchor = 0  # the place for which the last token counted
        self._opened = 0  # where the open unit begins
        self._open = Unit(0, 0, 0, begins=None if follows else 0.0)
        self._held: Unit | None = None  # the last word or region, until another one begins

    def take(self, part: TokenScores) -> list[Unit]:
        """Return the units that the next tokens complete; with the document's last tokens, all remaining units."""
        source, ended = self._source, part.summary is not None
        raw = self._text(part, ended)
        starts, ends, unscored = self._places(part, raw)
        is_space = IS_SPACE[raw]
        done = len(raw) if ended else int(ends.max(initial=0))
        edges = self._edges(raw, is_space, done)
        own = np.maximum(ends - 1, starts) if source.by_ends else token_anchors(starts, ends, is_space)
        anchors = np.maximum.accumulate(np.maximum(own, self._anchor - source.base))
        units = self._split(raw[:done], is_space[:done], edges)
        self._count(units, part, np.searchsorted(edges, anchors, "right"), unscored)
        if part.word_ends is not None:
            self._correct(units, part, edges, starts, ends, unscored)
        self._leave_out(units, edges, raw[:done], starts, ends, unscored)
        if len(anchors):
            self._anchor = int(anchors[-1]) + source.base
        if done:
            self._before = int(raw[done - 1])
            self._chars += int(np.count_nonzero((raw[:done] & 0xC0) != 0x80))
        if len(edges):
            self._opened = int(edges[-1]) + source.base
        source.let_go(source.base + done)
        return self._completed(units, ended)

    def give_up(self) -> list[Unit]:
        """Return the complete units of a document whose reading failed."""
        return [] if self._held is None else [self._held]

    def state(self) -> dict[str, Any]:
        """Return everything that `restore` needs, for JSON."""
        places = (self._source.base, self._chars, self._before, self._anchor, self._opened)
        return {"places": places, "open": asdict(self._open), "held": self._held and asdict(self._held)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, with a source that has not been read yet."""
        self._source.base, self._chars, self._before, self._anchor, self._opened = state["places"]
        self._open, self._held = Unit(**state["open"]), state["held"] and Unit(**state["held"])

    def _text(self, part: TokenScores, ended: bool) -> npt.NDArray[np.uint8]:
        """Return the text from source.base to the end of the tokens, and one more byte that shows if a word ends."""
        kept = self._source.kept
        if ended:
            return np.frombuffer(bytes(kept), np.uint8)
        last = max(int(part.ends.max(initial=0)), 0 if part.first is None else int(part.first.ends.max(initial=0)))
        reach = last - self._source.base if self._in_bytes else 4 * (last - self._chars)  # of UTF-8, at most
        return np.frombuffer(bytes(memoryview(kept)[: max(reach, 0) + 1]), np.uint8)

    def _places(self, part: TokenScores, raw: npt.NDArray[np.uint8]) -> tuple[Array, Array, int]:
        """Return where tokens begin and end in `raw`, in bytes, and the number without a score (the first one)."""
        first = part.first
        unscored = 0 if first is None else len(first)
        starts, ends = part.starts, part.ends
        if first is not None:
            starts, ends = np.concatenate([first.starts, starts]), np.concatenate([first.ends, ends])
        before = self._source.base if self._in_bytes else self._chars
        return *byte_places(starts - before, ends - before, raw, self._in_bytes), unscored

    def _edges(self, raw: npt.NDArray[np.uint8], is_space: npt.NDArray[np.bool_], done: int) -> Array:
        """Return the places up to `done` at which units begin in `raw`, without the open unit."""
        base, edges = self._source.base, self._source.edges
        if edges is not None:
            first, last = np.searchsorted(edges, (self._opened + 1, base + done + 1))
            return edges[first:last] - base
        if self._by == "word":
            begins = word_edges(is_space, bool(IS_SPACE[self._before]))
        else:
            begins = np.flatnonzero(np.concatenate([[self._before], raw[:-1]]) == NEWLINE)
        first, last = np.searchsorted(begins, (self._opened - base + 1, done + 1))
        return begins[first:last]

    def _split(self, raw: npt.NDArray[np.uint8], is_space: npt.NDArray[np.bool_], edges: Array) -> list[Unit]:
        """Return the open unit and the units that begin in `raw`, with the counts of that text."""
        bounds = np.concatenate([[0], edges, [len(raw)]])
        leads = np.concatenate([[0], np.cumsum((raw & 0xC0) != 0x80)])
        begins = np.flatnonzero(~is_space & np.concatenate([[IS_SPACE[self._before]], is_space[:-1]]))
        words = np.diff(np.searchsorted(begins, bounds)).tolist()
        inside = np.flatnonzero(~is_space)
        first_places = np.append(inside, len(raw))[np.searchsorted(inside, bounds[:-1])]  # what is not white space
        firsts = first_places.tolist()
        zero = (self._source.base, bounds) if self._in_bytes else (self._chars, leads[bounds])
        places = (zero[1] + zero[0]).tolist()
        starts = (first_places + zero[0] if self._in_bytes else leads[first_places] + zero[0]).tolist()
        sizes, chars = np.diff(bounds).tolist(), np.diff(leads[bounds]).tolist()
        units = [self._open, *(Unit(self._open.index + n, places[n], 0) for n in range(1, len(edges) + 1))]
        text = raw.tobytes().decode("latin-1")
        limits = bounds.tolist()
        for n, unit in enumerate(units):
            begin = limits[n]
            if self._holds_last and not unit.filled:  # white space before a word or region is not shown
                begin = firsts[n]
                if begin < limits[n + 1]:
                    unit.start = starts[n]
            if len(unit.text) < LONGEST_TEXT:
                unit.text += text[begin : min(limits[n + 1], begin + LONGEST_TEXT - len(unit.text))]
            unit.filled = unit.filled or firsts[n] < limits[n + 1]
            unit.bytes += sizes[n]
            unit.chars += chars[n]
            unit.words += words[n]
            unit.scored_bytes += sizes[n]
            unit.scored_chars += chars[n]
            unit.end = places[n + 1]
        return units

    @staticmethod
    def _count(units: list[Unit], part: TokenScores, places: Array, unscored: int) -> None:
        """Add tokens to the units in which they count."""
        tokens = np.bincount(places, minlength=len(units)).tolist()
        scored = places[unscored:]
        numbers = np.bincount(scored, minlength=len(units)).tolist()
        nats = np.bincount(scored, weights=-part.log_probs.astype(np.float64), minlength=len(units)).tolist()
        firsts = np.searchsorted(scored, np.arange(len(units))).tolist()
        sums = [] if part.entropy is None else np.bincount(scored, weights=part.entropy, minlength=len(units)).tolist()
        for n, unit in enumerate(units):
            unit.tokens += tokens[n]
            if numbers[n]:
                unit.scored_tokens += numbers[n]
                unit.nats += nats[n]
                if unit.context is None:
                    unit.context = int(part.context[firsts[n]])
                if part.entropy is not None:
                    unit.add_entropy(float(part.entropy[firsts[n]]), sums[n])

    def _correct(
        self, units: list[Unit], part: TokenScores, edges: Array, starts: Array, ends: Array, unscored: int
    ) -> None:
        """Find where units begin with certainty, and correct the units whose ends are then known."""
        assert part.word_ends is not None
        begun = units[1:]
        if units[0].index == 0 and units[0].begins is None and len(part):
            first_end = float(part.word_ends[0])  # known if the document's first token begins with white space
            units[0].begins = first_end if math.isfinite(first_end) else 0.0
        if self._opened == self._source.base and units[0].index and units[0].begins is None:
            edges, begun = np.concatenate([[0], edges]), units  # the open unit begins with this part
        firsts = np.searchsorted(np.maximum.accumulate(ends), edges, "right").tolist()
        for unit, edge, first in zip(begun, edges.tolist(), firsts, strict=True):
            if unscored <= first < len(starts) and starts[first] >= edge:  # else a token continues over the edge
                log_prob = float(part.word_ends[first - unscored])
                unit.begins = log_prob if math.isfinite(log_prob) else None
        chain = units if self._held is None else [self._held, *units]
        for unit, following in itertools.pairwise(chain):
            if unit.corrected is None:
                unit.correct(following.begins)
        if part.summary is not None and chain[-1].filled:
            chain[-1].correct(part.last_word_end)

    def _leave_out(
        self, units: list[Unit], edges: Array, raw: npt.NDArray[np.uint8], starts: Array, ends: Array, unscored: int
    ) -> None:
        """Subtract text without a score from the counts: that of the first token, and text that has no token."""
        missing = np.zeros(len(raw), np.bool_)
        if self._drops:
            begun = np.bincount(starts, minlength=len(raw) + 1) - np.bincount(ends, minlength=len(raw) + 1)
            missing |= np.cumsum(begun)[: len(raw)] <= 0
        if unscored:
            missing[: ends[unscored - 1]] = True
        if not missing.any():
            return
        places = np.flatnonzero(missing)
        owners = np.searchsorted(edges, places, "right")
        leads = (raw[places] & 0xC0) != 0x80
        for n, (size, chars) in enumerate(
            zip(
                np.bincount(owners, minlength=len(units)).tolist(),
                np.bincount(owners[leads], minlength=len(units)).tolist(),
                strict=True,
            )
        ):
            units[n].scored_bytes -= size
            units[n].scored_chars -= chars

    def _completed(self, units: list[Unit], ended: bool) -> list[Unit]:
        """Return the units that are complete."""
        *done, self._open = units
        if self._held is not None:
            done.insert(0, self._held)
            self._held = None
        if ended:
            if self._holds_last and not self._open.filled and done:
                end = done[-1].end
                done[-1].add(self._open)
                done[-1].end = end
            elif self._open.bytes or self._open.tokens:
                done.append(self._open)
        elif self._holds_last and not self._open.filled and done:
            self._held = done.pop()
        return done
