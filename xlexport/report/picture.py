"""A picture for a paper: surprisal by word, of one side or two, readable in black and white."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport.figures import plain, save_picture
from xlexport.report.list_page import ListRow
from xlruntime import TextError
from xlruntime.messages import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_words"]

LINE_WORDS = 20  # at most on one line of the picture, as wide as a page
FEWEST_WORDS = 6  # for which a line has room
MOST_LINES = 15  # of one picture
LONGEST_LABEL = 16  # characters of a word
LONGEST_NAME = 90  # characters of a title, or of a document or side
LINE_HEIGHT, WIDTH = 1.7, 8.0  # inches
# Both sides differ in marker, filling and line style, so that they also differ in black and white.
STYLES: tuple[dict[str, Any], ...] = (
    {"color": "black", "marker": "o", "markerfacecolor": "black", "linestyle": "-"},
    {"color": "0.35", "marker": "s", "markerfacecolor": "white", "linestyle": "--"},
)


@dataclass(frozen=True)
class _Line:
    """Words first … end - 1 of a document, on one line of the picture."""

    row: ListRow
    first: int
    end: int


def draw_words(rows: Sequence[ListRow], sides: Sequence[str], title: str, path: Path) -> list[str]:
    """Draw bits by word: one series for each side, with a marker for each word of which all tokens have a score.

    Returns:
        sentences about what the picture leaves out.

    Raises:
        TextError: the documents have only white space.
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure  # without pyplot, which needs a display

    lines = [
        _Line(row, first, min(first + LINE_WORDS, len(row.sides[0].starts)))
        for row in rows
        for first in range(0, len(row.sides[0].starts), LINE_WORDS)
    ]
    if not lines:
        raise TextError(f"{title}: no words to draw, only white space.", hint="Give another text.")
    first_lines = lines[:MOST_LINES]
    figure = Figure(figsize=(WIDTH, 0.9 + LINE_HEIGHT * len(first_lines)), layout="constrained")
    longest = max(FEWEST_WORDS, *(line.end - line.first for line in first_lines))
    highest = max(float(np.nanmax(part, initial=1.0)) for line in first_lines for part in _bits(line))
    for line, axes in zip(first_lines, figure.subplots(len(first_lines), 1, squeeze=False)[:, 0], strict=True):
        _draw_line(line, axes, sides)
        axes.set_xlim(-0.5, longest - 0.5)
        axes.set_ylim(0, 1.08 * highest)
        if line.first == 0 and len(rows) > 1:
            axes.set_title(plain(_shown(line.row.held.name)), fontsize="small", loc="left")
    if len(sides) > 1:
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, fontsize="small", loc="outside lower center", ncols=len(sides), frameon=False)
    figure.suptitle(plain(_shown(title)), fontsize="medium", x=0.01, ha="left")
    figure.supylabel("surprisal (bits)", fontsize="medium")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save_picture(figure, path)
    return [*_omissions(lines, first_lines), *_missing_glyphs(caught)]


def _bits(line: _Line) -> list[npt.NDArray[np.float64]]:
    sides = (side.bits[line.first : line.end] for side in line.row.sides)
    return [np.where(np.isfinite(bits), bits, np.nan) for bits in sides]


def _draw_line(line: _Line, axes: Axes, sides: Sequence[str]) -> None:
    for bits, name, style in zip(_bits(line), sides, STYLES, strict=False):
        axes.plot(np.arange(len(bits)), bits, markersize=4.5, linewidth=1, label=plain(_shown(name)), **style)
    words = line.row.sides[0]
    units = words.text.encode("utf-16-le", "surrogatepass")
    labels = [
        plain(_shown(units[2 * start : 2 * end].decode("utf-16-le", "replace"), LONGEST_LABEL))
        for start, end in zip(words.starts[line.first : line.end], words.ends[line.first : line.end], strict=True)
    ]
    axes.set_xticks(range(len(labels)), labels, rotation=35, ha="right", rotation_mode="anchor", fontsize="small")
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _shown(text: str, most: int = LONGEST_NAME) -> str:
    """Return a text on one line, cut if it is long, with a mark for each character that cannot be drawn."""
    visible = "".join(mark if mark.isprintable() else "\ufffd" for mark in text[: most + 1])
    return visible if len(visible) <= most else f"{visible[: most - 1]}…"


def _omissions(lines: Sequence[_Line], first_lines: Sequence[_Line]) -> list[str]:
    n_words, n_omitted = (
        sum(line.end - line.first for line in some) for some in (first_lines, lines[len(first_lines) :])
    )
    if not n_omitted:
        return []
    return [
        f"The picture has the first {n_words:,} words; {n_omitted:,} further ones are left out, because it has at most "
        f"{MOST_LINES} lines of {LINE_WORDS} words."
    ]


def _missing_glyphs(caught: Sequence[warnings.WarningMessage]) -> list[str]:
    """Return a sentence about characters that the font lacks, and show all other warnings again."""
    missing = {str(warning.message) for warning in caught if "missing from font" in str(warning.message)}
    for warning in caught:
        if str(warning.message) not in missing:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if not missing:
        return []
    return [f"The font of the picture lacks {counted(len(missing), 'character')}, so a box appears instead."]
