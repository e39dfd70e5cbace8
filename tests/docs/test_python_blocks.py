"""Run the Python of the pages that tests/runtime/test_api_page.py and tests/export/test_torch_formats.py do not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.conftest import ITEMS
from tests.helpers.pages import PAGES, blocks_of, python_of
from tests.helpers.paths import EMPTY, golden_bundle
from xlexport.commands import run
from xlruntime.tokenizers.vocabulary import Vocabulary

HERE = [
    "docs/coming_from_gpt2.md",
    "docs/native.md",
    "docs/protocols.md",
    "docs/start_embedding.md",
    "docs/start_reading_experiments.md",
    "docs/vocabularies.md",
]
WORDS = Vocabulary("words", ("<eos>", "<unk>", "the", "cat", "sat"), unk="<unk>", line_end="<eos>")
ELSEWHERE = {
    "README.md": "tests/runtime/test_api_page.py",
    "docs/api.md": "tests/runtime/test_api_page.py",
    "docs/checkpoints.md": "tests/checkpoints/test_huggingface_format.py",
    "docs/scoring.md": "tests/scoring/test_output_tables.py",
    "docs/serving.md": "tests/serve/test_http.py",
    "docs/torch_formats.md": "tests/export/test_torch_formats.py",
}


def test_each_page_with_python_is_run() -> None:
    with_python = {page for page in PAGES if any(block.language == "python" for block in blocks_of(page))}
    assert with_python == {*HERE, *ELSEWHERE}


@pytest.mark.parametrize("page", HERE)
def test_python_of_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if page == "docs/vocabularies.md":
        Path("bundle").mkdir()
        Path("bundle/vocabulary.json").write_text(WORDS.to_json(), "utf-8")
    else:
        Path("bundle").symlink_to(golden_bundle(EMPTY))
    if page in ("docs/start_reading_experiments.md", "docs/coming_from_gpt2.md"):
        pytest.importorskip("pandas", reason="needs pandas")
        Path("items.csv").write_text(ITEMS, "utf-8")
        options = ["--field", "sentence", "--context-field", "preamble", "--per", "word", "-o", "words.csv"]
        assert run(["score", "bundle", "items.csv", *options]) == 0
    Path("test.txt").write_text("It was the best of times, it was the worst of times.\n" * 40, "utf-8")
    exec(compile(python_of(page), page, "exec"), {})
