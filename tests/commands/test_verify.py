"""`verify` as a command: exit statuses, and a user's own code. test_output.py has what it prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.invoking import Invoke
from tests.helpers.paths import BAND, golden_bundle

OWN = """
from xltraining.checkpoint import build_model, load_checkpoint
model = build_model(load_checkpoint({checkpoint!r})).eval()
open("it ran", "w").close()
def reference(tokens, targets, state):
    hidden, state = model(tokens, state)
    return model.log_probs(hidden, targets), state
def made(): return reference
def forgets(tokens, targets, state): return reference(tokens, targets, None)
def fails(tokens, targets, state): return tokens @ targets
class Mine:
    def segment(self, tokens, targets, state): return reference(tokens, targets, state)
"""


@pytest.mark.full
def test_exit_statuses(
    bundle: Path,
    checkpoint: Path,
    make_checkpoint: Callable[..., Path],
    prose: Path,
    invoke: Invoke,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN.format(checkpoint=str(checkpoint)), "utf-8")
    assert "own.py (SHA-256" in invoke("verify", bundle, "--against", "own.py:reference").error
    assert not Path("it ran").exists()
    other, larger = make_checkpoint(tmp_path / "other.pt", seed=1), make_checkpoint(tmp_path / "larger.pt", n_layer=3)
    against = ("--text", prose, "--segments", "all", "--trust", "--against")
    for status, *line in (
        *((0, bundle, *against, f"own.py:{name}") for name in ("reference", "made", "Mine")),
        (1, bundle, other),
        (1, bundle, *against, "own.py:forgets"),
        *((2, bundle, *against, name) for name in ("own.py:fails", "own.py:absent", checkpoint)),
        *((2, bundle, path) for path in (larger, tmp_path / "absent.pt")),
        *((2, path, checkpoint) for path in (tmp_path / "absent", golden_bundle(BAND))),
        *(
            (2, bundle, checkpoint, *more)
            for more in (("--text", "absent"), ("--mem-len", "0"), ("--against", "own.py"))
        ),
        (2, bundle),
    ):
        shown = invoke("verify", *map(str, line))
        assert (shown.code, shown.out == "") == (status, status == 2), (line, shown)
        assert status or ("10 of 8 tokens, memory 20" in shown.out and shown.err == "")
    assert "Error: fails raises RuntimeError from token 0, own.py line 10 (" in (
        invoke("verify", bundle, "--against", "own.py:fails", "--trust").error
    )
    monkeypatch.setattr("xlexport.verification.make_report", lambda *arguments: 1 / 0)  # a bug is trouble, too
    shown = invoke("verify", bundle, checkpoint, "--segments", "2")
    assert (shown.code, shown.err.splitlines()[-1]) == (2, "ZeroDivisionError: division by zero")
