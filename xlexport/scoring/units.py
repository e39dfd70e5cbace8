"""Lines and words of documents: the scores of their tokens added up, while the text goes by.

A word is what stands between white space (ASCII), and has the white space before it; the last word of a document also
has that behind it. A line ends with its newline. A token counts where its first byte stands that is not white space;
one of white space alone counts for the word after it, and for the line in which it begins. So each token, byte and
character of a document counts once, and the sums are those of the document.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xlexport.scoring.text_source import TextSource
from xlruntime import TokenScores
from xlruntime.documents import Tokenizer
from xlruntime.tokenizers import ByteTokenizer
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

__all__ = ["SavedSplitter", "Unit", "UnitSplitter"]

SPACES = b" \t\n\r\v\f"  # what TextCounts takes for white space
IS_SPACE = np.isin(np.arange(256), np.frombuffer(SPACES, np.uint8))
NEWLINE = ord("\n")
LARGEST = 2**62  # of a count: far from overflowing
LONGEST_WORD = 1000  # bytes of a word that are kept to show it

Array = npt.NDArray[np.int64]


@dataclass
class Unit:
    """A line or a word, as far as it has been read.

    Attributes:
        index: place among the document's units, from 0.
        start, end: where it stands, in what the tokens' offsets count; of a word without the white space around it.
        tokens, scored_tokens, words, chars, bytes: what is in it; the white space before a word is.
        scored_chars, scored_bytes: those that scored tokens stand for.
        nats: of the scored tokens together.
        context: how many tokens the prediction of its first scored token attended to; None: it has none.
        text: of a word, UTF-8 without the white space, as bytes in Latin-1: at most LONGEST_WORD.
    """

    index: int
    start: int
    end: int
    tokens: int = 0
    scored_tokens: int = 0
    words: int = 0
    chars: int = 0
    bytes: int = 0
    scored_chars: int = 0
    scored_bytes: int = 0
    nats: float = 0.0
    context: int | None = None
    text: str = ""

    def problems(self) -> list[str]:
        """Return what no unit can be."""
        counts = {name: value for name, value in vars(self).items() if isinstance(value, int)}
        found = [
            f"{name} is {str(value)[:20]}, expected 0 to {LARGEST}"
            for name, value in counts.items()
            if not 0 <= value <= LARGEST
        ]
        if len(self.text) > LONGEST_WORD or not all(ord(mark) < 256 for mark in self.text):
            found.append("text is not the bytes of a word")
        return found

    def add(self, other: Unit) -> None:
        """Count what is in `other` as well."""
        for name in ("tokens", "scored_tokens", "words", "chars", "bytes", "scored_chars", "scored_bytes", "nats"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.context = other.context if self.context is None else self.context
        self.text = (self.text + other.text)[:LONGEST_WORD]


@dataclass(frozen=True)
class SavedSplitter:
    """Hold what a `UnitSplitter` saves; the fields are its own, and `base` is that of its source."""

    base: int
    chars: int
    before: int
    anchor: int
    opened: int
    open: Unit
    held: Unit | None

    def problems(self) -> list[str]:
        """Return what no splitter can have left."""
        places = {"base": LARGEST, "chars": self.base, "before": 255, "anchor": self.base, "opened": self.base}
        found = [
            f"{name} is {str(value)[:20]}, expected 0 to {most}"
            for name, most in places.items()
            if not 0 <= (value := getattr(self, name)) <= most
        ]
        return found + self.open.problems() + ([] if self.held is None else self.held.problems())


class UnitSplitter:
    """Splits one document into lines or words, part by part.

    Args:
        source: keeps the document's text, of which only what is not split yet stays.
        tokenizer: of the model; tells what offsets count, and whether what stands between tokens has no token.
    """

    def __init__(self, by: Literal["line", "word"], source: TextSource, tokenizer: Tokenizer) -> None:
        vocabulary = tokenizer.vocabulary if isinstance(tokenizer, VocabularyTokenizer) else None
        self._by_word = by == "word"
        self._source = source
        self._in_bytes = isinstance(tokenizer, ByteTokenizer) or (vocabulary is not None and vocabulary.kind == "bytes")
        self._drops = vocabulary is not None and vocabulary.kind != "words"
        self._chars = 0  # characters before source.base
        self._before = NEWLINE  # the byte before it
        self._anchor = 0  # where the last token counted
        self._opened = 0  # where the open unit begins
        self._open = Unit(0, 0, 0)
        self._held: Unit | None = None  # the last word, until there is another

    def take(self, part: TokenScores) -> list[Unit]:
        """The units that the next tokens complete; with the document's last ones, all that are left."""
        source, ended = self._source, part.summary is not None
        raw = self._text(part, ended)
        starts, ends, unscored = self._places(part, raw)
        is_space = IS_SPACE[raw]
        done = len(raw) if ended else int(ends.max(initial=0))
        edges = self._edges(raw, is_space, done)
        anchors = np.maximum.accumulate(np.maximum(_anchors(starts, ends, is_space), self._anchor - source.base))
        units = self._split(raw[:done], is_space[:done], edges)
        self._count(units, part, np.searchsorted(edges, anchors, "right"), unscored)
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
        """What is complete of a document that cannot be read on."""
        return [] if self._held is None else [self._held]

    def state(self) -> dict[str, Any]:
        """For JSON: all that `restore` needs."""
        saved = SavedSplitter(
            self._source.base, self._chars, self._before, self._anchor, self._opened, self._open, self._held
        )
        return asdict(saved)

    def restore(self, saved: SavedSplitter) -> None:
        """Go on from a state, with a source that has not been read yet."""
        self._source.base, self._chars, self._before = saved.base, saved.chars, saved.before
        self._anchor, self._opened = saved.anchor, saved.opened
        self._open, self._held = saved.open, saved.held

    def check_source(self) -> None:
        """Compare the source with the state, once it has been read again as far as it was.

        Raises:
            ValueError: it ended before that.
        """
        if self._source.base > self._source.tell():
            raise ValueError(f"base is {self._source.base}, but only {self._source.tell()} bytes were read")

    def _text(self, part: TokenScores, ended: bool) -> npt.NDArray[np.uint8]:
        """The text from source.base on, as far as the tokens reach, and what tells whether a word ends there."""
        kept = self._source.kept
        if ended:
            return np.frombuffer(bytes(kept), np.uint8)
        last = max(int(part.ends.max(initial=0)), 0 if part.first is None else int(part.first.ends.max(initial=0)))
        reach = last - self._source.base if self._in_bytes else 4 * (last - self._chars)  # of UTF-8, at most
        return np.frombuffer(bytes(memoryview(kept)[: max(reach, 0) + 1]), np.uint8)

    def _places(self, part: TokenScores, raw: npt.NDArray[np.uint8]) -> tuple[Array, Array, int]:
        """Where tokens begin and end in `raw`, in bytes, and how many of them have no score (the first one)."""
        first = part.first
        unscored = 0 if first is None else len(first)
        starts, ends = part.starts, part.ends
        if first is not None:
            starts, ends = np.concatenate([first.starts, starts]), np.concatenate([first.ends, ends])
        if self._in_bytes:
            starts, ends = starts - self._source.base, ends - self._source.base
        else:
            places = np.append(np.flatnonzero((raw & 0xC0) != 0x80), len(raw))  # of the characters, and the end
            starts, ends = (places[np.clip(at - self._chars, 0, len(places) - 1)] for at in (starts, ends))
        starts = np.clip(starts, 0, len(raw))
        return starts, np.clip(ends, starts, len(raw)), unscored

    def _edges(self, raw: npt.NDArray[np.uint8], is_space: npt.NDArray[np.bool_], done: int) -> Array:
        """Where units begin in `raw`, as far as `done`, but for the one that is open."""
        if self._by_word:
            before = np.concatenate([[IS_SPACE[self._before]], is_space[:-1]])
            found = np.flatnonzero(is_space & ~before)
        else:
            found = np.flatnonzero(np.concatenate([[self._before], raw[:-1]]) == NEWLINE)
        first, last = np.searchsorted(found, (self._opened - self._source.base + 1, done + 1))
        return found[first:last]

    def _split(self, raw: npt.NDArray[np.uint8], is_space: npt.NDArray[np.bool_], edges: Array) -> list[Unit]:
        """The open unit and those that begin in `raw`, with the text that is in it."""
        bounds = np.concatenate([[0], edges, [len(raw)]])
        leads = np.concatenate([[0], np.cumsum((raw & 0xC0) != 0x80)])
        begins = np.flatnonzero(~is_space & np.concatenate([[IS_SPACE[self._before]], is_space[:-1]]))
        words = np.diff(np.searchsorted(begins, bounds)).tolist()
        word_starts = np.append(begins, len(raw))[np.searchsorted(begins, bounds[:-1])]
        zero = (self._source.base, bounds) if self._in_bytes else (self._chars, leads[bounds])
        places = (zero[1] + zero[0]).tolist()
        starts = (word_starts + zero[0] if self._in_bytes else leads[word_starts] + zero[0]).tolist()
        sizes, chars = np.diff(bounds).tolist(), np.diff(leads[bounds]).tolist()
        units = [self._open, *(Unit(self._open.index + n, places[n], 0) for n in range(1, len(edges) + 1))]
        text = raw.tobytes().decode("latin-1") if self._by_word else ""
        limits = bounds.tolist()
        for n, unit in enumerate(units):
            if self._by_word:
                if words[n]:
                    unit.start = starts[n]
                inside = words[n] or unit.words
                if inside and len(unit.text) < LONGEST_WORD:
                    unit.text = (unit.text + text[limits[n] : limits[n + 1]].strip(SPACES.decode()))[:LONGEST_WORD]
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
        for n, unit in enumerate(units):
            unit.tokens += tokens[n]
            if numbers[n]:
                unit.scored_tokens += numbers[n]
                unit.nats += nats[n]
                if unit.context is None:
                    unit.context = int(part.context[firsts[n]])

    def _leave_out(
        self, units: list[Unit], edges: Array, raw: npt.NDArray[np.uint8], starts: Array, ends: Array, unscored: int
    ) -> None:
        """Take what has no score from the counts: what the first token stands for, and what no token does."""
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
        """Those to which nothing can be added any more."""
        *done, self._open = units
        if self._held is not None:
            done.insert(0, self._held)
            self._held = None
        if ended:
            if self._by_word and not self._open.words and done:
                end = done[-1].end
                done[-1].add(self._open)
                done[-1].end = end
            elif self._open.bytes or self._open.tokens:
                done.append(self._open)
        elif self._by_word and not self._open.words and done:
            self._held = done.pop()
        return done


def _anchors(starts: Array, ends: Array, is_space: npt.NDArray[np.bool_]) -> Array:
    """Where each token counts: at its first byte that is not white space, or else where it begins."""
    inside = np.append(np.flatnonzero(~is_space), len(is_space))
    found = inside[np.searchsorted(inside[:-1], starts)]
    return np.where(found < ends, found, starts)
