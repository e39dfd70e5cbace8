"""Bad settings on the command line give one line with problem and hint, and exit status 1; nothing is written."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.test_bad_input import USES

# Settings.


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (("--mem-len", "99999999999999999999"), "mem_len is 99999999999999999999, expected 1 to"),
        (("--segment-len", "99999999999999999999"), "segment_len is 99999999999999999999, expected 1 to"),
        (("--set=clamp_len=99999999999999999999",), "clamp_len is 99999999999999999999, expected 1 to"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
@pytest.mark.parametrize("use", ["score", "generate", "verify", "bench", "convert"])
def test_settings_out_of_range(
    settings: tuple[str, ...],
    what: str,
    use: str,
    bundle: Path,
    prose: Path,
    checkpoint: Path,
    refuse: Callable[..., str],
    tmp_path: Path,
) -> None:
    uses = {**USES, "convert": lambda *given: ("convert", checkpoint, "-o", tmp_path / "out")}
    assert what in refuse(*uses[use](bundle, prose, checkpoint), *settings)


@pytest.mark.full
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


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (("--temperature", "-1"), "temperature is -1.0, at least 0 is needed"),
        (("--temperature", "nan"), "temperature is nan, at least 0 is needed"),
        (("--top-k", "0", "--top-p", "1.5"), "top_k is 0, at least 1 is needed; top_p is 1.5, expected more than 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_sampling_out_of_range(settings: tuple[str, ...], what: str, bundle: Path, refuse: Callable[..., str]) -> None:
    assert what in refuse("generate", bundle, "It was", *settings)


def test_prompt_that_is_empty(bundle: Path, refuse: Callable[..., str]) -> None:
    assert "the prompt is empty" in refuse("generate", bundle, "")
    assert "the prompt is empty" in refuse("generate", bundle, "--file", "-")


@pytest.mark.parametrize("use", ["score", "generate", "verify", "bench"])
def test_devices_that_are_not_there(
    use: str, bundle: Path, prose: Path, checkpoint: Path, refuse: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = USES[use](bundle, prose, checkpoint)
    assert "device 'tpu': expected cpu, cuda or cuda:N, for example cuda:1." in refuse(*arguments, "--device", "tpu")
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    error = refuse(*arguments, "--device", "cuda")
    assert "has no CUDAExecutionProvider (it has CPUExecutionProvider). Install the CUDA build: pip" in error


# Training.


def test_training_that_cannot_begin(refuse: Callable[..., str], prose: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert "n_layer must be at least 1, found 0" in refuse("train", prose, "-o", out, "--n-layer", "0")
    error = refuse("train", prose, "-o", out, "--batch-size", "0", "--learning-rate", "0")
    assert "learning_rate must be above 0" in error and "batch_size must be at least 1" in error
    assert str(tmp_path / "absent") in refuse("train", tmp_path / "absent", "-o", out, "--steps", "1")
    tiny = ("--steps", "1", "--batch-size", "1", "--tgt-len", "8", "--mem-len", "8")
    assert str(out) in refuse("train", prose, "-o", out, "--resume", *tiny)
