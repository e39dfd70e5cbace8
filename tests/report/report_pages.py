"""Helpers for the tests of pages: a hostile document, a reader of a page's data, and the colours of the style sheet."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.helpers.paths import EMPTY, golden_bundle
from xlexport.page.assemble import COLOUR_LEVELS

GOLDEN = golden_bundle(EMPTY)  # reads bytes
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # three people, drawn as one
HOSTILE = (
    "<script>document.title='broken'</script><img src=x onerror=alert(1)> &amp; </script> ]]> -->"
    " {{about}} {{blocks}}\r\n"
    f"\U0001f600 {FAMILY} \U0001f1eb\U0001f1f7 e\u0301 caf\u00e9\r\n"
    "\u05e9\u05dc\u05d5\u05dd \u0627\u0644\u0633\u0644\u0627\u0645 \u202eoverride\u202c zero\u200bwidth\ttab\n"
).encode() + b"NUL \x00 escape \x1b[31m invalid \xff\xc3( cut \xe2\x82 lone\rreturn\n\n\nend \xf0\x9f\x98"

STYLE = files("xlexport.page").joinpath("page.css").read_text("utf-8")
COLOURS = {
    name: {"light": light, "dark": dark}
    for name, light, dark in re.findall(r"(?:--|\.)(\w+)(?: \{ background)?: light-dark\((#\w{6}), (#\w{6})\)", STYLE)
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

Array = npt.NDArray[np.int64]


@dataclass
class Page:
    """A page's data, unpacked like the page's script does, but with other code."""

    about: dict[str, Any]
    labels: dict[str, str]
    text: str  # with lone surrogates for bytes that are not UTF-8
    widths: Array
    columns: dict[str, Array]  # bits, ids, rank, entropy, seen: (n,); top_ids, top_roots: (k, n)


def read_page(page: str) -> Page:
    """Unpack the blocks of a page."""
    blocks = dict(re.findall(r'<script type="text/plain" id="([\w-]+)">([^<]*)</script>', page))
    (about,) = re.findall(r'<script type="application/json" id="about">(.*?)</script>', page)
    about = json.loads(about)
    units, widths, parts = [], [], []
    for number, (tokens, length, width_bytes) in enumerate(about["chunks"]):
        sizes = [(length, 2), (tokens, width_bytes), (tokens, 2), (tokens, 2)]
        some, width, bits, entropy = _columns(blocks[f"main-{number}"], sizes)
        units.append(some)
        widths.append(width)
        own, k = about["idBytes"], about["top"]
        sizes = [(tokens, size) for size in (own, own, 4, *[own] * k, *[1] * k)]
        ids, rank, seen, *tops = _columns(blocks[f"detail-{number}"], sizes)
        none = np.zeros((0, tokens), np.int64)
        parts.append(
            {
                "bits": bits,
                "ids": ids,
                "rank": rank + 1,
                "entropy": entropy,
                "seen": np.cumsum(seen) & 0xFFFFFFFF,
                "top_ids": np.stack(tops[:k]) if k else none,
                "top_roots": np.stack(tops[k:]) if k else none,
            }
        )
    text = np.concatenate(units).astype("<u2").tobytes().decode("utf-16-le", "surrogatepass")
    columns = {name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]}
    labels = json.loads(zlib.decompress(base64.b64decode(blocks["labels"])))
    return Page(about, labels, text, np.concatenate(widths), columns)


@dataclass
class ListPage:
    """The data of a page of several documents."""

    about: dict[str, Any]
    documents: list[dict[str, Any]]

    def words(self, number: int) -> list[str]:
        """Return the words of a document."""
        units = self.documents[number]["text"].encode("utf-16-le", "surrogatepass")
        edges = 2 * np.cumsum(self.documents[number]["spans"]).reshape(-1, 2)
        return [units[start:end].decode("utf-16-le", "surrogatepass") for start, end in edges.tolist()]


def read_list(page: str) -> ListPage:
    """Unpack the blocks of a page of several documents."""
    ((name, packed),) = re.findall(r'<script type="text/plain" id="([\w-]+)">([^<]*)</script>', page)
    assert name == "packed"
    (about,) = re.findall(r'<script type="application/json" id="about">(.*?)</script>', page)
    return ListPage(json.loads(about), json.loads(zlib.decompress(base64.b64decode(packed))))


def check_safety(page: str, title: str, absent: Sequence[str], policy: str = "") -> None:
    """Check that a page runs only its own script, loads nothing, and has no markup from a document.

    Args:
        absent: parts of the document, which must be nowhere but in packed blocks.
        policy: what the page is permitted besides.
    """
    own = re.sub(r'<script type="text/plain".*?</script>|<link rel="icon" href="data:,">', "", page)
    assert [word for word in absent if word in page] == []
    assert html.unescape(page.split("<title>")[1].split("</title>", maxsplit=1)[0]) == title
    kinds = re.findall(r"<script\b([^>]*)>", page)
    assert sum("text/plain" not in kind for kind in kinds) == 2, kinds  # the page's data and its program
    assert page.count("</script") == len(kinds)
    addresses = r"https?:|//[\w-]+\.|\b(src|href|srcset|action|formaction)=|@import|url\(|import\("
    assert re.search(addresses, own) is None
    unsafe = r"\beval\b|\bFunction\b|innerHTML|outerHTML|insertAdjacent|document\.write|fetch\(|XMLH"
    assert re.search(unsafe, own) is None
    assert not re.search(r'\s(style|on\w+)="', own)  # the policy would not apply them
    rules = html.unescape(re.findall(r'Content-Security-Policy" content="([^"]*)"', page)[0])
    assert rules.startswith("default-src 'none'; ") and rules.endswith(f"form-action 'none'{policy}")
    for tag, name in (('<script type="module">', "script-src"), ("<style>", "style-src")):
        content = page.split(tag)[1].split("</", maxsplit=1)[0]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}';" in rules


def scale(theme: str, letter: str = "l") -> list[str]:
    """Return the colours (#rrggbb) from expected to surprising, or with letter `c` to negative differences."""
    return [COLOURS[f"{letter}{level}"][theme] for level in range(COLOUR_LEVELS)]


def contrast(one: str, other: str) -> float:
    """Return the ratio of two colours' luminances as the Web Content Accessibility Guidelines define it, 1 to 21."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lightness(rgb: npt.NDArray[np.float64]) -> float:
    """Return L of Oklab, 0 to 1, of linear red, green and blue (3,)."""
    return float(np.linalg.solve(FROM_OKLAB, np.cbrt(np.linalg.solve(TO_LINEAR, rgb)))[0])


def linear(colour: str) -> npt.NDArray[np.float64]:
    """Return linear red, green and blue (3,), 0 to 1, of #rrggbb."""
    encoded = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def _columns(block: str, sizes: list[tuple[int, int]]) -> list[Array]:
    raw = zlib.decompress(base64.b64decode(block))
    assert len(raw) == sum(count * size for count, size in sizes)
    found, at = [], 0
    for count, size in sizes:
        planes = np.frombuffer(raw, np.uint8, count * size, at).reshape(size, count).astype(np.int64)
        found.append(sum((plane << 8 * n for n, plane in enumerate(planes)), np.zeros(count, np.int64)))
        at += count * size
    return found
