"""The colours of report pages, read from their style sheet, and how readable they are."""

from __future__ import annotations

import re
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from xlexport.report.html_page import LEVELS

__all__ = ["INK", "PAGE", "SHEET", "contrast", "lightness", "scale"]

SHEET = files("xlexport.report").joinpath("assets", "colours.css").read_text("utf-8")
COLOURS = {
    name: {"light": light, "dark": dark}
    for name, light, dark in re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\);", SHEET)
}
PAGE, INK = COLOURS["page"], COLOURS["ink"]

FROM_OKLAB = np.array(
    [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.2914855480]]
)
TO_LINEAR = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


def scale(theme: str, letter: str = "l") -> list[str]:
    """Return the colours (#rrggbb) from expected to surprising, or with letter `c` to negative differences."""
    return [COLOURS[f"{letter}{level}"][theme] for level in range(LEVELS)]


def contrast(one: str, other: str) -> float:
    """Return the ratio of two colours' luminances as the Web Content Accessibility Guidelines define it, 1 to 21."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def lightness(colour: str) -> float:
    """Return L of Oklab, 0 to 1."""
    lms = np.cbrt(np.linalg.solve(TO_LINEAR, _linear(colour)))
    return float(np.linalg.solve(FROM_OKLAB, lms)[0])


def _linear(colour: str) -> npt.NDArray[np.float64]:
    """Return linear red, green and blue (3,), 0 to 1, of #rrggbb."""
    encoded = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def _luminance(colour: str) -> float:
    return float(_linear(colour) @ [0.2126, 0.7152, 0.0722])
