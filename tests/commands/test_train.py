"""`xlexport train` from its first step to a resumed last step: its options, recipes, notes and curves."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
import time
import types
from pathlib import Path
from typing import Any

import click
import pytest

from tests.helpers.invoking import Invoke
from xlexport import formats, progress_bar
from xlexport.commands import execute
from xlexport.commands.train import curve_writers, model_config, train
from xlexport.terminal import INTERRUPTED
from xlruntime.bundle_files import digest_file
from xltraining.checkpoint import build_model, load_checkpoint
from xltraining.config_fields import options_of
from xltraining.data.streams import TokenStreams
from xltraining.encoder_decoder import EncoderDecoderConfig
from xltraining.errors import ConfigError
from xltraining.reformer import Reformer, ReformerConfig
from xltraining.training_config import TrainingConfig
from xltraining.transformer_xl import TransformerXLConfig

RUN = ("--batch-size", "2", "--set=training.warmup_steps=2", "--threads", "1")
SIZE = (
    *("--n-layer=1", "--n-head=2", "--d-model=8", "--set=model.d_head=5", "--set=model.d_inner=8", "--tgt-len=6"),
    *("--mem-len", "10", "--set=model.pre_lnorm=true", "--set=model.first_memory=zeros", "--set=model.untie_r=false"),
    *("--set=training.log_every=2", "--seed", "3", *RUN),
)
REFORMER = (
    *("--architecture=reformer", "--attn-layers=local, lsh", "--n-head=2", "--d-model=8", "--set=model.d_head=4"),
    *(
        "--set=model.d_inner=8",
        "--set=model.n_buckets=2,4",
        "--set=model.chunk_length=4",
        "--set=model.local_chunk_length=4",
    ),
    *("--set=training.log_every=1", *RUN),
)
SHORT = ("--tgt-len", "8", "--mem-len", "12")
AXIAL = "--set=model.axial_shape=4,8"


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_train_writes_a_checkpoint_and_a_log(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ("train", prose, "-o", out, "--valid", prose, *SIZE)
    shown = invoke(*command, "--steps", "4", "--set=training.eval_every=2").succeeded()
    assert shown.out == ""
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint.pt", "log.jsonl"]
    config = {"n_layer": 1, "d_head": 5, "mem_len": 10, "pre_lnorm": True, "first_memory": "zeros", "untie_r": False}
    source, log = formats.load(out / "checkpoint.pt"), log_of(out)
    assert config.items() <= source.config.items()
    assert log[-1]["step"] == 4
    assert source.about == {"data": prose.name, "held_out_bits_per_token": log[-1]["valid_bits_per_byte"]}

    before = digest_file(out / "checkpoint.pt")
    exists = f"{out / 'checkpoint.pt'}: the checkpoint exists already. Resume that run or choose another folder."
    for options, problem in (
        ((), exists),
        (("--steps", "0", "--resume"), exists),  # fresh weights never replace trained ones
        (("--set=model.d_inner=9", "--resume"), "belongs to another run: d_inner was 8, is now 9"),
        (("--steps", "3", "--resume"), "4 steps are done, but steps is now 3. Give more steps."),
    ):
        assert problem in invoke(*command, *("--steps", "4"), *options).error
    assert digest_file(out / "checkpoint.pt") == before


def test_resume_needs_nothing_repeated_and_may_go_further(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    once, parts = tmp_path / "once", tmp_path / "parts"
    constant = ("--set=training.min_lr_ratio=1", "--set=training.warmup_steps=1")
    command = ("train", prose, "--valid", prose, *SIZE, *constant)
    invoke(*command, "-o", once, "--steps", "6").succeeded()
    invoke(*command, "-o", parts, "--steps", "4").succeeded()
    assert "steps was" not in invoke("train", "-o", parts, "--resume").succeeded().err
    assert log_of(parts)[-1]["step"] == 4
    more = ("--steps", "6", "--set=training.log_every=2", "--set", "licence=CC0")
    invoke("train", "-o", parts, "--resume", *more).succeeded()
    bits = log_of(parts)[-1]["valid_bits_per_byte"]
    shown = invoke("inspect", parts / "checkpoint.pt").succeeded().table
    assert (shown["licence"], shown["training data"]) == ("CC0", prose.name)
    assert shown["held-out text"] == f"{bits:.4f} bits per token, by its training"
    assert log_of(once)[-1]["valid_bits_per_byte"] == log_of(parts)[-1]["valid_bits_per_byte"]


def test_a_stopped_run_says_so_once_and_that_it_becomes_shorter(
    prose: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, batch = tmp_path / "stopped", TokenStreams.batch

    def interrupted_batch(self: TokenStreams, step: int, rows: slice) -> Any:
        if step == 5:
            signal.raise_signal(signal.SIGINT)
        return batch(self, step, rows)

    with monkeypatch.context() as patch:
        patch.setattr(TokenStreams, "batch", interrupted_batch)
        shown = invoke("train", prose, *SIZE, "--steps", "12", "-o", out)
    assert shown.code == INTERRUPTED
    assert shown.err == f"stopped at step 6 of 12; wrote {out}/checkpoint.pt; go on with --resume\n"
    shown = invoke("train", "-o", out, "--resume", "--steps", "8").succeeded()
    resuming, shorter, finished = shown.err.splitlines()
    assert resuming == f"resuming {out}/checkpoint.pt at step 6"
    assert shorter.startswith("steps was 12, is now 8: the run ends there, also when it is resumed again.")
    assert finished.startswith("finished at step 8 of 8")
    assert [line["step"] for line in log_of(out)] == [2, 4, 6, 8]


def test_threads_that_wait_for_cores_are_noticed_once(
    prose: Path, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xlexport.commands.train.WATCHED", 0.0)
    monkeypatch.setattr("xlexport.bench.measuring.waited", lambda: 0.5 * time.perf_counter())
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    note = "other programs keep cores busy: threads waited 50% of the time. Try --threads 1."
    for name, threads in (("chosen", ("--threads", "2")), ("open", ())):
        shown = invoke("train", prose, "-o", tmp_path / name, *SIZE[:-2], "--steps", "3", *threads).succeeded()
        assert shown.err.splitlines()[:-1] == ([] if threads else [note])


def test_resume_without_a_run_says_so(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    assert "checkpoint.pt: the checkpoint does not exist" in invoke("train", "-o", tmp_path, "--resume").error
    invoke("train", "-o", tmp_path / "fresh", *SIZE, "--steps", "0").succeeded()
    assert "holds weights only, no run to resume" in invoke("train", "-o", tmp_path / "fresh", "--resume").error


def test_the_command_line_takes_the_place_of_a_recipe(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(prose.read_bytes() * 9)
    recipe = tmp_path / "run.toml"
    recipe.write_text(
        'data = ["data"]\n[model]\nn_layer = 2\nd_model = 8\nclamp_len = 5\nuntie_r = false\ncutoffs = [64, 128]\n'
        "[training]\nsteps = 0\nbest = true\nclip = 2\n"
    )
    chosen = (
        "--n-layer",
        "1",
        "--set=training.best=false",
        "--set=model.clamp_len=6",
        "--n-head",
        "2",
        "--set=model.div_val=2",
    )
    invoke("train", "-o", tmp_path / "run", "--settings", recipe, *chosen).succeeded()
    config = load_checkpoint(tmp_path / "run" / "checkpoint.pt").config
    assert isinstance(config, TransformerXLConfig)
    assert (config.n_layer, config.d_model, config.clamp_len, config.untie_r) == (1, 8, 6, False)
    assert (config.cutoffs, config.div_val) == ((64, 128), 2)


def test_task_of_a_recipe_is_answered_with_what_replaces_it(invoke: Invoke, tmp_path: Path) -> None:
    recipe = tmp_path / "run.toml"
    recipe.write_text('[training]\ntask = "pairs"\nstps = 3\n', "utf-8")
    shown = invoke("train", "-o", tmp_path / "run", "--settings", recipe)
    assert shown.code == 2 and "training.task is no longer a setting (An encoder-decoder learns pairs" in shown.err
    assert "training.stps is unknown (did you mean steps?)" in shown.err


def test_every_setting_is_offered_once() -> None:
    options = [option for option in train.params if isinstance(option, click.Option)]
    assert len([option for option in options if not option.hidden]) <= 39
    names = [option.name for option in options]
    assert len(names) == len(set(names))
    for kind in (TrainingConfig, TransformerXLConfig, ReformerConfig, EncoderDecoderConfig):
        assert {option.name for option in options_of(kind).values() if option.help} <= set(names)


def test_lines_during_a_bar_are_whole(prose: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress_bar, "BAR_EVERY", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        files = ("train", str(prose), "--valid", str(prose), "-o", str(tmp_path / "run"))
        assert execute([*files, *SIZE, "--steps", "6", "--set=training.eval_every=2"]) == 0
    text = terminal.getvalue()
    assert "\rtraining:" in text and "\revaluating: 100%|" in text
    lines = [line.rpartition("\r")[2] for line in text.split("\n")[:-1]]
    for line, start in zip(lines, ["step 2: ", "step 4: ", "step 6: ", "finished at step 6 of 6; "], strict=True):
        assert re.fullmatch(rf"{start}[\w ./,-]+", line), lines


def test_curves_of_tensorboard_are_the_numbers_of_the_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written: list[tuple[Any, ...]] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            written.append((folder,))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            written.append(("closed",))

    package = types.ModuleType("torch.utils.tensorboard")
    package.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", package)
    monkeypatch.setattr("xlexport.extras.packages_of", lambda extra: [])
    with curve_writers(tmp_path) as write:
        write({"step": 5, "loss": 2.5, "learning_rate": 0.1})
    assert written == [(str(tmp_path),), ("loss", 2.5, 5), ("learning_rate", 0.1, 5), ("closed",)]

    monkeypatch.setenv("RANK", "1")  # one process of a run writes
    with curve_writers(tmp_path) as write:
        write({"step": 6, "loss": 2.4})
    assert len(written) == 4


def test_train_a_reformer_and_go_on(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = (
        "--set=training.optimizer=adafactor",
        "--set=model.redraw_hashes=true",
        "--set=model.hash_seed=5",
        "--steps",
        "3",
    )
    command = ("train", prose, "-o", out, "--valid", prose, *REFORMER, *SHORT, AXIAL, *more)
    shown = invoke(*command, "--set=training.reversible=false").succeeded()
    assert "the model has 32 positions, so longer documents will need --restart. --set model.pos" in shown.err
    assert [line["step"] for line in log_of(out)] == [1, 2, 3]
    assert "valid_bits_per_byte" in log_of(out)[-1]
    checkpoint = load_checkpoint(out / "checkpoint.pt")
    sizes = {"n_head": 2, "d_model": 8, "d_head": 4, "d_inner": 8, "n_buckets": [2, 4], "attn_layers": ["local", "lsh"]}
    lengths = {"chunk_length": 4, "local_chunk_length": 4, "tgt_len": 8, "mem_len": 12, "axial_shape": [4, 8]}
    hashes = {"axial_dims": [2, 6], "max_positions": 32, "hash_seed": 5, "redraw_hashes": True}
    assert {**sizes, **lengths, **hashes}.items() <= checkpoint.config.to_dict().items()
    assert isinstance(build_model(checkpoint), Reformer)
    assert f"resuming {out / 'checkpoint.pt'} at step 3" in invoke("train", "-o", out, "--resume").succeeded().err


@pytest.mark.parametrize(
    ("option", "value", "feature"),
    [
        ("--attn-layers", "local,separate", "layers with separate queries and keys"),
        ("--set", "model.residual=ordinary", "residual connections of one stream"),
    ],
)
def test_models_for_comparisons_are_not_converted(
    prose: Path, invoke: Invoke, tmp_path: Path, option: str, value: str, feature: str
) -> None:
    size = ("--d-model", "8", "--n-head", "2", "--set=model.d_head=4", "--tgt-len", "8", "--steps", "0")
    invoke("train", prose, "-o", tmp_path / "run", "--architecture", "reformer", *size, option, value).succeeded()
    error = invoke("convert", tmp_path / "run" / "checkpoint.pt", "-o", tmp_path / "bundle").error
    assert f"the Reformer has {feature}, which are for comparisons in training and have no step graphs." in error
    assert not (tmp_path / "bundle").exists()


OF_REFORMER = ("--architecture", "reformer")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--n-layer", "2", "--set=model.clamp_len=4", *REFORMER),
            "--n-layer, model.clamp_len: only for --architecture transformer_xl, not reformer; "
            "attn_layers names a Reformer's layers.",
        ),
        (("--set=model.n_hashes=2",), "model.n_hashes: only for --architecture reformer, not transformer_xl."),
        (("--set=training.reversible=false",), "reversible: only for --architecture reformer or encoder_decoder."),
        ((*REFORMER, "--set=model.position=rotary", AXIAL), "axial_shape: only for position axial or axial_sum."),
        (
            (*OF_REFORMER, "--attn-layers", "full,local", "--set=model.n_hashes=2", "--set=model.redraw_hashes=false"),
            "n_hashes, redraw_hashes: only with lsh layers, but attn_layers is full,local.",
        ),
        (
            (*OF_REFORMER, "--attn-layers", "lsh", "--set=model.local_chunk_length=8"),
            "local_chunk_length: only with local layers, but attn_layers is lsh.",
        ),
        (("--set=training.swap_layers=true",), "training.swap_layers: only for --architecture reformer."),
        (
            (*REFORMER, "--set=model.axial_shape=64"),
            "axial_shape has 1 and axial_dims 2 numbers by default: give both, with equally many numbers.",
        ),
        ((*REFORMER, AXIAL, "--set=model.axial_dims=8"), "axial_dims 1 numbers: give both"),
        ((*REFORMER, "--set=model.n_buckets=x"), "'x' is not a list of integers separated by commas"),
        (("--set=model.shaw_biases=false",), "shaw_biases: only with encoding shaw"),
        (("--set=model.tie_projs=true",), "tie_projs: embeddings as wide as the model have no projection"),
        (("--set=model.tie_projs=maybe",), "'maybe' is not a valid boolean"),
        (("--set=model.scale_scores=true",), "model.scale_scores: only for --architecture reformer"),
        ((*OF_REFORMER, "--attn-layers=local", "--set=model.scale_scores=true"), "scale_scores: only with lsh or full"),
        ((*REFORMER, AXIAL, "--set=model.hash_turned=true"), "hash_turned: only for position rotary, found axial"),
        ((*REFORMER, "--set=model.tie_weight=true"), "model.tie_weight: only for --architecture"),
    ],
)
def test_options_that_would_not_count_are_refused(
    prose: Path, invoke: Invoke, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    shown = invoke("train", prose, "-o", tmp_path / "run", *options)
    assert shown.code == 2
    assert message in " ".join(shown.err.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            (*REFORMER, *SHORT, "--attn-layers", "local,conv"),
            "attn_layers must be of local, lsh, full, separate, found 'conv'",
        ),
        (
            (*REFORMER, *SHORT, "--set=model.axial_shape=4,9"),
            "tgt_len 8 must divide max_positions 36, the size of axial_shape 4, 9",
        ),
        ((*SIZE, "--set=model.cutoffs=60", "--set=training.label_smoothing=0.1"), "label_smoothing needs the logits"),
    ],
)
def test_a_model_that_cannot_be_is_one_error(
    prose: Path, invoke: Invoke, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    error = invoke("train", prose, "-o", tmp_path / "run", *options).error
    assert message in error
    assert not (tmp_path / "run").exists()


def test_positions_of_new_reformers_and_of_earlier_checkpoints() -> None:
    def positions(**chosen: Any) -> tuple[str, int]:
        config = model_config("reformer", chosen, TrainingConfig())
        assert isinstance(config, ReformerConfig)
        return config.position, config.max_positions

    assert positions() == ("rotary", 0)
    assert positions(position="axial") == positions(axial_dims=(64, 192)) == ("axial", 8192)
    assert positions(axial_shape=(4, 8), d_model=8) == ("axial", 32)
    assert positions(position="axial_sum") == ("axial_sum", 8192)
    assert positions(position="axial_sum", axial_shape=(2, 4, 4), d_model=8) == ("axial_sum", 32)
    assert positions(position="sinusoid") == ("sinusoid", 0)
    assert positions(position="absolute", max_positions=512) == ("absolute", 512)
    with pytest.raises(ConfigError, match="max_positions must be the size of axial_shape, 8,192, found 9"):
        positions(position="axial", max_positions=9)
    # A checkpoint without the field has the positions that it was trained with.
    assert ReformerConfig.from_dict({}) == model_config("reformer", {"position": "axial"}, TrainingConfig())
