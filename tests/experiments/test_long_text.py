"""Long text: shares of n-grams by hand, and the command at a size of seconds against the trained model."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner

from experiments.__main__ import main
from experiments.long_text import HELD_OUT, ngram_figures, passages
from experiments.transformer_xl import SCALES
from xltraining.checkpoint import build_model, load_checkpoint
from xltraining.transformer_xl import TransformerXL


def test_shares_of_ngrams() -> None:
    shares = ngram_figures([1, 2, 3, 4, 1, 2, 3, 4], context=[2, 3, 4, 1, 9])
    assert shares == pytest.approx(
        {"repeated 4": 1 / 5, "of context 4": 1 / 5, "distinct 1": 4 / 8, "distinct 2": 4 / 7, "distinct 3": 4 / 6}
    )


def test_passages_do_not_overlap() -> None:
    text = list(range(70))
    assert passages(text, 10) == [(text[s : s + 10], text[s + 10 : s + 20]) for s in (0, 23, 46)]
    with pytest.raises(click.UsageError, match="has 70 tokens, and two passages need 72"):
        passages(text, 18)


@pytest.mark.release
@pytest.mark.usefixtures("cached_exports")
def test_long_text_is_written_read_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    micro = replace(SCALES["tiny"], steps=2, tgt_len=8, seeds=1, lengths=(1, 2), batch_size=2)
    monkeypatch.setitem(SCALES, "tiny", micro)
    (tmp_path / "text").write_bytes(b"One sentence. Another one! And a third? " * 20)
    arguments = ["long_text", "--out", str(tmp_path), "--text", str(tmp_path / "text")]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    heading, *rows = result.stdout.splitlines()
    assert heading.split()[:4] == ["text", "bits:", "recurrence", "relative"]
    assert [row[:10].strip() for row in rows] == ["memory 8", "memory 16", HELD_OUT, "longest −"]

    texts = json.loads((tmp_path / "tiny/long_text.json").read_text("utf-8"))
    assert len(texts) == 2 * 3  # 80 bytes are held out: two passages
    short, long, held_out = texts[:3]
    assert short["text"] != held_out["text"] and len(held_out["context"]) == len(held_out["text"]) == 16
    assert short["context"] == long["context"]
    model = build_model(load_checkpoint(tmp_path / "tiny/recurrence_relative_full-0/checkpoint.pt")).eval()
    assert isinstance(model, TransformerXL)
    tokens = torch.tensor([list((held_out["context"] + held_out["text"]).encode())])
    with torch.no_grad():
        hidden, _ = model.with_evaluation(mem_len=16, same_length=True)(tokens[:, :-1])
        nats = -model.log_probs(hidden, tokens[:, 1:])[0, -16:].mean()
    assert held_out["figures"]["bits: recurrence relative full"] == pytest.approx(float(nats) / math.log(2), rel=1e-5)
