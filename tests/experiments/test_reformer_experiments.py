"""The experiments of the Reformer paper at a size of seconds."""

from __future__ import annotations

import itertools
import json
import struct
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from experiments import catalogues, reformer, reformer_table2, reformer_table3, reformer_table4
from experiments.__main__ import main
from experiments.running import Scale, training_of
from tests.training.reformers import make, tokens_of
from xlexport.prepare.units import trained
from xlexport.prepare.writing import prepare_data
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
def test_speed_is_printed_and_drawn(tmp_path: Path) -> None:
    sizes = ["--tokens", "64", "--shortest", "32", "--repeats", "1"]
    arguments = ["reformer_figure5_speed", "--out", str(tmp_path), *sizes]
    found = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert len(found.stdout.splitlines()) == 1 + len(reformer.KINDS)
    assert (tmp_path / "reformer_figure5_speed.png").stat().st_size > 0


def catalogue(messages: dict[str, str]) -> bytes:
    """Return the .mo file of messages, whose header says nothing but the encoding."""
    texts = sorted({"": "Content-Type: text/plain; charset=UTF-8\n", **messages}.items())
    sides = [side.encode() for pair in zip(*texts, strict=True) for side in pair]
    at = 28 + 16 * len(texts)
    places = list(itertools.accumulate((len(side) + 1 for side in sides), initial=at))
    entries = (number for side, place in zip(sides, places, strict=False) for number in (len(side), place))
    header = (0x950412DE, 0, len(texts), 28, 28 + 8 * len(texts), 0, at)
    return struct.pack(f"<{7 + 4 * len(texts)}I", *header, *entries) + b"".join(side + b"\0" for side in sides)


@pytest.mark.full
def test_pairs_of_catalogues_are_translated_for_table_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sacrebleu", reason="the extra bleu is not installed")
    messages = {f"Open  file {n}\n": f"Datei {n} öffnen" for n in range(40)} | {
        "menu\x04Quit": "Beenden",
        "Quit": "Ende",
    }
    with zipfile.ZipFile(tmp_path / "program.whl", "w") as wheel:
        wheel.writestr(
            "a/de/LC_MESSAGES/a.mo", catalogue({**messages, "label_name": "Name", "Name": "Name", "…": "…."})
        )
        wheel.writestr("a/fr/LC_MESSAGES/a.mo", catalogue({"Open": "Ouvrir"}))
    arguments = [str(tmp_path / "program.whl"), "--out", str(tmp_path / "pairs"), "--held-out", "2"]
    CliRunner().invoke(catalogues.main, arguments, catch_exceptions=False)
    files = {name: tmp_path / "pairs" / f"{name}.tsv" for name in ("train", "valid", "test")}
    lines = [line for file in files.values() for line in file.read_text("utf-8").splitlines()]
    assert len(lines) == 41 and "Open file 7\tDatei 7 öffnen" in lines and "Quit\tEnde" in lines
    prepare_data(
        {name: [file] for name, file in files.items()},
        tmp_path / "data",
        lambda folder: trained([files["train"]], "bpe", 300, folder, pairs=True),
        document="pair",
    )
    small = {**reformer_table4.SCALES["tiny"].model, "source_len": 24, "d_model": 8, "d_head": 4, "d_inner": 8}
    micro = replace(reformer_table4.SCALES["tiny"], model=small, tgt_len=24, steps=2, batch_size=2)
    monkeypatch.setitem(reformer_table4.SCALES, "tiny", micro)
    options = ["--out", str(tmp_path), "--data", str(tmp_path / "data"), "--only", "ordinary", "--seeds", "1"]
    found = CliRunner().invoke(main, ["reformer_table4", *options], catch_exceptions=False)
    assert found.stdout.splitlines()[1].startswith("ordinary  27.3") and "|tok:13a|" in found.stdout
    (kept,) = json.loads((tmp_path / "tiny" / "reformer_table4.json").read_text("utf-8"))["ordinary"]
    assert len(kept["translations"]) == 2


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
