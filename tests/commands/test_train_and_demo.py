"""`xlexport train` from its first step to a resumed last step, and `xlexport demo` with a small sample."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from xlexport import checkpoints
from xlexport.sample import SAMPLES
from xlexport.terminal import INTERRUPTED
from xlruntime.bundle_files import digest_file, read_bundle
from xltraining.checkpoint import load_checkpoint, save_checkpoint
from xltraining.data.byte_streams import ByteStreams
from xltraining.data.tokenizer_file import TokenizerFile

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
    invoke(*command, "-o", parts, "--steps", "5").succeeded()
    assert "steps was 5" not in invoke("train", "-o", parts, "--resume").succeeded().err
    assert log_of(parts)[-1]["step"] == 5
    invoke("train", "-o", parts, "--resume", "--steps", "6", "--log-every", "2").succeeded()
    bits = [
        {key: line[key] for key in ("step", "valid_bits_per_byte")} for line in (log_of(once)[-1], log_of(parts)[-1])
    ]
    assert bits[0] == bits[1]


def test_threads_that_wait_for_cores_are_noticed_once(
    prose: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xlexport.commands.train.WATCHED", 0.0)
    monkeypatch.setattr("xlexport.bench.measuring.waited", lambda: 0.5 * time.perf_counter())
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    for name, threads in (("chosen", ("--threads", "2")), ("open", ())):
        shown = invoke("train", prose, "-o", tmp_path / name, *SIZE[:-2], "--steps", "3", *threads).succeeded()
        told = "other programs keep cores busy: threads waited 50% of the time. Try --threads 1."
        assert shown.err.splitlines()[:-1] == ([] if threads else [told])


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
    assert shown.err == f"stopped at step 6 of 12; wrote {tmp_path}/stopped/checkpoint.pt; go on with --resume\n"
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


@pytest.fixture
def tiny_demo(checkpoint: Path, reuse_export: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the demo's sample, text and times small, with the graphs of other tests, and return the text."""
    text = "It was the season of Light, it was the season of Darkness. " * 40
    monkeypatch.setattr("xlexport.commands.demo.sample_checkpoint", lambda tokens: checkpoint)
    monkeypatch.setattr("xlexport.commands.demo.sample_text", lambda: text)
    monkeypatch.setattr("xlexport.bench.measuring.SGEMM_SIZE", 64)
    monkeypatch.setattr("xlexport.bench.measuring.COPY_BYTES", 1 << 16)
    monkeypatch.setattr("xlexport.bench.disturbance", lambda *clocks, precision: None)
    monkeypatch.setattr("xlexport.bench.measuring.PAUSE", 0)
    monkeypatch.setattr("xlexport.commands.demo.TRIAL_BYTES", 100)
    return text


def test_demo_as_json(tiny_demo: str, checkpoint: Path, invoke: Invoke, tmp_path: Path) -> None:
    output = tmp_path / "kept"
    shown = invoke("demo", "-o", output, "--json").succeeded()
    found = shown.object
    speeds = ["tokens_per_second", "eager_tokens_per_second", "speedup", "disturbance"]
    assert list(found) == ["convert_seconds", "verify", "score", "text_bytes", *speeds]
    assert found["verify"]["passed"] is True
    assert "per_segment" not in found["verify"]
    assert found["text_bytes"] == len(tiny_demo)
    assert 100 <= found["score"]["bytes"] <= len(tiny_demo)
    assert found["score"]["document"] == "sample text"
    assert found["speedup"] == pytest.approx(found["tokens_per_second"] / found["eager_tokens_per_second"])
    assert found["disturbance"] is None
    assert "in a process without PyTorch" in shown.err
    assert read_bundle(output / "demo.bundle").provenance["sources"] == {
        checkpoint.name: digest_file(checkpoint).sha256
    }
    assert (output / "demo.txt").read_text() == tiny_demo


def test_demo_ends_with_its_table(tiny_demo: str, invoke: Invoke) -> None:
    shown = invoke("demo").succeeded()
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in shown.out.splitlines())
    assert list(rows) == [
        *("converted", "verified", "largest difference", "scored", "bits per byte", "tokens/s", "eager tokens/s")
    ]
    assert rows["verified"] == "20 segments of 8 tokens, memory 20"
    assert float(rows["bits per byte"]) > 1
    assert re.fullmatch(r"[\d,]+ \(\d+\.\dx\)", rows["eager tokens/s"])


def test_demo_beside_other_programs_compares_nothing(
    tiny_demo: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xlexport.bench.disturbance", lambda *clocks, precision: "rounds disagree by 40%")
    assert re.search(
        r"\neager tokens/s +[\d,]+ \(not compared: rounds disagree by 40%\)\n", invoke("demo").succeeded().out
    )
    found = invoke("demo", "--json").succeeded().object
    assert (found["speedup"], found["disturbance"]) == (None, "rounds disagree by 40%")


@pytest.mark.full
def test_demo_of_a_vocabulary_shows_its_tokens(
    tiny_demo: str, checkpoint: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.train_from_iterator([tiny_demo], trainers.BpeTrainer(vocab_size=60, show_progress=False))
    given, vocabulary = load_checkpoint(checkpoint), TokenizerFile("tokenizers", pieces.to_str().encode())
    save_checkpoint(tmp_path / "bpe.pt", given.config, given.state_dict, tokenizer=vocabulary)
    monkeypatch.setattr("xlexport.commands.demo.sample_checkpoint", lambda tokens: tmp_path / f"{tokens}.pt")
    monkeypatch.setattr("xlexport.commands.demo.SCORING_SECONDS", 1000)  # all of the text

    shown = invoke("demo", "--sample", "bpe").succeeded()
    tokens = len(pieces.encode(tiny_demo).ids)
    assert tokens < len(tiny_demo) / 2
    rows = dict(re.split(r"  +", line, maxsplit=1) for line in shown.out.splitlines())
    assert list(rows)[3:6] == ["scored", "tokens", "bits per byte"]
    assert rows["tokens"] == f"{tokens:,}, each of {len(tiny_demo) / tokens:.2f} bytes on average"
    assert rows["scored"].startswith(f"{len(tiny_demo):,} of {len(tiny_demo):,} bytes")


def test_demo_of_a_vocabulary_names_the_package_it_needs(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xlexport.extras.is_installed", lambda name: name != "tokenizers")
    error = invoke("demo", "--sample", "bpe").error
    assert error == "Error: tokenizers not installed, needed here. Install it: pip install tokenizers."


def test_demo_says_which_stage_failed(tiny_demo: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "xlexport.commands.demo.SCORE_WITHOUT_TORCH", "import sys; sys.exit('the runtime imported torch')"
    )
    shown = invoke("demo")
    assert (shown.code, shown.out) == (1, "")
    assert shown.err.splitlines()[-1] == "Error: scoring without PyTorch failed: the runtime imported torch"


def test_demo_without_its_sample(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(SAMPLES, "bytes", tmp_path / "absent.pt")
    error = invoke("demo").error
    assert "the sample checkpoint is in neither" in error
    assert "Install from a complete clone" in error
