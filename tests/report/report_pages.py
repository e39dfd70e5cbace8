"""Helpers for the tests of `report`: a hostile document, and a reader of a page's data."""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["GOLDEN", "HOSTILE", "ListPage", "Page", "read_list", "read_page"]

from tests.helpers.paths import EMPTY, golden_bundle

GOLDEN = golden_bundle(EMPTY)  # reads bytes
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # three people, drawn as one
HOSTILE = (
    "<script>document.title='broken'</script><img src=x onerror=alert(1)> &amp; </script> ]]> -->"
    " {{about}} {{blocks}}\r\n"
    f"\U0001f600 {FAMILY} \U0001f1eb\U0001f1f7 e\u0301 caf\u00e9\r\n"
    "\u05e9\u05dc\u05d5\u05dd \u0627\u0644\u0633\u0644\u0627\u0645 \u202eoverride\u202c zero\u200bwidth\ttab\n"
).encode() + b"NUL \x00 escape \x1b[31m invalid \xff\xc3( cut \xe2\x82 lone\rreturn\n\n\nend \xf0\x9f\x98"

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


def _columns(block: str, sizes: list[tuple[int, int]]) -> list[Array]:
    raw = zlib.decompress(base64.b64decode(block))
    assert len(raw) == sum(count * size for count, size in sizes)
    found, at = [], 0
    for count, size in sizes:
        planes = np.frombuffer(raw, np.uint8, count * size, at).reshape(size, count).astype(np.int64)
        found.append(sum((plane << 8 * n for n, plane in enumerate(planes)), np.zeros(count, np.int64)))
        at += count * size
    return found
