"""Print xlexport/report/assets/colours.css: scales from expected to surprising, for light and for dark pages.

There is a warm scale, and a cool one for negative differences. Each runs in even steps of lightness in Oklab
(https://bottosson.github.io/posts/oklab/), darker the more surprising on a light page and brighter on a dark one, so
that its order does not depend on seeing hues. It stays on one side of middle lightness, so that one colour of text is
readable on all of it.

    python scripts/make_report_colours.py > xlexport/report/assets/colours.css
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

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
# About the same lightness in blue; teal on dark pages, because the warm scale begins with indigo there.
COOL_STOPS = {
    "light": (
        (0.985, 0.012, 240),
        (0.92, 0.045, 235),
        (0.855, 0.075, 240),
        (0.79, 0.105, 247),
        (0.725, 0.125, 255),
        (0.66, 0.145, 262),
    ),
    "dark": (
        (0.24, 0.02, 220),
        (0.295, 0.05, 205),
        (0.35, 0.06, 200),
        (0.405, 0.07, 195),
        (0.46, 0.08, 190),
        (0.515, 0.09, 185),
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


def scale(stops: Sequence[tuple[float, float, float]]) -> list[str]:
    """Return LEVELS colours (#rrggbb) along the stops."""
    return [_hex(*_between(stops, level / (LEVELS - 1) * (len(stops) - 1))) for level in range(LEVELS)]


def css_colours() -> str:
    """Return custom properties for light and dark: `--page`, `--ink`, `--l0` …, and the cool `--c0` …."""
    pairs = {"page": (PAGE["light"], PAGE["dark"]), "ink": (INK["light"], INK["dark"])}
    for letter, stops in (("l", STOPS), ("c", COOL_STOPS)):
        colours = zip(scale(stops["light"]), scale(stops["dark"]), strict=True)
        pairs |= {f"{letter}{level}": pair for level, pair in enumerate(colours)}
    properties = "".join(f"  --{name}: light-dark({light}, {dark});\n" for name, (light, dark) in pairs.items())
    rules = "".join(
        f".{letter}{level} {{ background: var(--{letter}{level}); }}\n" for letter in "lc" for level in range(1, LEVELS)
    )
    return f":root {{\n{properties}}}\n{rules}"


def _between(stops: Sequence[tuple[float, float, float]], place: float) -> tuple[float, float, float]:
    """Return lightness, chroma and hue at `place` stops from the first; hues take the shorter way round."""
    index = min(int(place), len(stops) - 2)
    (l0, c0, h0), (l1, c1, h1) = stops[index : index + 2]
    share = place - index
    turn = (h1 - h0 + 180) % 360 - 180
    return l0 + share * (l1 - l0), c0 + share * (c1 - c0), h0 + share * turn


def _hex(light: float, chroma: float, hue: float) -> str:
    """Return the colour, with less chroma where screens do not have it."""
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


if __name__ == "__main__":
    print("/* Scales from expected (l0) to surprising (l15), and to negative differences (c15). Made by")
    print("   scripts/make_report_colours.py. */")
    print(css_colours(), end="")
