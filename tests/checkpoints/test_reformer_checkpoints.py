"""Reformers of every format on the command line, and our own files of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from tests.checkpoints.refusals import refusal
from tests.checkpoints.test_huggingface_format import change_config
from tests.helpers.command_table import all_commands
from tests.oracles.reformer_configurations import ReformerCase
from tests.oracles.reformers import HuggingFaceReformer, PyTorchReformer
from xlexport.checkpoints import load
from xlexport.commands import run
from xlruntime.bundle_files import read_bundle
from xltraining.checkpoint import save_checkpoint
from xltraining.reformer import Reformer, ReformerConfig

if TYPE_CHECKING:
    from tests.checkpoints.conftest import Inspect

SMALL = ReformerConfig(d_model=16, n_head=2, d_head=4, d_inner=20, attn_layers=("lsh", "local"), axial_dims=(4, 12))


@pytest.fixture(scope="module")
def model() -> Reformer:
    torch.manual_seed(0)
    return Reformer(SMALL).eval()


@pytest.fixture
def unsaid(tmp_path: Path) -> Path:
    """Make a Hugging Face folder without a number of buckets."""
    settings = {"attn_layers": ["lsh"], "num_buckets": None, "vocab_size": 258, "max_position_embeddings": 256}
    case = ReformerCase("small", {**settings, "axial_pos_shape": [16, 16]}, ())
    return HuggingFaceReformer(case).save(tmp_path / "reformer")


# Our own.


@pytest.mark.parametrize("name", ["checkpoint.pt", "checkpoint"])
def test_our_own_files(name: str, model: Reformer, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / name, SMALL, model.state_dict())
    source = load(tmp_path / name)
    assert (source.architecture, source.format, source.tokenizer) == ("reformer", "xltraining", "bytes")
    assert source.config == SMALL.to_dict()
    assert source.parameters == sum(parameter.numel() for parameter in model.parameters())
    found: dict[str, Tensor] = source.build_model().state_dict()
    assert all(torch.equal(found[key], tensor) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize("given", [{"num_buckets": (8,)}, {"max_length": 64}])
def test_our_own_files_say_everything(given: dict[str, Any], model: Reformer, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "checkpoint.pt", SMALL, model.state_dict())
    message = refusal(tmp_path / "checkpoint.pt", config=given)
    assert message.endswith("Leave out --config.")


@pytest.mark.parametrize("name", ["layers.0.attention.rotations", "head.bias"])
def test_numbers_that_are_not_finite_are_refused(name: str, model: Reformer, tmp_path: Path) -> None:
    tensors = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    tensors[name].view(-1)[0] = math.inf
    save_checkpoint(tmp_path / "checkpoint.pt", SMALL, tensors)
    assert f"infinite or undefined weights in {name}" in refusal(tmp_path / "checkpoint.pt")


@pytest.mark.parametrize("change", [{"n_hashes": 1 << 30}, {"n_buckets": [2] * 10_000}, {"attn_layers": ["x"] * 99}])
def test_sizes_from_our_own_files_take_no_time(change: dict[str, Any], model: Reformer, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    save_checkpoint(folder, SMALL, model.state_dict())
    content = json.loads((folder / "config.json").read_text())
    change_config(folder, config={**content["config"], **change})
    assert "invalid Reformer configuration" in refusal(folder)


# The command line.


@pytest.mark.parametrize("command", ["convert", "verify", "bench", "inspect"])
def test_commands_that_read_checkpoints_take_the_same_options(command: str) -> None:
    options = {option for parameter in all_commands()[command].params for option in parameter.opts}
    assert {"--config", "--format"} <= options


@pytest.mark.parametrize(
    ("given", "buckets"),
    [(["num_buckets=6"], "6"), (["num_buckets=4,6"], "4×6"), (["max_length=100"], "8")],
)
def test_buckets_that_are_given(given: list[str], buckets: str, inspect: Inspect, unsaid: Path) -> None:
    rows = dict(inspect(unsaid, "--config", *given).rows)
    assert rows["checkpoint"] == "huggingface, reformer"
    assert rows["LSH"] == f"rule chunk, 1 rounds of {buckets} buckets"
    assert rows["vocabulary"] == "bytes, 258 tokens"


def test_options_come_before_what_the_configuration_says(inspect: Inspect, unsaid: Path, tmp_path: Path) -> None:
    config = tmp_path / "settings.json"
    config.write_text(json.dumps({"num_buckets": [4, 6], "mem_len": 32}))
    found = json.loads(inspect(unsaid, "--config", "num_buckets=8", "--config", config, "--json").out)
    assert (found["config"]["n_buckets"], found["config"]["mem_len"]) == ([8], 32)
    assert (found["architecture"], found["tokenizer"]) == ("reformer", "bytes")


def test_checkpoint_without_buckets_is_described(inspect: Inspect, unsaid: Path) -> None:
    """Check that all but the buckets is shown as if they were given, and that the last line asks for them."""

    def text(rows: list[tuple[str, str]]) -> str:
        return ", ".join(f"{name} {value}" if name != "config" else value for name, value in rows)

    *shown, (name, needs) = inspect(unsaid).rows
    given = text(inspect(unsaid, "--config", "num_buckets=4").rows)
    assert text(shown) == given.replace("n_buckets [4]", "n_buckets ?").replace("of 4 buckets", "of ? buckets")
    assert name == "needs"
    assert needs.startswith("--config num_buckets=N (or N,M for two factors), or --config max_length=T for ")
    assert needs.endswith(
        ": config.json has no num_buckets, which transformers sets at the first document that it sees"
    )
    found = json.loads(inspect(unsaid, "--json").out)
    assert (found["config"]["n_buckets"], found["needs"]) == (None, ["num_buckets"])
    assert found["parameters"] == json.loads(inspect(unsaid, "--config", "num_buckets=4", "--json").out)["parameters"]


def test_checkpoint_without_buckets_is_not_converted(unsaid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["convert", str(unsaid), "-o", str(unsaid.parent / "bundle")]) == 1
    assert capsys.readouterr().err == (
        f"Error: {unsaid}: config.json has no num_buckets, which transformers sets at the first document that it sees. "
        "Give --config num_buckets=N (or N,M for two factors), or --config max_length=T for documents of T tokens.\n"
    )
    assert not (unsaid.parent / "bundle").exists()


def test_other_problems_are_listed_with_the_missing_buckets(inspect: Inspect, unsaid: Path) -> None:
    change_config(unsaid, is_decoder=False)
    shown = inspect(unsaid)
    assert shown.code == 1
    assert "is_decoder is not true" in shown.err and "config.json has no num_buckets" in shown.err


@pytest.mark.parametrize("given", ["num_buckets=x", "num_buckets=4,x", "max_length=0", "max_length=x"])
def test_buckets_that_are_not_numbers_are_refused(given: str, inspect: Inspect, unsaid: Path) -> None:
    shown = inspect(unsaid, "--config", given)
    assert shown.code == 1 and f"{given.partition('=')[0]} is " in shown.err and ", expected " in shown.err


def test_misspelt_names_and_files_are_refused(inspect: Inspect, unsaid: Path) -> None:
    assert "num_bucket" in inspect(unsaid, "--config", "num_bucket=8").err
    assert "No such file" in inspect(unsaid, "--config", "missing.json").err


def test_state_dict_of_reformer_pytorch(inspect: Inspect, tmp_path: Path) -> None:
    oracle = PyTorchReformer(ReformerCase("small", {"max_seq_len": 64}, ()))
    path, config = oracle.save(tmp_path / "folder"), tmp_path / "settings.json"
    config.write_text(json.dumps(oracle.config))
    rows = dict(inspect(path, "--config", config, "--config", "max_length=128").rows)
    assert rows["checkpoint"] == "reformer_pytorch, reformer"
    assert rows["LSH"] == "rule chunk, 2 rounds of 8 buckets"
    assert "--config FILE" in inspect(path).err


@pytest.mark.full
@pytest.mark.usefixtures("cached_exports")
@pytest.mark.parametrize("rule", ["chunk", "band"])
def test_folder_becomes_a_bundle(rule: str, unsaid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Convert and verify; verify again from the command line: the report notes a rule other than the trained one."""
    bundle, given = tmp_path / "bundle", ["--config", "max_length=100"]
    chosen = [] if rule == "chunk" else ["--rule", "band", "--mem-len", "32", "--segment-len", "16"]
    assert run(["convert", str(unsaid), "-o", str(bundle), "--threads", "1", "--segments", "3", *given, *chosen]) == 0
    said = capsys.readouterr().err
    assert ("replaces the model's own rule" in said) == (rule == "band")
    assert "as transformers sets it at a first document of 100 tokens" in said
    manifest = read_bundle(bundle)
    assert (manifest.config["rule"], manifest.config["n_buckets"]) == (rule, [8])
    assert (manifest.tokenizer.kind, manifest.tokenizer.first_id) == ("bytes", 2)
    assert run(["verify", str(bundle), str(unsaid), "--threads", "1", "--segments", "2", *given]) == 0
    assert "equal" in capsys.readouterr().out
