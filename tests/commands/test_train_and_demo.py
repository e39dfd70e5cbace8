"""`xlexport train` from its first step to a resumed last step."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from xlexport import checkpoints
from xlexport.terminal import INTERRUPTED
from xlruntime.bundle_files import digest_file
from xltraining.data.byte_streams import ByteStreams

if TYPE_CHECKING:
    from tests.helpers.invoking import Finished

    Invoke = Callable[..., Finished]

SIZE = (
    *("--n-layer", "1", "--n-head", "2", "--d-model", "8", "--d-head", "5", "--d-inner", "8", "--tgt-len", "6"),
    *(
        "--mem-len",
        "10",
        "--batch-size",
        "2",
        "--set=model.pre_lnorm=true",
        "--set=model.first_memory=zeros",
        "--set=model.untie_r=false",
    ),
    *("--warmup-steps", "2", "--log-every", "2", "--seed", "3", "--threads", "1"),
)


def test_train_writes_a_checkpoint_and_a_log(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ("train", prose, "-o", out, "--valid", prose, *SIZE)
    shown = invoke(*command, "--steps", "4", "--eval-every", "2").succeeded()
    assert shown.out == ""
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint.pt", "log.jsonl"]
    source = checkpoints.load(out / "checkpoint.pt")
    config = {"n_layer": 1, "d_head": 5, "mem_len": 10, "pre_lnorm": True, "first_memory": "zeros", "untie_r": False}
    assert {name: source.config[name] for name in config} == config
    assert log_of(out)[-1]["step"] == 4

    before = digest_file(out / "checkpoint.pt")
    error = invoke(*command, "--steps", "4").error
    assert f"{out / 'checkpoint.pt'}: the checkpoint exists already. Resume that run or choose another folder." in error
    error = invoke(*command, "--steps", "3", "--d-inner", "9", "--resume").error
    assert "belongs to another run: d_inner was 8, is now 9" in error
    error = invoke("train", "-o", out, "--resume", "--steps", "3").error
    assert f"{out / 'checkpoint.pt'}: 4 steps are done, but steps is now 3. Give more steps." in error
    assert digest_file(out / "checkpoint.pt") == before


def test_resume_needs_nothing_repeated_and_may_go_further(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    once, parts = tmp_path / "once", tmp_path / "parts"
    command = (
        "train",
        prose,
        "--valid",
        prose,
        *SIZE,
        "--set=training.min_lr_ratio=1",
        "--warmup-steps",
        "1",
    )  # a constant rate
    invoke(*command, "-o", once, "--steps", "6").succeeded()
    invoke(*command, "-o", parts, "--steps", "4").succeeded()
    invoke("train", "-o", parts, "--resume").succeeded()
    assert log_of(parts)[-1]["step"] == 4
    invoke("train", "-o", parts, "--resume", "--steps", "6", "--log-every", "2").succeeded()
    bits = [
        {key: line[key] for key in ("step", "valid_bits_per_byte")} for line in (log_of(once)[-1], log_of(parts)[-1])
    ]
    assert bits[0] == bits[1]


def test_resume_without_a_run_says_so(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    assert "checkpoint.pt: the checkpoint does not exist" in invoke("train", "-o", tmp_path, "--resume").error
    invoke("train", "-o", tmp_path / "fresh", *SIZE, "--steps", "0").succeeded()
    assert "holds weights only, no run to resume" in invoke("train", "-o", tmp_path / "fresh", "--resume").error


def test_train_a_vocabulary_cut_into_clusters(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    clusters = ("--set=model.cutoffs=64,128", "--set=model.div_val=2", "--set=model.d_embed=4")
    invoke("train", prose, "-o", tmp_path / "run", *SIZE, *clusters, "--steps", "2").succeeded()
    config = checkpoints.load(tmp_path / "run" / "checkpoint.pt").config
    assert {"cutoffs": [64, 128], "div_val": 2, "d_embed": 4}.items() <= config.items()
    refused = invoke("train", prose, "-o", tmp_path / "other", *SIZE, "--set=model.cutoffs=64,x")
    assert refused.code == 2
    assert "'64,x' is not a list of integers separated by commas" in refused.err


def test_train_that_is_stopped_goes_on_as_if_it_never_had(
    prose: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = ("train", prose, *SIZE, "--steps", "12", "--dropout", "0.1", "-o")
    invoke(*command, tmp_path / "unbroken").succeeded()

    batch = ByteStreams.batch

    def interrupted_batch(self: ByteStreams, step: int) -> Any:
        if step == 5:
            signal.raise_signal(signal.SIGINT)
        return batch(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(ByteStreams, "batch", interrupted_batch)
        shown = invoke(*command, tmp_path / "stopped")
    assert shown.code == INTERRUPTED
    assert shown.err.splitlines()[-1] == "stopped at step 6; go on with --resume"
    shown = invoke(*command, tmp_path / "stopped", "--resume").succeeded()
    assert f"resuming {tmp_path / 'stopped' / 'checkpoint.pt'} at step 6" in shown.err

    stopped, unbroken = (
        [(line["step"], line["bits_per_byte"]) for line in log_of(tmp_path / name)] for name in ("stopped", "unbroken")
    )
    assert stopped == unbroken
    assert [step for step, _ in unbroken] == [2, 4, 6, 8, 10, 12]


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_fresh_weights_without_text(invoke: Invoke, tmp_path: Path) -> None:
    invoke("train", "-o", tmp_path / "run", *SIZE, "--steps", "0").succeeded()
    model = checkpoints.load(tmp_path / "run" / "checkpoint.pt").build_model()
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_fresh_weights_never_replace_a_trained_checkpoint(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    command = ("train", prose, "-o", tmp_path / "run", *SIZE)
    invoke(*command, "--steps", "2").succeeded()
    before = digest_file(tmp_path / "run" / "checkpoint.pt")
    for resume in ((), ("--resume",)):
        assert "the checkpoint exists already" in invoke(*command, "--steps", "0", *resume).error
    assert digest_file(tmp_path / "run" / "checkpoint.pt") == before
