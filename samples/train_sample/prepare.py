"""Prepare the texts that the sample checkpoints are trained on: `python prepare.py [DATA_FOLDER] [OUT_FOLDER]`.

It needs only the standard library. The same input gives the same bytes.

For models of bytes it writes `train.txt` and `valid.txt` from public-domain prose and drama in the data folder and from
the documentation strings of Python's standard library. Plain-text books use several conventions, so the chapters of War
and Peace use three of them in turn: unchanged UTF-8, ASCII with "..." quotations, and (every second chapter) ASCII with
`...' quotations and CRLF line ends, as in older electronic texts. Every 37th chapter is held out for validation.

For the model of BPE pieces it writes ordinary English prose, `prose/train.txt` and `prose/valid.txt`: War and Peace in
the first two conventions, of which thirty successive chapters are held out, `lcet10.txt`, and WikiText-2's articles.
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
HELD_OUT_OF_PROSE = slice(150, 180)  # chapters
SPACES = (  # that WikiText puts between words and marks, with what to write instead, in this order
    (r" @(.)@ ", r"\1"), (r" ([.,;:!?%)\]])", r"\1"), (r"([(\[$£]) ", r"\1"), (r" ('s|n't|'re|'ve|'ll|'d|'m)\b", r"\1"),
    (r'" ([^"]*?) "', r'"\1"'), (r" – ", "–"), (r"(\w) '(?= )", r"\1'"),
)  # fmt: skip


def to_ascii(text: str, quotes: dict[str, str]) -> str:
    """Replace quotation marks and dashes according to `quotes`, and remove accents from letters."""
    text = text.translate(str.maketrans(DASHES | quotes))
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def set_chapter(number: int, text: str) -> str:
    """Return a chapter in the typographic convention that its number selects."""
    if number % 2:
        return to_ascii(text, BACKTICK_QUOTES).replace("\n", "\r\n")
    return text if number % 4 == 0 else to_ascii(text, DOUBLE_QUOTES)


def chapters_of_war_and_peace(data: Path) -> list[str]:
    """Return the chapters of the novel, without header, contents and licence."""
    book = data.joinpath("war_and_peace.txt").read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    book = re.search(r"\*\*\* START OF.*?\n(.*)\*\*\* END OF", book, re.DOTALL)[1]
    return re.split(r"(?m)^(?=CHAPTER [IVXLC]+\s*$)", book)[1:]  # drops the indented contents before the first


def war_and_peace(data: Path) -> tuple[str, str]:
    """Return training text and held-out text of the novel in three conventions."""
    chapters = [set_chapter(number, text) for number, text in enumerate(chapters_of_war_and_peace(data))]
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


def article_prose(text: str) -> str:
    """Return articles of WikiText as ordinary prose, without the headings and sentences that have unknown words."""
    lines = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("="):
            lines += [] if "<unk>" in line else [f"\n{line.strip('= ')}\n"]
            continue
        paragraph = " ".join(sentence for sentence in re.split(r"(?<= [.!?]) ", line) if "<unk>" not in sentence)
        for pattern, replacement in SPACES:
            paragraph = re.sub(pattern, replacement, paragraph)
        lines += [paragraph] if paragraph else []
    return "\n".join(lines) + "\n"


def prose(data: Path) -> tuple[dict[str, bytes], bytes]:
    """Return the parts of the prose to train on by name, and the held-out chapters."""
    chapters = chapters_of_war_and_peace(data)
    chapters = [to_ascii(text, DOUBLE_QUOTES) if number % 2 else text for number, text in enumerate(chapters)]
    held_out = "".join(chapters[HELD_OUT_OF_PROSE])
    del chapters[HELD_OUT_OF_PROSE]
    parts = {"war_and_peace.txt": "".join(chapters).encode(), "lcet10.txt": data.joinpath("lcet10.txt").read_bytes()}
    for name in ("wikitext2_valid.txt", "wikitext2_test.txt"):
        parts[name] = article_prose(data.joinpath(name).read_text("utf-8")).encode()
    return parts, held_out.encode()


def write(out: Path, parts: dict[str, bytes], held_out: bytes) -> None:
    """Write `train.txt` and `valid.txt` to `out` and print their parts."""
    out.mkdir(parents=True, exist_ok=True)
    out.joinpath("train.txt").write_bytes(b"\n\n".join(parts.values()))
    out.joinpath("valid.txt").write_bytes(held_out)
    for name, part in parts.items():
        print(f"{len(part):>9,} bytes  {name}")
    for file in (out / "train.txt", out / "valid.txt"):
        content = file.read_bytes()
        print(f"{len(content):>9,} bytes  {file}  sha256 {hashlib.sha256(content).hexdigest()}")


def main(data: Path, out: Path) -> None:
    """Write both texts."""
    novel, held_out = war_and_peace(data)
    parts = {
        "war_and_peace.txt": novel.encode(),
        "lcet10.txt": data.joinpath("lcet10.txt").read_bytes(),
        "tinyshakespeare.txt": data.joinpath("tinyshakespeare.txt").read_bytes(),
        f"docstrings of Python {sys.version.split()[0]}": docstrings().encode(),
    }
    write(out, parts, held_out.encode())
    write(out / "prose", *prose(data))


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    main(
        Path(sys.argv[1]) if len(sys.argv) > 1 else here.parents[2] / "shared" / "data",
        Path(sys.argv[2]) if len(sys.argv) > 2 else Path("text"),
    )
