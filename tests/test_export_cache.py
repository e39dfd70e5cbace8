"""The cache of exports: it returns the exporter's files, distinguishes steps, and ignores incomplete entries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.export_cache import GRAPHS, Cache, step_digest
from tests.helpers.tiny import tiny_model
from xlexport.families.transformer_xl.step import TransformerXLStep


class Exporter:
    """An exporter that writes one file, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, step: Any, folder: Path) -> dict[str, Any]:
        self.calls += 1
        (folder / "graph").write_text(f"graph {self.calls}")
        return {"score": self.calls}


def fails(step: Any, folder: Path) -> dict[str, Any]:
    """Export a part and fail."""
    (folder / "graph").write_text("half of")
    raise OSError("the disk is full")


def outputs(tmp_path: Path) -> list[Path]:
    """Return two folders to export into."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    return folders


def step(**changes: Any) -> TransformerXLStep:
    """Return the step of a tiny model."""
    return TransformerXLStep(tiny_model(**changes))


def test_second_export_is_a_copy(tmp_path: Path) -> None:
    cache, exporter = Cache(tmp_path / "cache"), Exporter()
    made = [cache.export("onnx", exporter, step(), folder) for folder in outputs(tmp_path)]
    assert made == [{"score": 1}] * 2 and exporter.calls == 1
    assert (cache.hits, cache.misses) == (1, 1)
    assert [file.read_text() for file in sorted(tmp_path.glob("*/graph"))] == ["graph 1"] * 2
    assert not list(tmp_path.glob(f"one/{GRAPHS}"))
    cache.export("programs", exporter, step(), tmp_path / "one")
    assert exporter.calls == 2


@pytest.mark.parametrize("changes", [{"seed": 1}, {"clamp_len": 3}, {"pre_lnorm": True}, {"n_layer": 1}], ids=str)
def test_other_step_is_another_entry(changes: dict[str, Any]) -> None:
    assert step_digest(step()) == step_digest(step())
    assert step_digest(step(**changes)) != step_digest(step())


def test_one_weight_is_enough_for_another_entry() -> None:
    model = tiny_model()
    before = step_digest(TransformerXLStep(model))
    with torch.no_grad():
        model.get_parameter("layers.1.feed_forward.outer.bias")[3] += 1e-6
    assert step_digest(TransformerXLStep(model)) != before


def test_incomplete_entry_is_made_again(tmp_path: Path) -> None:
    cache, exporter = Cache(tmp_path / "cache"), Exporter()
    one, two = outputs(tmp_path)
    with pytest.raises(OSError, match="disk"):
        cache.export("onnx", fails, step(), one)
    assert not [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"]
    cache.export("onnx", exporter, step(), one)
    (entry,) = (tmp_path / "cache").glob(f"*/{GRAPHS}")
    entry.unlink()
    assert cache.export("onnx", exporter, step(), two) == {"score": 2}
    assert (two / "graph").read_text() == "graph 2"
