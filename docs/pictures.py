"""Draw the pictures of the pages into this folder: `python docs/pictures.py`, after a change of what they show.

Figures come from the tables of BENCHMARKS.md, packages from the contracts in pyproject.toml.
"""

from __future__ import annotations

import math
import re
import textwrap
import tomllib
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
WIDTH = 480  # of every picture: on a phone, the smallest letters are 10 pixels high
LEAVES = ("xlruntime", "xltraining")
HEAD = """<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">
<path class="head" d="M0 0L8 4L0 8Z"/></marker>
<style>
text{font:16px system-ui,sans-serif;fill:#1f2328;text-anchor:middle}
.small{font-size:14px}.left{text-anchor:start}.right{text-anchor:end}.bold{font-weight:bold}
rect,path{fill:none;stroke:#59636e;stroke-width:1.5}
.arrow{marker-end:url(#arrow)}path.head{fill:#59636e;stroke:none}rect.page{fill:#fff;stroke:none}path.faint{stroke:#d1d9e0}
rect.blue{fill:#b6e3ff}rect.orange{fill:#ffd8b5}rect.grey{fill:#eff2f5}rect.mark{stroke:#1f2328;stroke-width:3}
path.ours{stroke:#0969da;stroke-width:3}path.other{stroke:#bc4c00;stroke-width:3}
@media(prefers-color-scheme:dark){
text{fill:#f0f6fc}rect,path{stroke:#9198a1}
path.head{fill:#9198a1}rect.page{fill:#0d1117}path.faint{stroke:#3d444d}
rect.blue{fill:#0c4a7d}rect.orange{fill:#7a3f0a}rect.grey{fill:#212830}rect.mark{stroke:#f0f6fc}
path.ours{stroke:#58a6ff}path.other{stroke:#f0883e}
}</style>"""


class Picture:
    """A drawing; its elements have the classes of `HEAD`, with colours for light and dark pages.

    Args:
        title: what it shows; description: all that it says. Both are for screen readers.
    """

    def __init__(self, title: str, description: str, height: float) -> None:
        size = f'width="{WIDTH}" height="{height:g}"'
        self.lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {height:g}" role="img" '
            'aria-labelledby="title desc">',
            f'<title id="title">{escape(title)}</title>\n<desc id="desc">{escape(description)}</desc>',
            f'{HEAD}\n<rect class="page" {size}/>',
        ]

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        """Write lines of text around the height y."""
        lines = text.split("\n") if text else []
        for number, line in enumerate(lines):
            bottom = y + 5.5 + 20 * (number - (len(lines) - 1) / 2)
            self.lines.append(f'<text class="{kind}" x="{x:g}" y="{bottom:g}">{escape(line)}</text>')

    def box(self, x: float, y: float, width: float, height: float, kind: str = "", text: str = "") -> None:
        """Draw a box with text in its middle."""
        self.lines.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4"/>')
        self.text(x + width / 2, y + height / 2, text, kind)

    def line(self, *points: tuple[float, float], kind: str = "arrow") -> None:
        """Draw a line through points."""
        self.lines.append(f'<path class="{kind}" d="M{"L".join(f"{x:g} {y:g}" for x, y in points)}"/>')

    def svg(self) -> str:
        """Return the file."""
        return "\n".join([*self.lines, "</svg>\n"])


def stream() -> Picture:
    """Draw a document's segments, and the memory that goes along."""
    picture = Picture(
        "A stream and its memory",
        "A document is cut into segments. The same step graph reads each of them with the memory of the one before. It "
        "returns the scores of its tokens and the next memory, which always has the same size.",
        262,
    )
    picture.text(8, 18, "a document of any length, in segments", "left")
    for x, words in ((8, "Call me"), (174, "Ishmael."), (340, "Some years")):
        picture.box(x, 38, 104, 36, "blue", words)
        picture.line((x + 52, 74), (x + 52, 104))
        picture.box(x, 106, 104, 56, "grey", "step\ngraph")
        picture.line((x + 52, 162), (x + 52, 192))
        picture.text(x + 52, 206, "scores")
        picture.line((x + 104, 152), (min(x + 166, WIDTH - 4), 152))
    for x in (124, 290):
        picture.text(x + 19, 168, "memory", "small")
        for row in range(4):
            picture.box(x, 108 + 10 * row, 38, 7, "orange")
    picture.text(8, 240, "The memory always has the same size.", "left")
    return picture


def lsh_attention() -> Picture:
    """Draw what the nodes of LSH attention do to twelve tokens: a round of rule `band`, as in docs/reformer.md."""
    bucket, W, query = "ABABBABAAABB", 4, 9
    order = sorted(range(12), key=lambda place: (bucket[place], place))
    seen = [place for place in order if bucket[place] == bucket[query] and place < query][-W:]
    sees = f"{query} sees {', '.join(map(str, seen))}"
    picture = Picture(
        "The five nodes of LSH attention in a graph",
        "The hash gives each token a bucket. LSHSort sorts tokens by bucket, then by place. LSHGather brings keys and "
        f"values into this order, cut into chunks of {W}. Each chunk attends to itself and the one before, by a mask: "
        f"token {sees}, the {W} earlier keys of its bucket. LSHGather brings the results back.",
        334,
    )
    nodes = (
        ("hash", "a bucket for each token", range(12), 12),
        ("LSHSort", "by bucket, then by place", order, 12),
        ("LSHGather", "keys and values, in chunks", order, W),
        ("attention", f"a chunk and the one before: {sees}", order, W),
        ("LSHGather", "results, back in order", range(12), 12),
    )
    for number, (node, text, places, chunk) in enumerate(nodes):
        y = 8 + 66 * number
        if number:
            picture.line((62, y - 28), (62, y))
        picture.box(4, y, 116, 38, "grey", node)
        picture.text(136, y + 7, text, "left small")
        for rank, place in enumerate(places):
            kind = "small blue" if bucket[place] == "A" else "small orange"
            kind += " mark" if node == "attention" and place in (*seen, query) else ""
            picture.box(136 + 25 * rank + 12 * (rank // chunk), y + 20, 23, 24, kind, str(place))
    return picture


def table(header: str) -> list[list[float]]:
    """Return the numbers of each row with some, of the table of BENCHMARKS.md whose header begins so."""
    lines = (FOLDER.parent / "BENCHMARKS.md").read_text("utf-8").partition(header)[2].partition("\n\n")[0]
    rows = [re.findall(r"(?<=\| )[\d,.]+(?= \|)", line) for line in (header + lines).splitlines()]
    return [[float(cell.replace(",", "")) for cell in row] for row in rows if row]


def growth() -> Picture:
    """Draw the time of a token by length, from BENCHMARKS.md, on a logarithmic axis."""
    lengths, times = table("| tokens | 1,000 |")
    rows = table("| attention length |")
    window, torch, onnxruntime, ours = zip(*(row[:4] for row in rows), strict=True)
    flat, others = [time / 1000 for time in times], (*torch, *onnxruntime)  # ms
    picture = Picture(
        "The time of a token does not grow with the document",
        f"Ours takes {min(flat):g} to {max(flat):g} milliseconds a token in documents of {lengths[0]:,.0f} to "
        f"{lengths[-1]:,.0f} tokens. With {window[0]:,.0f} to {window[-1]:,.0f} in view, ours takes {min(ours):g} to "
        f"{max(ours):g}, and a plain Transformer, which reads all again, {min(others):,.0f} to {max(others):,.0f}.",
        350,
    )

    def y(ms: float) -> float:
        return 196 - 36 * math.log10(ms)

    picture.text(8, 16, "milliseconds a token", "left")
    for ms in (0.01, 0.1, 1, 10, 100, 1_000, 10_000):
        picture.line((62, y(ms)), (472, y(ms)), kind="faint")
        picture.text(56, y(ms), f"{ms:,g}", "small right")
    left = [86 + 36 * math.log10(tokens / lengths[0]) for tokens in lengths]
    right = [276 + 174 * (tokens - window[0]) / (window[-1] - window[0]) for tokens in window]
    for places, side, kind in (
        (left, flat, "ours"),
        (right, torch, "other"),
        (right, onnxruntime, "other"),
        (right, ours, "ours"),
    ):
        picture.line(*zip(places, map(y, side), strict=True), kind=kind)
    labels = [f"1e{math.log10(tokens):g}" for tokens in lengths] + [f"{tokens:,.0f}" for tokens in window]
    for x, label in zip(left + right, labels, strict=True):
        picture.text(x, 284, label, "small")
    for x, height, text, kind in (
        (158, y(0.17), "ours: flat", "bold"),
        (364, y(60), "a plain Transformer", "bold"),
        (364, y(18), "PyTorch, ONNX Runtime", "small"),
        (364, y(2.2), "ours", "bold"),
        (158, 308, "tokens in the document", "small"),
        (364, 308, "tokens in view", "small"),
        (8, 334, "Models of left and right differ: compare lines of one side.", "left small"),
    ):
        picture.text(x, height, text, kind)
    return picture


def packages() -> Picture:
    """Draw the packages and the layers of `xlexport`, from the contracts of import-linter."""
    contracts = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == ["xlexport"])
    texts = ["\n".join(textwrap.wrap(", ".join(re.split(" [|:] ", layer)), 54)) for layer in layers]
    never = {}
    for each in contracts:
        if each["type"] == "forbidden":
            outside = [module for module in each["forbidden_modules"] if not module.startswith("xl")]
            never[each["source_modules"][0]] = f"never {', '.join(outside)}"
    picture = Picture(
        "The packages and what they import",
        "xlexport has layers, and each imports only layers below it. From the top: "
        f"{'; '.join(' '.join(text.split()) for text in texts)}. Below are two packages that do not import each other. "
        + " ".join(f"{name} imports {never[name]}." for name in LEAVES),
        sum(20 * text.count("\n") + 38 for text in texts) + 172,
    )
    picture.text(10, 18, "xlexport: a layer imports only layers below it", "left bold")
    y = 34
    for text in texts:
        height = 20 * text.count("\n") + 32
        picture.box(10, y, 460, height, "small grey", text)
        y += height + 6
    for x, name in zip((10, 244), LEAVES, strict=True):
        picture.line((x + 113, y - 4), (x + 113, y + 24))
        picture.box(x, y + 26, 226, 92, "blue")
        picture.text(x + 113, y + 42, name, "bold")
        picture.text(x + 113, y + 84, "\n".join(textwrap.wrap(never[name], 30)), "small")
    return picture


def step() -> Picture:
    """Draw the way of a token through a step of a Transformer-XL."""
    picture = Picture(
        "The way of a token through a step",
        "A token is embedded. Each layer makes a query, a key and a value of it, writes key and value into the ring at "
        "slot (offset + i) modulo C, scores all keys in view by content and by distance, sums values by the softmax, "
        "and ends with the feed-forward block. The last softmax gives the next token's log-probability.",
        436,
    )
    picture.box(10, 86, 460, 246)
    below = 0
    for y, height, kind, text in (
        (8, 30, "blue", "token i"),
        (46, 30, "grey", "embedding"),
        (114, 30, "grey", "query, key, value"),
        (184, 46, "grey", "scores of all keys in view,\nby content + by distance"),
        (248, 30, "grey", "softmax, weighted values"),
        (292, 30, "grey", "feed-forward"),
        (346, 30, "grey", "softmax over the vocabulary"),
        (392, 30, "blue", "log-probability of token i + 1"),
    ):
        if below:
            picture.line((145, below), (145, y))
        picture.box(20, y, 250, height, kind, text)
        below = y + height
    for slot in range(7):
        picture.box(300 + 23 * slot, 118, 21, 24, "orange mark" if slot == 4 else "orange")
    picture.line((270, 129), (298, 129))
    picture.line((380, 170), (380, 198), (272, 198))
    picture.line((312, 224), (272, 216))
    picture.text(20, 104, "in each layer", "small left")
    picture.text(380, 104, "ring of C slots", "small")
    picture.text(380, 160, "slot (offset + i) mod C", "small")
    picture.text(380, 233, "keys of distances,\nfrom positions.onnx", "small")
    return picture


PICTURES = {f"{draw.__name__}.svg": draw for draw in (stream, lsh_attention, growth, packages, step)}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw().svg(), "utf-8")
