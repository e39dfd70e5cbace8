"""The scale from expected to surprising, for light and for dark pages.

It runs in even steps of lightness in Oklab (https://bottosson.github.io/posts/oklab/), darker the more surprising on a
light page and brighter on a dark one, so that its order does not depend on seeing hues. It stays on one side of middle
lightness, so that one colour of text is readable on all of it.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

__all__ = ["INK", "LEVELS", "PAGE", "contrast", "css_colours", "lightness", "scale"]

LEVELS = 16
PAGE = {"light": "#fffdf9", "dark": "#17181c"}  # behind the text
INK = {"light": "#1c1915", "dark": "#f4f1ea"}  # the text

# Lightness, chroma and hue in degrees along the scale: to yellow, orange, red, rose; to indigo, plum, wine, amber.
STOPS = {
    "light": (
        (0.985, 0.012, 95),
        (0.92, 0.07, 90),
        (0.855, 0.115, 76),
        (0.79, 0.14, 55),
        (0.725, 0.16, 30),
        (0.66, 0.18, 5),
    ),
    "dark": (
        (0.24, 0.02, 280),
        (0.30, 0.07, 285),
        (0.36, 0.11, 310),
        (0.42, 0.13, 345),
        (0.48, 0.13, 15),
        (0.54, 0.125, 45),
    ),
}

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


def scale(theme: str) -> list[str]:
    """LEVELS colours (#rrggbb) from expected to surprising, for `light` or `dark`."""
    stops = STOPS[theme]
    return [_hex(*_between(stops, level / (LEVELS - 1) * (len(stops) - 1))) for level in range(LEVELS)]


def css_colours() -> str:
    """Custom properties for style sheets: `--page`, `--ink` and `--l0` … `--l15`, each for light and dark."""
    pairs = {"page": (PAGE["light"], PAGE["dark"]), "ink": (INK["light"], INK["dark"])}
    pairs |= {f"l{level}": pair for level, pair in enumerate(zip(scale("light"), scale("dark"), strict=True))}
    properties = "".join(f"  --{name}: light-dark({light}, {dark});\n" for name, (light, dark) in pairs.items())
    rules = "".join(f".l{level} {{ background: var(--l{level}); }}\n" for level in range(1, LEVELS))
    return f":root {{\n{properties}}}\n{rules}"


def contrast(one: str, other: str) -> float:
    """Ratio of two colours' luminances as the Web Content Accessibility Guidelines define it, 1 to 21."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def lightness(colour: str) -> float:
    """L of Oklab, 0 to 1."""
    lms = np.cbrt(np.linalg.solve(TO_LINEAR, _linear(colour)))
    return float(np.linalg.solve(FROM_OKLAB, lms)[0])


def _between(stops: tuple[tuple[float, float, float], ...], place: float) -> tuple[float, float, float]:
    """Lightness, chroma and hue at `place` stops from the first; hues take the shorter way round."""
    index = min(int(place), len(stops) - 2)
    (l0, c0, h0), (l1, c1, h1) = stops[index : index + 2]
    share = place - index
    turn = (h1 - h0 + 180) % 360 - 180
    return l0 + share * (l1 - l0), c0 + share * (c1 - c0), h0 + share * turn


def _hex(light: float, chroma: float, hue: float) -> str:
    """The colour, with less chroma where screens do not have it."""
    angle = math.radians(hue)
    while True:
        lms = FROM_OKLAB @ [light, chroma * math.cos(angle), chroma * math.sin(angle)]
        linear = TO_LINEAR @ lms**3
        if (linear >= -1e-4).all() and (linear <= 1 + 1e-4).all():
            break
        chroma *= 0.98
    linear = linear.clip(0, 1)
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return "#" + "".join(f"{round(value * 255):02x}" for value in encoded)


def _linear(colour: str) -> npt.NDArray[np.float64]:
    """Linear red, green and blue (3,), 0 to 1, of #rrggbb."""
    encoded = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def _luminance(colour: str) -> float:
    return float(_linear(colour) @ [0.2126, 0.7152, 0.0722])
