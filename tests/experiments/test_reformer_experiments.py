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
from experiments.duplication import DuplicationTask, duplication_examples
from experiments.running import Scale, Variant, training_of
from tests.training.reformers import make, tokens_of
from xltraining.reformer import Reformer, ReformerConfig
from xltraining.training_config import TrainingConfig


def test_a_model_under_its_own_attention_is_itself() -> None:
    model, tokens = make(attn_layers=("lsh", "lsh")), tokens_of(1, 30)
    same = reformer.with_attention(model, 2).double()
    with torch.no_grad():
        torch.testing.assert_close(same(tokens)[0], model(tokens)[0], atol=1e-6, rtol=0)  # its weights are float32
        full = reformer.with_attention(model, "full").double()
        assert (full(tokens)[0] - model(tokens)[0]).abs().max() > 1e-3


@pytest.mark.parametrize("scale", reformer.SCALES.values(), ids=reformer.SCALES)
def test_models_that_share_runs_are_equal(scale: Scale) -> None:
    found: dict[str, set[tuple[ReformerConfig, TrainingConfig]]] = {}
    for one in (variant for variants in (*reformer.VARIANTS.values(), reformer.depths(scale)) for variant in variants):
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


@pytest.mark.release
@pytest.mark.parametrize(("name", "only"), [("tiny", []), ("long", ["--only", "LSH-1"])])
def test_rounds_are_printed_and_kept(
    name: str, only: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale = reformer.SCALES[name]
    short = {"axial_shape": (4, 4), "max_positions": 16, "ff_chunk": 8} if name == "long" else {}
    micro = replace(scale, model={**scale.model, **short}, steps=2, tgt_len=16, seeds=1, held_out=100)
    monkeypatch.setitem(reformer.SCALES, name, micro)
    (tmp_path / "text").write_bytes(b"One sentence. Another one! " * 60)
    arguments = ["reformer_figure4", "--scale", name, "--out", str(tmp_path), "--text", str(tmp_path / "text")]
    found = CliRunner().invoke(main, [*arguments, *only], catch_exceptions=False)
    assert len(found.stdout.splitlines()) == (2 if only else 7)
    assert (tmp_path / name / "reformer_figure4.png").stat().st_size > 0
    kept = json.loads((tmp_path / name / "reformer_figure4.json").read_text())
    assert kept["LSH-1"].keys() == {"LSH-1", "LSH-2", "LSH-4", "LSH-8", "full"}


@pytest.mark.release
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


@pytest.mark.release
def test_table_2_is_printed_and_kept_and_models_are_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(reformer_table2.SCALES, "tiny", replace(reformer_table2.SCALES["tiny"], steps=2))
    arguments = ["reformer_table2", "--out", str(tmp_path), "--only", "LSH-2", "--only", "full"]
    table = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert [line.split()[0] for line in table.stdout.splitlines()] == ["trained", "full", "LSH-2"]
    assert "(98.1)" in table.stdout
    kept = json.loads((tmp_path / "tiny" / "reformer_table2.json").read_text())
    assert {len(seeds) for row in kept.values() for seeds in row.values()} == {2}
    again = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert again.stdout == table.stdout
    assert "LSH-2, seed" in table.stderr and "LSH-2, seed" not in again.stderr


def test_the_alignment_is_that_of_a_query_and_the_key_one_word_back() -> None:
    scale = reformer_table2.SCALES["tiny"]
    model = Reformer(reformer_table2.config_of(Variant("full"), scale, 0)).eval()
    tokens, _ = duplication_examples(2, 15, 0, 0)  # two words of 15 symbols, each after a 0
    assert reformer_table2.alignment(model, tokens) < 0.9
    with torch.no_grad():  # positions that matter more than symbols, equal for places 16 to 30 and 1 to 15
        model.positions.weights[0][16:31] = model.positions.weights[0][1:16] = 100 * torch.randn(15, 32)
    assert reformer_table2.alignment(model, tokens) > 0.99


@pytest.mark.parametrize("scale", reformer_table2.SCALES.values(), ids=reformer_table2.SCALES)
def test_models_of_table_2_fit_their_task(scale: Scale) -> None:
    for one in reformer_table2.models():
        DuplicationTask.of(reformer_table2.config_of(one, scale, 0), training_of(one, scale, 0, "cpu"))


def test_each_draw_has_other_rotations_and_the_same_weights() -> None:
    model, tokens = make(attn_layers=("lsh", "lsh")), tokens_of(1, 30)
    first, second = (reformer.with_attention(model, 1, seed) for seed in (1, 2))
    torch.testing.assert_close(first.head.weight, second.head.weight, atol=0, rtol=0)
    with torch.no_grad():
        assert (first(tokens)[0] - second(tokens)[0]).abs().max() > 1e-3


def test_separate_attention_has_the_shared_weights_twice() -> None:
    model = make(attn_layers=("local", "lsh"))
    transformer = reformer.with_attention(model, "separate")
    assert transformer.config.attn_layers == ("local", "separate")
    shared = model.state_dict()["layers.1.attention.query_key.weight"]
    for part in ("query", "key"):
        weight = transformer.state_dict()[f"layers.1.attention.{part}.weight"]
        torch.testing.assert_close(weight, shared.float(), atol=0, rtol=0)
