"""Count the words of texts of any length, at constant memory."""

from __future__ import annotations

import heapq
import itertools
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

__all__ = ["SymbolCounts"]

IN_MEMORY = 500_000  # different words, which take about 80 MB

_Entry = tuple[str, int, int]
"""A symbol, the place of its first occurrence among all symbols, and its count."""


class SymbolCounts:
    """Exact counts of symbols.

    A text of gigabytes has millions of words that are rare. If too many are in memory, all counts move to a file,
    sorted by symbol, and counting begins again. The files are merged in the end.
    """

    def __init__(self, folder: Path | None = None, limit: int | None = IN_MEMORY) -> None:
        """Begin without symbols.

        Args:
            folder: where the files are, which have no name; None: the folder of temporary files.
            limit: different symbols to keep in memory; None: all, because they may be white space, which separates the
                fields of a file.
        """
        self._folder, self._limit = folder, limit
        self._counts: Counter[str] = Counter()
        self._first = 0  # of the symbols in memory
        self._files: list[IO[str]] = []

    def update(self, symbols: Iterable[str]) -> None:
        """Count more symbols, in the order of the text."""
        self._counts.update(symbols)
        if self._limit is not None and len(self._counts) > self._limit:
            file = tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n", dir=self._folder)  # noqa: SIM115
            self._files.append(file)
            file.writelines(f"{symbol} {first} {count}\n" for symbol, first, count in sorted(self._in_memory()))
            self._first += len(self._counts)
            self._counts.clear()

    def _in_memory(self) -> Iterator[_Entry]:
        places = enumerate(self._counts.items(), start=self._first)
        return ((symbol, first, count) for first, (symbol, count) in places)

    def most_common(self, min_count: int = 1, max_size: int | None = None) -> list[str]:
        """Return the most frequent symbols first; equal counts keep the order of the text."""
        entries = (entry for entry in self._totals() if entry[2] >= min_count)
        ordered = sorted(entries, key=_rank) if max_size is None else heapq.nsmallest(max_size, entries, key=_rank)
        return [symbol for symbol, _, _ in ordered]

    def _totals(self) -> Iterator[_Entry]:
        """Yield each symbol once."""
        if not self._files:
            yield from self._in_memory()
            return
        parts = [*map(_entries, self._files), iter(sorted(self._in_memory()))]
        for symbol, group in itertools.groupby(heapq.merge(*parts), key=lambda entry: entry[0]):
            entries = list(group)
            yield symbol, entries[0][1], sum(count for _, _, count in entries)

    def close(self) -> None:
        """Remove the files."""
        for file in self._files:
            file.close()


def _rank(entry: _Entry) -> tuple[int, int]:
    _, first, count = entry
    return -count, first


def _entries(file: IO[str]) -> Iterator[_Entry]:
    file.seek(0)
    for line in file:
        symbol, first, count = line.split()
        yield symbol, int(first), int(count)
