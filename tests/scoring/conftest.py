"""Fixtures for the tests of `xlexport score`: golden bundles, which need no PyTorch, and documents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.invoking import Finished, Invoke, invoke
from tests.helpers.manifests import with_tokenizer, with_vocabulary
from tests.helpers.paths import GOLDEN, golden_bundle
from xlexport.scoring.resume import SavedRun
from xlruntime.tokenizers.vocabulary import Vocabulary

TEXT = (
    "It was the best of times,\n it was the worst of times;\r\n\n\tit was the âge of wisdom –\n"
    "it was the epoch of  belief, 時代 of incredulity\n \n"
)


Score = Callable[..., Finished]


@pytest.fixture(scope="session")
def bundle() -> Path:
    """Return a bundle that reads eight bytes at a time, and sees the last twelve at every cut of a document."""
    return GOLDEN / "post_lnorm_same_length_empty" / "bundle"


@pytest.fixture
def score(bundle: Path, invoke: Invoke) -> Score:
    """Return `score(files…, options…, stdin=b"")`, which runs in this process; `bundle=` chooses another bundle."""

    def scored(*arguments: str | Path, stdin: bytes = b"", bundle: Path = bundle) -> Finished:
        return invoke("score", bundle, "--threads", "1", *arguments, stdin=stdin)

    return scored


@pytest.fixture
def texts(tmp_path: Path) -> list[Path]:
    """Documents of several lengths, sorted by name."""
    folder = tmp_path / "texts"
    folder.mkdir()
    paths = []
    for number, length in enumerate((60, 9, 40, 150, 23)):
        paths.append(folder / f"{number}.txt")
        paths[-1].write_bytes(TEXT.encode()[:length])
    return paths


@pytest.fixture
def words_bundle(tmp_path: Path) -> Callable[[Any], Path]:
    """Return `words_bundle(tokenizer)`, which makes a bundle of 29 tokens from a vocabulary or a BPE or WordPiece."""

    def made(tokenizer: Any) -> Path:
        bundle = golden_bundle("pre_lnorm_empty")
        if isinstance(tokenizer, Vocabulary):
            return with_vocabulary(bundle, tmp_path / "vocabulary.bundle", tokenizer)
        (tmp_path / "tokenizer.json").write_text(tokenizer.to_str(), "utf-8")
        return with_tokenizer(bundle, tmp_path / "library.bundle", tmp_path / "tokenizer.json", kind="tokenizers")

    return made


class Killed(BaseException):
    """An exception that ends a run, and that no code in it expects."""


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return `stop_after(n)`: the next run then ends after n saved states and some more output."""
    save = SavedRun.save

    def stop(number: int) -> None:
        saved = 0

        def saving(self: SavedRun, *arguments: Any) -> None:
            nonlocal saved
            if saved == number:
                raise Killed
            save(self, *arguments)
            saved += 1

        monkeypatch.setattr(SavedRun, "save", saving)

    return stop


@pytest.fixture
def at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `--set save_every=0` save after every step, even if writing a state takes long."""
    monkeypatch.setattr("xlexport.scoring.resume.BUSY", 0)


def interrupted(score: Score, *arguments: str | Path) -> None:
    with pytest.raises(Killed):
        score(*arguments, "--set", "save_every=0")
