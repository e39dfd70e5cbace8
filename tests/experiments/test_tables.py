"""The experiments at a size of seconds: tables, scores, and the way the text is divided."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from experiments import transformer_xl
from experiments.__main__ import main
from experiments.running import Experiment, Variant, bits_at_length, difference, print_orderings
from experiments.transformer_xl import AVERAGED, ORDERINGS, PAPER_5, PAPER_8, SCALES, STANDARD, VARIANTS
from tests.helpers.tiny import tiny_model
from xltraining.evaluation import evaluate

TEXT = ("One sentence. Another one! And a third? " * 80).encode()


@pytest.mark.full
@pytest.mark.parametrize("table", ["table5", "table7", "table8", "table10"])
def test_table_is_printed_and_kept(table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    micro = replace(SCALES["tiny"], steps=3, tgt_len=8, seeds=1, lengths=(0.5, 1, 2), batch_size=2)
    monkeypatch.setitem(SCALES, "tiny", micro)
    (tmp_path / "text").write_bytes(TEXT)
    arguments = [table, "--out", str(tmp_path / "runs"), "--text", str(tmp_path / "text")]
    found = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert found.exit_code == 0
    # Table 5 has the last weights and their average; Table 8 the LSTM in both groups, and a QRNN that nobody trains.
    rows = len(VARIANTS[table]) * 2 if table == "table5" else sum(map(len, PAPER_8.values()))
    rows = rows if table in ("table5", "table8") else len(VARIANTS[table])
    assert len(found.stdout.splitlines()) == 1 + rows
    (file,) = (tmp_path / "runs" / "tiny").glob("*.json")
    kept = json.loads(file.read_text())
    if table == "table8":
        assert [[*kept[group]["ours"]] for group in PAPER_8] == [[STANDARD, "LSTM"], [*PAPER_8["128M"]]]
        assert "QRNN" in found.stdout


@pytest.mark.full
def test_chosen_models_with_their_orderings_and_figure_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    micro = replace(SCALES["tiny"], steps=2, tgt_len=8, lengths=(0.5, 1), batch_size=2, held_out=200, bf16=True)
    monkeypatch.setitem(SCALES, "tiny", micro)
    (tmp_path / "text").write_bytes(TEXT)
    arguments = ["table6", "--out", str(tmp_path / "runs"), "--text", str(tmp_path / "text"), "--only", "relative full"]
    unknown = CliRunner().invoke(main, [*arguments, "--only", "relative"])
    assert unknown.exit_code == 2
    assert "unknown relative; expected recurrence relative full, " in " ".join(unknown.output.split())
    found = CliRunner().invoke(main, [*arguments, "--only", "recurrence relative full"], catch_exceptions=False)
    assert found.exit_code == 0
    runs = [line.partition("] ")[2] for line in found.stderr.splitlines() if line.startswith("[")]
    assert runs == [f"{name}, seed {seed}" for seed in (0, 1) for name in ("recurrence relative full", "relative full")]
    assert len(found.stdout.splitlines()) == 3 + 2
    assert "recurrence better than none" in found.stdout.splitlines()[-1]
    picture = tmp_path / "figure.svg"
    scores = str(tmp_path / "runs/tiny/table6.json")
    CliRunner().invoke(main, ["figure4", scores, "--out", str(picture)], catch_exceptions=False)
    assert "<svg" in picture.read_text("utf-8")


def test_last_weights_of_an_averaged_run_are_those_of_the_run_without(tmp_path: Path) -> None:
    micro = replace(SCALES["tiny"], steps=3, tgt_len=8, batch_size=2)
    (tmp_path / "text").write_bytes(TEXT)
    held_out = torch.zeros(8, dtype=torch.uint8)
    experiment = Experiment(micro, tmp_path, (tmp_path / "text",), held_out, 256, "cpu", 1, transformer_xl.model_of)
    averaged = Variant("averaged", training=(("average_from", 0.3),))
    last, average, alone = (
        experiment.model(averaged, 0, averaged=False).state_dict(),
        experiment.model(averaged, 0).state_dict(),
        experiment.model(Variant("alone"), 0).state_dict(),
    )
    assert all(torch.equal(last[name], alone[name]) for name in alone)
    assert any(not torch.equal(average[name], alone[name]) for name in alone)


def test_differences_in_standard_errors(capsys: pytest.CaptureFixture[str]) -> None:
    found = difference([2.0, 2.1, 2.2], [2.3, 2.3, 2.6])  # saved: 0.3, 0.2, 0.4
    assert found.bits == pytest.approx(0.3)
    assert found.error == pytest.approx(((0.01 + 0.03) / 3) ** 0.5)
    assert found.paired == pytest.approx(0.1 / 3**0.5)
    print_orderings(ORDERINGS["table6"], {"sinusoidal half": [2.0, 2.1, 2.2], "sinusoidal full": [2.3, 2.3, 2.6]})
    _, row = capsys.readouterr().out.splitlines()
    assert row.split() == ["half", "loss", "better", "for", "absolute", "0.3000", "±", "0.1155", "2.6", "5.2"]
    print_orderings(ORDERINGS["table6"], {"sinusoidal half": [2.0], "sinusoidal full": [2.3]})
    assert not capsys.readouterr().out


def test_scores_with_an_attention_length_against_their_definition() -> None:
    text = torch.randint(20, (200,), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    model = tiny_model(mem_len=8)
    assert bits_at_length(model, text, 5, True) == evaluate(
        model.with_evaluation(mem_len=5, same_length=True), text, 8, 8
    )
    places = tiny_model(encoding="learned", mem_len=0)
    nats = []
    for start in range(0, 200 - 8, 2):  # windows of 8 tokens, which predict their last 2
        window = text[None, start : start + 9].long()
        hidden, _ = places(window[:, :-1])
        nats.append(-places.log_probs(hidden, window[:, 1:])[0, 6:].detach())
    expected = float(torch.cat(nats).mean()) / float(torch.log(torch.tensor(2.0)))
    assert bits_at_length(places, text, 8, False) == pytest.approx(expected, rel=1e-6)


def test_sentences_are_shuffled_and_kept() -> None:
    shuffled = transformer_xl.shuffled_sentences(b"One is here. Two\nis there! Three? ").decode().splitlines()
    assert sorted(shuffled) == ["One is here.", "Three?", "Two is there!"]


def test_orderings_and_figures_of_the_papers_name_models_of_their_tables() -> None:
    for table, orderings in ORDERINGS.items():
        names = [variant.name for variant in VARIANTS[table]]
        assert len(set(names)) == len(names)
        names += [AVERAGED.format(name) for name in names if table == "table5"]
        assert {name for pair in orderings for name in (pair.better, pair.worse)} <= set(names)
        assert table != "table5" or set(PAPER_5) <= set(names)
    assert {variant.name for variant in VARIANTS["table8"]} | {"QRNN"} == set().union(*PAPER_8.values())
