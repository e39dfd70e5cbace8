"""A command that fails prints one object on standard error with --json, and otherwise one line for people."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.invoking import Invoke
from xlexport import atomic_output
from xlexport.terminal import Failure, failure

CLOSED = "Bad file descriptor. A standard stream is closed: open it, or give a file.\n"


@pytest.mark.parametrize(
    ("arguments", "kind", "hint", "code"),
    [
        (("score", "{absent}", "-"), "BundleNotFoundError", True, 1),
        (("inspect", "{absent}"), "CheckpointNotFoundError", True, 1),
        (("score", "{bundle}", "-", "--per", "token", "--top", "5", "--ids", "--resume"), "UsageError", False, 2),
        (("evaluate", "{bundle}", "{absent}"), "FileNotFoundError", True, 1),
        (("quantize", "{bundle}", "-o", "{absent}/out", "--dtype", "int8"), "OutputFolderError", True, 1),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_failure_is_an_object_or_a_line(
    arguments: tuple[str, ...], kind: str, hint: bool, code: int, bundle: Path, tmp_path: Path, invoke: Invoke
) -> None:
    places = {"absent": tmp_path / "absent", "bundle": bundle}
    line = [argument.format(**places) for argument in arguments]
    plain, found = invoke(*line), invoke(*line, "--json")
    assert (plain.code, found.code, found.out) == (code, code, "")
    failure = json.loads(found.err)
    assert failure.keys() == {"error", "hint", "type"}
    assert (failure["type"], failure["hint"] is not None) == (kind, hint)
    text = " ".join(filter(None, (failure["error"], failure["hint"])))
    assert plain.err.splitlines()[-1] == f"Error: {text}"


def test_document_that_cannot_be_scored_is_an_object_too(bundle: Path, tmp_path: Path, invoke: Invoke) -> None:
    short = tmp_path / "short.txt"
    short.write_bytes(b"x")
    found = invoke("score", bundle, short, "-", "--json", stdin=b"It was the best of times")
    assert (found.code, found.object["document"]) == (1, "standard input")
    failure = json.loads(found.err.splitlines()[0])
    assert failure["type"] == "TextError"
    assert failure["error"] == f"{short}: 1 of at least 2 tokens, so nothing to score."
    assert failure["hint"] == "Give a longer text."


def test_a_file_that_is_called_as_the_option_changes_nothing(bundle: Path, invoke: Invoke) -> None:
    assert invoke("score", bundle, "--", "--json").err.startswith("Error: --json: ")


@pytest.mark.full
@pytest.mark.parametrize(
    ("closed", "code", "err"),
    [
        ("<&-", 0, ""),
        ("<&- 2>&-", 0, ""),
        (
            ">&-",
            1,
            "Error: standard output: Bad file descriptor. A standard stream is closed: open it, or give a file.\n",
        ),
    ],
)
def test_closed_standard_streams(
    closed: str, code: int, err: str, bundle: Path, prose: Path, command: Callable[..., list[str]]
) -> None:
    line = shlex.join(command("score", bundle, prose, "-q"))
    done = subprocess.run(["bash", "-c", f"{line} {closed}"], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (code, err)
    assert bool(done.stdout) == (code == 0)


@pytest.mark.parametrize("writing", [atomic_output.file, lambda path: atomic_output.folder(path, lambda: None)])
def test_file_that_is_too_large_is_named(writing: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught, writing(tmp_path / "out"):
        raise OSError(errno.EFBIG, "File too large")  # as onnx-ir and Python raise it, without a name
    hint = "Raise the limit of file sizes (ulimit -f), or write to another place."
    assert failure(caught.value) == Failure(f"{tmp_path / 'out'}: File too large.", hint, "OSError")


def test_name_of_a_bundle_may_be_any_bytes(bundle: Path, prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bundle, tmp_path / os.fsdecode(b"caf\xe9")))
    nats = [invoke("score", path, prose, "--json").succeeded().object["nats"] for path in (folder, bundle)]
    assert nats[0] == nats[1]
