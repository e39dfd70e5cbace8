"""Write src/unicode_tables.inc: white space and lower case for the tokenizer of words, controls for messages.

python make_unicode_tables.py > src/unicode_tables.inc
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterator

__all__ = ["tables"]

WIDTH = 118
SIGMA, FINAL_SIGMA = "\u03a3", "\u03c2"
LAST = 0x10FFFF


def tables() -> str:
    """Return the tables as C++."""
    return "\n".join(
        [
            f"// Unicode {unicodedata.unidata_version}, made by make_unicode_tables.py. Ranges are first, last.",
            *_table("Range kSpaces[]", _ranges(str.isspace)),
            *_table("Range kControls[]", _ranges(lambda mark: unicodedata.category(mark) in ("Cc", "Cf", "Zl", "Zp"))),
            "// Decides whether a sigma is final: letters with case, and marks that do not end a word.",
            *_table("Range kCased[]", _ranges(_is_cased)),
            *_table("Range kCaseIgnored[]", _ranges(_is_ignored)),
            "// first, last, step, what to add. U+0130 alone becomes two characters, and is not here.",
            *_table("LowerRun kLower[]", _lower_runs()),
            "",
        ]
    )


def _table(head: str, rows: Iterator[tuple[int, ...]]) -> Iterator[str]:
    yield f"constexpr {head} = {{"
    line = "   "
    for row in rows:
        part = f" {{{', '.join(map(str, row))}}},"
        if len(line) + len(part) > WIDTH:
            yield line
            line = "   "
        line += part
    yield line
    yield "};"


def _ranges(belongs: Callable[[str], bool]) -> Iterator[tuple[int, int]]:
    first: int | None = None
    for code in range(LAST + 2):
        inside = code <= LAST and belongs(chr(code))
        if inside and first is None:
            first = code
        elif not inside and first is not None:
            yield first, code - 1
            first = None


def _is_cased(mark: str) -> bool:
    """Return whether a sigma after `mark` is final: it is a letter with case, and not an ignored mark."""
    return (mark + SIGMA).lower()[-1] == FINAL_SIGMA


def _is_ignored(mark: str) -> bool:
    """Return whether a sigma sees a letter through `mark`."""
    return not _is_cased(mark) and ("A" + mark + SIGMA).lower()[-1] == FINAL_SIGMA


def _lower_runs() -> Iterator[tuple[int, int, int, int]]:
    lower = [(code, ord(chr(code).lower()) - code) for code in range(LAST + 1) if len(chr(code).lower()) == 1]
    changed = [pair for pair in lower if pair[1]]
    while changed:
        first, delta = changed[0]
        step = changed[1][0] - first if len(changed) > 1 and changed[1][1] == delta else 1
        count = 1
        while count < len(changed) and changed[count] == (first + count * step, delta):
            count += 1
        yield first, first + (count - 1) * step, step, delta
        changed = changed[count:]


if __name__ == "__main__":
    sys.stdout.write(tables())
