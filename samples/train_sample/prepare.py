"""Prepare the text that the sample checkpoint is trained on: `python prepare.py [DATA_FOLDER] [OUT_FOLDER]`.

It writes `train.txt` and `valid.txt` from public-domain prose and drama in the data folder and from the documentation
strings of Python's standard library. It needs only the standard library. The same input gives the same bytes.

Plain-text books use several conventions, so the chapters of War and Peace use three of them in turn: unchanged UTF-8,
ASCII with "..." quotations, and (every second chapter) ASCII with `...' quotations and CRLF line ends, as in older
electronic texts. Every 37th chapter is held out for validation.
"""

import ast
import hashlib
import inspect
import re
import sys
import sysconfig
import unicodedata
import warnings
from pathlib import Path

HELD_OUT_EVERY = 37
SHORTEST_DOCSTRING = 400  # characters; below that they are mostly one-line formulas
NOT_DOCUMENTATION = {"pydoc_data", "site-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"}
DASHES = {"\u2014": "--", "\u2013": "-"}
DOUBLE_QUOTES = {"\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'"}
BACKTICK_QUOTES = {"\u201c": "`", "\u201d": "'", "\u2018": "`", "\u2019": "'"}


def to_ascii(text: str, quotes: dict[str, str]) -> str:
    """Replace quotation marks and dashes according to `quotes`, and remove accents from letters."""
    text = text.translate(str.maketrans(DASHES | quotes))
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def set_chapter(number: int, text: str) -> str:
    """Return a chapter in the typographic convention that its number selects."""
    if number % 2:
        return to_ascii(text, BACKTICK_QUOTES).replace("\n", "\r\n")
    return text if number % 4 == 0 else to_ascii(text, DOUBLE_QUOTES)


def war_and_peace(data: Path) -> tuple[str, str]:
    """Return training text and held-out text of the novel, without header, contents and licence."""
    book = data.joinpath("war_and_peace.txt").read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    book = re.search(r"\*\*\* START OF.*?\n(.*)\*\*\* END OF", book, re.DOTALL)[1]
    chapters = re.split(r"(?m)^(?=CHAPTER [IVXLC]+\s*$)", book)[1:]  # drops the indented contents before the first
    chapters = [set_chapter(number, text) for number, text in enumerate(chapters)]
    held_out = chapters[HELD_OUT_EVERY // 2 :: HELD_OUT_EVERY]
    kept = [text for number, text in enumerate(chapters) if number % HELD_OUT_EVERY != HELD_OUT_EVERY // 2]
    return "".join(kept), "".join(held_out)


def docstrings() -> str:
    """Return the longer documentation strings of the standard library, each once, in the order of file names."""
    library = Path(sysconfig.get_path("stdlib"))
    found: dict[str, None] = {}
    for file in sorted(library.rglob("*.py"), key=lambda file: file.as_posix()):
        if NOT_DOCUMENTATION & set(file.relative_to(library).parts):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(file.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = inspect.cleandoc(ast.get_docstring(node) or "")
                if len(text) >= SHORTEST_DOCSTRING:
                    found[text] = None
    return "\n\n".join(found) + "\n"


def main(data: Path, out: Path) -> None:
    """Write `train.txt` and `valid.txt` to `out` and print their parts."""
    novel, held_out = war_and_peace(data)
    parts = {
        "war_and_peace.txt": novel.encode(),
        "lcet10.txt": data.joinpath("lcet10.txt").read_bytes(),
        "tinyshakespeare.txt": data.joinpath("tinyshakespeare.txt").read_bytes(),
        f"docstrings of Python {sys.version.split()[0]}": docstrings().encode(),
    }
    out.mkdir(parents=True, exist_ok=True)
    out.joinpath("train.txt").write_bytes(b"\n\n".join(parts.values()))
    out.joinpath("valid.txt").write_bytes(held_out.encode())
    for name, part in parts.items():
        print(f"{len(part):>9,} bytes  {name}")
    for name in ("train.txt", "valid.txt"):
        content = out.joinpath(name).read_bytes()
        print(f"{len(content):>9,} bytes  {name}  sha256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    main(
        Path(sys.argv[1]) if len(sys.argv) > 1 else here.parents[2] / "shared" / "data",
        Path(sys.argv[2]) if len(sys.argv) > 2 else Path("text"),
    )
