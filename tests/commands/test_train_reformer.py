"""`xlexport train` with the options of a Reformer, and on the duplication task."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from xlexport.commands.train import model_config
from xltraining.checkpoint import build_model, load_checkpoint
from xltraining.errors import ConfigError
from xltraining.reformer import Reformer, ReformerConfig
from xltraining.training_config import TrainingConfig

if TYPE_CHECKING:
    from tests.helpers.invoking import Finished

    Invoke = Callable[..., Finished]

SIZE = (
    *("--architecture", "reformer", "--attn-layers", "local, lsh", "--n-head", "2", "--d-model", "8", "--d-head", "4"),
    *(
        "--d-inner",
        "8",
        "--set=model.n_buckets=2,4",
        "--set=model.chunk_length=4",
        "--set=model.local_chunk_length=4",
        "--batch-size",
        "2",
    ),
    *("--warmup-steps", "2", "--log-every", "1", "--threads", "1"),
)
TEXT_SIZE = (*SIZE, "--tgt-len", "8", "--mem-len", "12", "--set=model.axial_shape=4,8")


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_train_a_reformer_and_go_on(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = (
        "--optimizer",
        "adafactor",
        "--set=model.redraw_hashes=true",
        "--set=model.hash_seed=5",
        "--set=training.reversible=false",
        "--steps",
        "3",
    )
    command = ("train", prose, "-o", out, "--valid", prose, *TEXT_SIZE, *more)
    invoke(*command).succeeded()
    assert [line["step"] for line in log_of(out)] == [1, 2, 3]
    assert "valid_bits_per_byte" in log_of(out)[-1]
    checkpoint = load_checkpoint(out / "checkpoint.pt")
    assert checkpoint.config == ReformerConfig(
        attn_layers=("local", "lsh"),
        n_head=2,
        d_model=8,
        d_head=4,
        d_inner=8,
        n_buckets=(2, 4),
        chunk_length=4,
        local_chunk_length=4,
        tgt_len=8,
        mem_len=12,
        axial_shape=(4, 8),
        axial_dims=(2, 6),  # a quarter and the rest
        max_positions=32,
        hash_seed=5,
        redraw_hashes=True,
    )
    assert isinstance(build_model(checkpoint), Reformer)
    shown = invoke(*command, "--resume").succeeded()
    assert f"resuming {out / 'checkpoint.pt'} at step 3" in shown.err


def test_the_duplication_task(invoke: Invoke, tmp_path: Path) -> None:
    out = tmp_path / "run"
    task = ("--task", "duplication", "--set=training.word_length=6", "--steps", "2")
    shown = invoke("train", "-o", out, *SIZE, "--set=model.axial_shape=4,8", *task).succeeded()
    assert re.search(r"step 2: \d\.\d{4} bits/symbol, held out \d\.\d{4}, \d\.\d% right", shown.err)
    assert log_of(out)[-1].keys() >= {"bits_per_symbol", "valid_bits_per_symbol", "valid_accuracy"}
    config = load_checkpoint(out / "checkpoint.pt").config
    assert isinstance(config, ReformerConfig)
    assert (config.n_token, config.tgt_len, config.mem_len) == (128, 14, 14)
    error = invoke("convert", out / "checkpoint.pt", "-o", tmp_path / "bundle").error
    assert "does not say what its 128 tokens are. Give --tokenizer" in error


@pytest.mark.parametrize(
    ("option", "value", "found"),
    [
        ("--attn-layers", "local,separate", "layers with separate queries and keys"),
        ("--set", "model.residual=ordinary", "residual connections of one stream"),
    ],
)
def test_models_for_comparisons_are_not_converted(
    prose: Path, invoke: Invoke, tmp_path: Path, option: str, value: str, found: str
) -> None:
    size = ("--d-model", "8", "--n-head", "2", "--d-head", "4", "--tgt-len", "8", "--set=model.axial_shape=4,8")
    made = ("--architecture", "reformer", *size, option, value, "--steps", "0")
    invoke("train", prose, "-o", tmp_path / "run", *made).succeeded()
    error = invoke("convert", tmp_path / "run" / "checkpoint.pt", "-o", tmp_path / "bundle").error
    assert f"the Reformer has {found}, which are for comparisons in training and have no step graphs." in error
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--n-layer", "2", "--set=model.clamp_len=4", *SIZE),
            "--n-layer, model.clamp_len: only for --architecture transformer_xl, not reformer; "
            "a Reformer's layers are the ones that attn_layers names.",
        ),
        (("--set=model.n_hashes=2",), "model.n_hashes: only for --architecture reformer, not transformer_xl."),
        (
            ("--set=training.reversible=false",),
            "training.reversible: only for --architecture reformer or encoder_decoder.",
        ),
        (
            (*SIZE, "--set=model.position=rotary", "--set=model.axial_shape=2,2"),
            "axial_shape: only for position axial.",
        ),
        (
            (
                "--architecture",
                "reformer",
                "--attn-layers",
                "full,local",
                "--set=model.n_hashes=2",
                "--set=model.redraw_hashes=false",
            ),
            "n_hashes, redraw_hashes: only with lsh layers, but attn_layers is full,local.",
        ),
        (
            ("--architecture", "reformer", "--attn-layers", "lsh", "--set=model.local_chunk_length=8"),
            "local_chunk_length: only with local layers, but attn_layers is lsh.",
        ),
        (("--set=training.swap_layers=true",), "training.swap_layers: only for --architecture reformer."),
        (("--set=training.word_length=3",), "training.word_length: only for --task duplication."),
        (
            ("--task", "duplication", "--tgt-len", "3"),
            "--tgt-len: in the duplication task training.word_length decides it.",
        ),
        (
            (*SIZE, "--set=model.axial_shape=64"),
            "axial_shape has 1 and axial_dims 2 numbers by default: give both, with equally many numbers.",
        ),
        ((*SIZE, "--set=model.axial_shape=4,8", "--set=model.axial_dims=8"), "axial_dims 1 numbers: give both"),
        ((*SIZE, "--set=model.n_buckets=x"), "'x' is not a list of integers separated by commas"),
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
        (("--attn-layers", "local,conv"), "attn_layers must be of local, lsh, full, separate, found 'conv'"),
        (("--set=model.n_buckets=7",), "n_buckets must be even numbers"),
        (("--set=model.axial_shape=4,9",), "tgt_len 8 must divide max_positions 36, the size of axial_shape 4, 9"),
        (("--task", "duplication"), "Leave out the text files"),
    ],
)
def test_a_reformer_that_cannot_be_is_one_error(
    prose: Path, invoke: Invoke, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    size = SIZE if "duplication" in options else TEXT_SIZE
    assert message in invoke("train", prose, "-o", tmp_path / "run", *size, *options).error
    assert not (tmp_path / "run").exists()


def test_what_other_options_decide() -> None:
    def positions(**chosen: Any) -> tuple[str, int]:
        config = model_config("reformer", chosen, TrainingConfig())
        assert isinstance(config, ReformerConfig)
        return config.position, config.max_positions

    assert positions() == ("rotary", 0)
    assert positions(position="axial") == positions(axial_dims=(64, 192)) == ("axial", 8192)
    assert positions(axial_shape=(4, 8), d_model=8) == ("axial", 32)
    assert positions(position="sinusoid") == ("sinusoid", 0)
    assert positions(position="absolute", max_positions=512) == ("absolute", 512)
    with pytest.raises(ConfigError, match="max_positions must be the size of axial_shape, 8,192, found 9"):
        positions(position="axial", max_positions=9)
    # A checkpoint without the field has the positions that it was trained with.
    assert ReformerConfig.from_dict({}) == model_config("reformer", {"position": "axial"}, TrainingConfig())


def test_positions_that_end_are_announced(prose: Path, invoke: Invoke, tmp_path: Path) -> None:
    train = ("train", prose, *SIZE, "--tgt-len", "8", "--steps", "0", "-o")
    assert (
        invoke(*train, tmp_path / "any").succeeded().err == f"wrote {tmp_path}/any/checkpoint.pt with fresh weights\n"
    )
    limited = invoke(*train, tmp_path / "limited", "--set=model.axial_shape=4,8").succeeded()
    assert (
        "positions end after 32 tokens, so longer documents need --restart. --set model.position=rotary" in limited.err
    )
