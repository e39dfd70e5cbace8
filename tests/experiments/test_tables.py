"""The experiments at a size of seconds: tables, scores, and the way the text is divided."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from experiments import scales, table5, table6, table7, table8, table10
from experiments.running import bits_at_length
from tests.helpers.tiny import tiny_model
from xltraining.evaluation import evaluate

TEXT = ("One sentence. Another one! And a third? " * 80).encode()


@pytest.mark.full
@pytest.mark.parametrize("table", [table5, table7, table8, table10], ids=["5", "7", "8", "10"])
def test_table_is_printed_and_kept(table: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    micro = replace(scales.SCALES["tiny"], steps=3, tgt_len=8, seeds=1, lengths=(0.5, 1, 2), batch_size=2)
    monkeypatch.setitem(scales.SCALES, "tiny", micro)
    (tmp_path / "text").write_bytes(TEXT)
    arguments = ["--out", str(tmp_path / "runs"), "--text", str(tmp_path / "text")]
    command = table.main  # type: ignore[attr-defined]
    found = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert found.exit_code == 0
    variants = table.VARIANTS  # type: ignore[attr-defined]
    assert len(found.stdout.splitlines()) == 1 + len(variants)
    (kept,) = (tmp_path / "runs" / "tiny").glob("*.json")
    assert json.loads(kept.read_text())
    (tmp_path / "text").write_bytes(TEXT[40:] + b"more")
    again = CliRunner().invoke(command, arguments)
    assert again.exit_code == 2
    assert "trained on another text" in again.output


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
    shuffled = table7.shuffled_sentences(b"One is here. Two\nis there! Three? ").decode().splitlines()
    assert sorted(shuffled) == ["One is here.", "Three?", "Two is there!"]
    assert len({variant.name for variant in table6.VARIANTS}) == len(table6.VARIANTS)
    assert {variant.name for variant in table8.VARIANTS} == set(table8.NAMES)
