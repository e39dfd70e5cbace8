"""Bad input and settings give one line with problem, place and hint, and exit status 1; nothing is written or run."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.invoking import Invoke
from tests.helpers.manifests import edit_manifest
from xlexport import atomic_output
from xlexport.terminal import Failure, failure
from xlruntime.bundle import FORMAT

PROSE = b"It was the best of times, it was the worst of times.\n"


# Checkpoints.


class Payload:
    """An object whose unpickling creates a folder."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.witness),)


CHECKPOINTS: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: None, "no such file or folder. Check the path."),
    (Path.mkdir, "a folder without a checkpoint. Give a checkpoint of a known format"),
    (Path.touch, "the file is empty. Copy or save the checkpoint again."),
    (lambda path: path.write_bytes(PROSE), "not a PyTorch checkpoint. Give a checkpoint of a known format"),
    (
        lambda path: torch.save({"format": "xltraining", "model": Payload(path.parent / "it ran")}, path),
        "holds Python objects that could run code",
    ),
    (
        lambda path: path.write_bytes(pickle.dumps(Payload(path.parent / "it ran"))),
        "holds Python objects that could run code",
    ),
    (
        lambda path: torch.save({"epoch": 3, "model": {"weight": torch.zeros(2)}}, path),
        "no weights of a known model in it (tensors: model.weight). Give a checkpoint",
    ),
]


@pytest.mark.parametrize("command", ["convert", "verify", "bench"])
@pytest.mark.parametrize(("make", "what"), CHECKPOINTS)
def test_checkpoint_that_is_none(
    make: Callable[[Path], None], what: str, command: str, bundle: Path, refuse: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "model.pt"
    make(path)
    arguments = {
        "convert": ("convert", path),
        "verify": ("verify", bundle, path),
        "bench": ("bench", bundle, "--against", path),
    }
    assert f"{path}: {what}" in refuse(*arguments[command])
    assert not (tmp_path / "it ran").exists()


# The output path of a bundle.


def test_output_that_is_taken(
    checkpoint: Path, own_bundle: Path, prose: Path, refuse: Callable[..., str], tmp_path: Path
) -> None:
    assert "Add --force to replace it" in refuse("convert", checkpoint, "-o", own_bundle)
    for force in ((), ("--force",)):
        for taken in (prose, tmp_path):
            error = refuse("convert", checkpoint, "-o", taken, *force)
            assert "is not a bundle, so it is never replaced. Give another path." in error
    assert "no such folder to write" in refuse("convert", checkpoint, "-o", tmp_path / "absent" / "bundle")


# Bundles.


def flip_a_byte(folder: Path) -> None:
    with (folder / "weights.data").open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)[0]
        file.seek(1000)
        file.write(bytes([byte ^ 1]))


def change_manifest(folder: Path, **changes: Any) -> None:
    """Change the manifest, and its digest."""
    edit_manifest(folder, lambda manifest: manifest.update(changes))


def scribble(folder: Path) -> None:
    (folder / "bundle.json").write_text("{")
    (folder / "bundle.json.sha256").unlink()


COPY, CONVERT = "Copy it again, or convert the checkpoint again.", "Convert the checkpoint again: xl"
OUTSIDE = {"../outside": {"sha256": "0" * 64, "size": 0}}
SPOILED: list[tuple[Callable[[Path], object], str, str]] = [
    (flip_a_byte, "weights.data was changed", COPY),
    (lambda folder: os.truncate(folder / "score.onnx", 1000), "score.onnx has 1000 bytes, expected", COPY),
    (lambda folder: (folder / "weights.data").unlink(), "weights.data is missing", COPY),
    (
        lambda folder: (folder / "bundle.json").unlink(),
        "no bundle.json in it, so not a bundle",
        "with `xlexport convert CHECKPOINT`.",
    ),
    (
        lambda folder: change_manifest(folder, format=FORMAT + 1),
        f"is of format {FORMAT + 1}, this xlruntime reads {FORMAT}",
        CONVERT,
    ),
    (
        lambda folder: edit_manifest(folder, lambda fields: fields.update(format_version=fields.pop("format") - 1)),
        f"is of format {FORMAT - 1}, this xlruntime reads {FORMAT}",
        "Rewrite it: xlexport configure",
    ),
    (lambda folder: change_manifest(folder, document={}), "document.segment_len is missing", CONVERT),
    (scribble, "not valid JSON", CONVERT),
    (lambda folder: change_manifest(folder, files=OUTSIDE), "file names must stay inside the bundle", ""),
]
USES = {
    "score": lambda bundle, prose, checkpoint: ("score", bundle, prose),
    "generate": lambda bundle, prose, checkpoint: ("generate", bundle, "It was"),
    "verify": lambda bundle, prose, checkpoint: ("verify", bundle, checkpoint),
    "inspect": lambda bundle, prose, checkpoint: ("inspect", bundle),
    "bench": lambda bundle, prose, checkpoint: ("bench", bundle),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(("spoil", "what", "hint"), SPOILED)
def test_bundle_that_is_spoiled(
    spoil: Callable[[Path], None],
    what: str,
    hint: str,
    use: str,
    own_bundle: Path,
    prose: Path,
    checkpoint: Path,
    refuse: Callable[..., str],
) -> None:
    spoil(own_bundle)
    error = refuse(*USES[use](own_bundle, prose, checkpoint))
    assert str(own_bundle) in error
    assert what in error
    assert hint in error


@pytest.mark.parametrize("use", sorted(USES.keys() - {"inspect"}))  # `inspect` also reads checkpoints
def test_bundle_that_is_none(
    use: str, prose: Path, checkpoint: Path, refuse: Callable[..., str], tmp_path: Path
) -> None:
    for path, what in ((tmp_path / "absent", "no such folder"), (prose, "a file, expected a bundle folder")):
        error = refuse(*USES[use](path, prose, checkpoint))
        assert f"{path}: {what}. Make a bundle with `xlexport convert CHECKPOINT`." in error


# Documents.


def test_documents_that_are_missing_leave_the_others(
    bundle: Path, prose: Path, invoke: Callable[..., Any], tmp_path: Path
) -> None:
    shown = invoke("score", bundle, tmp_path / "absent", prose, tmp_path / "too", "--set=same_length=true")
    assert shown.code == 1
    assert shown.out.startswith(f"{prose}: 79 tokens, ") and len(shown.out.splitlines()) == 1
    first, second, total, failed = shown.err.splitlines()
    assert first == f"Error: {tmp_path / 'absent'}: No such file or directory. Check the path."
    assert second.startswith(f"Error: {tmp_path / 'too'}: No such file")
    assert total.startswith("1 document, 79 tokens: ")
    assert failed == "2 of 3 documents could not be scored"


# Settings.


@pytest.mark.parametrize("setting", ["mem_len", "segment_len", "clamp_len"])
@pytest.mark.parametrize("use", ["score", "generate", "verify", "bench", "convert"])
def test_settings_out_of_range(
    setting: str, use: str, bundle: Path, prose: Path, checkpoint: Path, refuse: Callable[..., str], tmp_path: Path
) -> None:
    uses = {**USES, "convert": lambda *given: ("convert", checkpoint, "-o", tmp_path / "out")}
    option = "--set=clamp_len" if setting == "clamp_len" else f"--{setting.replace('_', '-')}"
    refused = refuse(*uses[use](bundle, prose, checkpoint), f"{option}={10**20 - 1}")
    assert f"{setting} is 99999999999999999999, expected 1 to" in refused


@pytest.mark.release
def test_more_memory_than_there_is(
    bundle: Path, command: Callable[..., list[str]], environment: dict[str, str]
) -> None:
    """Limit the process to 4 GB, so that the test does not use all memory of the machine."""
    # `generate` makes all rings at once; those of `score` grow with the document.
    line = command("generate", bundle, "It", "--mem-len", "20000000", "--set=same_length=true", "--threads", "1")
    limited = ["bash", "-c", 'ulimit -v 4000000 && exec "$@"', "bash", *line]
    done = subprocess.run(limited, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith(
        "Error: out of memory. Use a smaller --batch-size, --segment-len or --mem-len, or a larger machine.\n"
    )
    assert len(done.stderr.splitlines()) == 1


def test_prompt_that_is_empty(bundle: Path, refuse: Callable[..., str]) -> None:
    assert "the prompt is empty" in refuse("generate", bundle, "")
    assert "the prompt is empty" in refuse("generate", bundle, "--file", "-")


@pytest.mark.parametrize("use", ["score", "generate", "verify", "bench"])
def test_devices_that_are_not_there(
    use: str, bundle: Path, prose: Path, checkpoint: Path, refuse: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = USES[use](bundle, prose, checkpoint)
    assert "device 'tpu': expected cpu, cuda[:N], openvino[:CPU|GPU|NPU]" in refuse(*arguments, "--device", "tpu")
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    error = refuse(*arguments, "--device", "cuda")
    assert "has no CUDAExecutionProvider (it has CPUExecutionProvider). Install the wheel that has it: pip" in error


# Failures of the system, and as JSON.


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


def test_a_file_that_is_called_as_the_option_changes_nothing(bundle: Path, invoke: Invoke) -> None:
    assert invoke("score", bundle, "--", "--json").err.startswith("Error: --json: ")


@pytest.mark.full
@pytest.mark.parametrize(
    ("closed", "code", "err"),
    [
        ("<&-", 0, ""),
        ("<&- 2>&-", 0, ""),
        (">&-", 1, f"Error: standard output: {CLOSED}"),
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
