"""Experiments that stop, go on, or cannot begin."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from experiments import reformer, running
from experiments.__main__ import main
from xltraining.loop.train import train

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs one model of Figure 3 for a few updates, or other ones for further options."""
    micro = replace(reformer.SCALES["tiny"], steps=6, tgt_len=16, seeds=1, batch_size=2)
    monkeypatch.setitem(reformer.SCALES, "tiny", micro)
    (tmp_path / "text").write_bytes(b"One sentence. Another one! " * 10)

    def invoked(*options: str) -> Result:
        arguments = ["--out", str(tmp_path / "runs"), "--text", str(tmp_path / "text"), "--only", "shared ordinary"]
        return CliRunner().invoke(main, ["reformer_figure3", *arguments, *options])

    return invoked


def _interrupted_at(step: int) -> Callable[..., Any]:
    """Return the training function, with a Ctrl-C after an update."""

    def trained(*arguments: Any, on_step: Callable[[int], None] = lambda now: None, **options: Any) -> Any:
        def noted(now: int) -> None:
            on_step(now)
            if now == step:
                signal.raise_signal(signal.SIGINT)

        return train(*arguments, on_step=noted, **options)

    return trained


@pytest.mark.full
def test_an_interrupted_run_goes_on(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(running, "train", _interrupted_at(2))
        stopped = run()
    assert stopped.exit_code == 130
    assert stopped.stderr.splitlines()[-1] == "interrupted; the same command goes on from here."
    assert not stopped.stdout
    assert not [*tmp_path.rglob("finished")]
    assert run().exit_code == 0
    out = tmp_path / "runs" / "tiny" / "shared_ordinary-0"
    assert (out / "finished").exists()
    assert '"step": 6' in (out / "log.jsonl").read_text("utf-8")


@pytest.mark.full
def test_a_model_of_other_settings_is_not_taken(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run().stdout == run().stdout
    other = replace(reformer.SCALES["tiny"], steps=5)
    monkeypatch.setitem(reformer.SCALES, "tiny", other)
    refused = run()
    assert refused.exit_code == 2
    assert "trained with other settings; choose another --out" in " ".join(refused.stderr.split())
    (tmp_path / "text").write_bytes(b"Another text. " * 40)
    assert "trained on another text; choose another --out" in " ".join(run().stderr.split())


def test_what_cannot_be_trained_on_is_refused_in_one_line(run: Run, tmp_path: Path) -> None:
    missing = run("--text", str(tmp_path / "nothing"))
    assert missing.exit_code == 2
    assert "nothing' does not exist" in missing.stderr
    for text in (b"", b"x"):
        (tmp_path / "text").write_bytes(text)
        assert f"found {len(text)} bytes" in run().stderr
    (tmp_path / "text").write_bytes(b"A short text.")
    short = run()
    assert short.exit_code == 1
    _, error = short.stderr.splitlines()  # after the name of the model
    assert error.startswith("Error: the training text is too short: 11 bytes, ")
    (tmp_path / "text").write_bytes(b"One sentence. Another one! " * 10)  # no model has been trained on the short one
    assert run().exit_code == 0
