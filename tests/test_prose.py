"""Prose: words that a stranger stumbles over stay out, and docstrings of functions begin with an imperative verb."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.paths import ROOT

CODE = (
    "xlexport",
    "runtime",
    "training",
    "benchmarks",
    "experiments",
    "reliability",
    "samples",
    "tests",
    "scripts",
)
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("runtime/c/*.md"), *ROOT.glob("samples/**/*.md")]
)
SOURCES = sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py"))
NATIVE = sorted(path for path in (ROOT / "runtime/c").rglob("*") if path.suffix in (".c", ".cc", ".h", ".hpp", ".inc"))
BANNED = re.compile(
    r"\b(told|tells of|tells|stands|stood|anew|afresh|mend(?:s|ed|ing)?|(?<!--)beside|brings|goes by|whatever"
    r"|those that|at hand|(?:is|are|was|were) no(?! (?:longer|more|less|fewer|larger|smaller|later)\b))\b",
    re.IGNORECASE,
)
# First words of docstrings that are not verbs, and are not seen to be so by their form.
NO_VERBS = """a all also an and any as at bits both by bytes each every fields for free from how if ids in inputs it its
    keys names no not nothing number of on one only options other rows rule segments such that the these they this those
    time to token tokens two under what when where whether which who why with within without"""
# The meaning of a setting in the manifests of golden bundles, which their digests seal.
SEALED = "rounds of hashing, at most those that were exported (convert --n-hashes)"


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each string and comment of a source."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            yield token.start[0], token.string


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text("utf-8")
    if path.suffix != ".py":  # in C++, names and code are read, too
        yield from enumerate(text.splitlines(), 1)
        return
    for start, string in texts_of(text):
        for offset, line in enumerate(string.splitlines()):
            yield start + offset, line


def banned_words(path: Path) -> list[str]:
    return [
        f"{path.name}:{number}: {match.group()!r} in {line.strip()[:80]!r}"
        for number, line in lines_of(path)
        for match in [BANNED.search(line.replace(SEALED, ""))]
        if match
    ]


def docstrings_without_verb(source: str) -> list[str]:
    """Return the first lines of functions' docstrings that do not begin with a verb in the imperative."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = (ast.get_docstring(node) or "Return").partition("\n")[0]
        word = first.split()[0]
        is_property = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
        is_verb = (
            re.fullmatch(r"[A-Z][a-z]+", word) and word.lower() not in NO_VERBS.split() and not word.endswith("ing")
        )
        if not is_property and not is_verb:
            found.append(f"{node.name}: {first}")
    return found


def test_texts_have_no_banned_word() -> None:
    assert [line for path in (*PAGES, *SOURCES, *NATIVE) if path != Path(__file__) for line in banned_words(path)] == []


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    found = [f"{path.name}: {line}" for path in SOURCES for line in docstrings_without_verb(path.read_text("utf-8"))]
    assert found == []


def test_readme_is_read_to_its_end() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 800


def test_the_rules_find_what_they_forbid(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("It stands here.\nThis is no error.\nIt is no longer here, and --beside is an option.\n")
    assert [line.partition(": ")[0] for line in banned_words(page)] == ["page.md:1", "page.md:2"]
    source = (
        'def f():\n    """What it is."""\ndef g():\n    """Return it."""\n@property\ndef h():\n    """The size."""\n'
    )
    assert docstrings_without_verb(source) == ["f: What it is."]
    module = tmp_path / "module.py"
    module.write_text('stands = 1  # it is told\nx = "anew"\n')
    assert len(banned_words(module)) == 2
