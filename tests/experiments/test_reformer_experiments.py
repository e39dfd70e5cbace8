"""The experiments of the Reformer paper at a size of seconds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from experiments import reformer, reformer_table1, reformer_table2, reformer_table3
from experiments.__main__ import main
from experiments.running import Scale, training_of
from tests.training.reformers import make, tokens_of
from xltraining.reformer import ReformerConfig
from xltraining.training_config import TrainingConfig


def test_a_model_under_its_own_attention_is_itself() -> None:
    model, tokens = make(attn_layers=("lsh", "lsh")), tokens_of(1, 30)
    same = reformer.with_attention(model, 2).double()
    with torch.no_grad():
        torch.testing.assert_close(same(tokens)[0], model(tokens)[0], atol=1e-6, rtol=0)  # its weights are float32
        full = reformer.with_attention(model, None).double()
        assert (full(tokens)[0] - model(tokens)[0]).abs().max() > 1e-3


@pytest.mark.parametrize("scale", reformer.SCALES.values(), ids=reformer.SCALES)
def test_models_that_share_runs_are_equal(scale: Scale) -> None:
    found: dict[str, set[tuple[ReformerConfig, TrainingConfig]]] = {}
    for one in (variant for variants in reformer.VARIANTS.values() for variant in variants):
        settings = reformer.config_of(one, scale, 256), training_of(one, scale, 0, "cpu")
        found.setdefault(one.run or one.name, set()).add(settings)
    assert {name: len(configs) for name, configs in found.items()} == dict.fromkeys(found, 1)
    assert len(found) == 4 + 5 + 2
    assert len(set().union(*found.values())) == len(found)


@pytest.mark.full
def test_curves_are_means_of_the_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    micro = replace(reformer.SCALES["tiny"], steps=2, tgt_len=16, seeds=2, batch_size=2)
    monkeypatch.setitem(reformer.SCALES, "tiny", micro)
    (tmp_path / "text").write_bytes(b"One sentence. Another one! " * 60)
    arguments = ["reformer_figure5_layers", "--out", str(tmp_path), "--text", str(tmp_path / "text")]
    found = CliRunner().invoke(main, arguments, catch_exceptions=False)
    lines = found.stdout.splitlines()
    assert len(lines) == 1 + 3 + 1 + 2
    assert lines[-1].startswith("4 layers better than 2")
    kept = json.loads((tmp_path / "tiny" / "reformer_figure5_layers.json").read_text())
    logs = [(tmp_path / "tiny" / f"4_layers-{seed}" / "log.jsonl").read_text().splitlines() for seed in range(2)]
    first, second = (json.loads(log[-1])["bits_per_byte"] for log in logs)
    assert kept["curves"]["4 layers"][-1] == pytest.approx([2, (first + second) / 2, abs(first - second) / 2])


@pytest.mark.full
def test_rounds_are_printed_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    micro = replace(reformer.SCALES["tiny"], steps=2, tgt_len=16, seeds=1, batch_size=2)
    monkeypatch.setitem(reformer.SCALES, "tiny", micro)
    (tmp_path / "text").write_bytes(b"One sentence. Another one! " * 60)
    arguments = ["reformer_figure4", "--out", str(tmp_path), "--text", str(tmp_path / "text")]
    found = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert len(found.stdout.splitlines()) == 7
    assert (tmp_path / "tiny" / "reformer_figure4.png").stat().st_size > 0
    kept = json.loads((tmp_path / "tiny" / "reformer_figure4.json").read_text())
    assert kept["LSH-1"].keys() == {"LSH-1", "LSH-2", "LSH-4", "LSH-8", "full"}


@pytest.mark.full
def test_table_1_is_printed_drawn_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = dict(list(reformer_table1.KINDS.items())[2:3])
    monkeypatch.setattr(reformer_table1, "KINDS", kinds)
    arguments = ["reformer_table1", "--out", str(tmp_path)]
    table = CliRunner().invoke(main, arguments, catch_exceptions=False).stdout
    assert [line.split("  ")[0] for line in table.splitlines()] == ["ms / MB", *kinds]
    assert (tmp_path / "tiny" / "reformer_table1.png").stat().st_size > 0
    kept = json.loads((tmp_path / "tiny" / "reformer_table1.json").read_text())
    assert all(kept[length][name].keys() == {"ms", "MB"} for length in ("64", "128") for name in kinds)
    assert CliRunner().invoke(main, arguments, catch_exceptions=False).stdout == table  # nothing is measured again


def test_kinds_of_table_1_and_their_growth() -> None:
    powers = {4: 100.0, **{length: 3.0 * length**2 for length in (8, 16, 32, 64)}}
    assert reformer_table1.growth(powers) == pytest.approx(2)
    assert all(reformer_table1.seconds(name, 64) > 0 for name in reformer_table1.KINDS)


def test_the_rows_of_table_3_are_valid_models() -> None:
    for scale in reformer_table3.SCALES.values():
        for model in scale.models:
            assert reformer_table3._config(model, scale.d_model, 2, scale.lengths[0]).n_layer == 2


@pytest.mark.full
def test_a_run_of_table_2_is_kept_and_printed_again(tmp_path: Path) -> None:
    arguments = ["reformer_table2", "--out", str(tmp_path)]
    sizes = ["--word-length", "31", "--steps", "2", "--only", "lsh-2"]
    found = CliRunner().invoke(main, [*arguments, *sizes], catch_exceptions=False)
    assert found.stdout.split()[:6] == ["trained", *reformer_table2.COLUMNS]
    assert found.stdout.splitlines()[1].startswith("lsh-2")
    assert CliRunner().invoke(main, [*arguments, "--table"], catch_exceptions=False).stdout == found.stdout
