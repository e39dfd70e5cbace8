"""The public interface of `xlruntime`, used as documented."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xlruntime


def test_every_public_name_is_there_and_documented() -> None:
    for name in xlruntime.__all__:
        assert getattr(xlruntime, name).__doc__


def test_docstring_example_runs(bytes_model: xlruntime.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bytes_model.folder.parent)  # holds a folder `bundle`
    assert xlruntime.__doc__ is not None
    *lines, last = textwrap.dedent(xlruntime.__doc__.partition("::\n\n")[2]).strip().splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    assert isinstance(names["model"], xlruntime.Model)
    assert isinstance(names["stream"], xlruntime.Stream)
    log_probs = eval(last.partition("#")[0], names)
    assert log_probs.shape == (len("Call me Ishmael. ") - 1,)
    assert (log_probs < 0).all()


def test_results_are_of_the_public_classes(bytes_model: xlruntime.Model) -> None:
    assert isinstance(bytes_model.stream().feed(b"text"), xlruntime.Scores)
    assert isinstance(next(bytes_model.score([b"text"])), xlruntime.DocumentScore)
    assert isinstance(next(bytes_model.score_tokens([xlruntime.Document("it", b"text")])), xlruntime.TokenScores)
    drawn = list(bytes_model.generate("text", max_tokens=2, sampling=xlruntime.Sampling(seed=0)))
    assert [type(token) for token in drawn] == [int, int]


def test_paths_may_be_text(bytes_model: xlruntime.Model, tmp_path: Path) -> None:
    model = xlruntime.load(str(bytes_model.folder), threads=1)
    stream = model.stream()
    stream.feed("text")
    stream.save(str(tmp_path / "state"))
    assert model.restore(str(tmp_path / "state")).position == 4


def test_errors_have_the_expected_builtin_bases() -> None:
    kinds = {
        "BundleError": ValueError,
        "BundleNotFoundError": FileNotFoundError,
        "OptionError": ValueError,
        "ProviderError": RuntimeError,
        "StateError": ValueError,
        "TextError": ValueError,
        "TokenError": ValueError,
        "VocabularyError": ValueError,
    }
    for name, builtin in kinds.items():
        assert issubclass(getattr(xlruntime, name), (builtin, xlruntime.XlruntimeError))
        assert issubclass(getattr(xlruntime, name), builtin)
    assert issubclass(xlruntime.NonFiniteScoreWarning, RuntimeWarning)


def test_scores_hold_one_entry_a_token(bytes_model: xlruntime.Model) -> None:
    scores = bytes_model.stream().feed(b"a few bytes")
    assert len(scores) == len(scores.index) == len(scores.log_probs) == len(scores.context) == 10
    assert scores.log_probs.dtype == np.float32
