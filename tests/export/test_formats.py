"""Each sample, encoding of positions and kind of vocabulary, in each format, compared over carried memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from tests.helpers.paths import ROOT
from tests.helpers.tiny import BAND, tiny_model, tiny_reformer
from xlexport.checkpoints import load
from xlexport.convert import ConversionOptions, convert
from xlruntime.bundle import Format
from xlruntime.bundle_files import read_bundle
from xltraining.checkpoint import save_checkpoint
from xltraining.reformer import ReformerConfig
from xltraining.transformer_xl import TransformerXLConfig

SAMPLES = {path.parent.name: path for path in sorted(ROOT.glob("samples/*/checkpoint.pt"))}
TRANSFORMER_XL: list[dict[str, Any]] = [
    {"encoding": "relative"},
    {"encoding": "shaw"},
    {"encoding": "sinusoidal", "mem_len": 0},
    {"encoding": "learned", "mem_len": 0},
    {"cutoffs": (10, 25), "div_val": 2, "tie_projs": (False, True, True), "d_embed": 12},
]
REFORMER: list[dict[str, Any]] = [
    {"position": "axial"},
    {"position": "axial_sum", "axial_dims": (BAND.d_model, BAND.d_model)},
    {"position": "absolute"},
    {"position": "sinusoid", "max_positions": 0},
    {"position": "rotary", "max_positions": 0},
]
SEGMENTS = 7


def checkpoint(model: str | dict[str, Any], folder: Path) -> Path:
    """Return a sample, or write a tiny model with these settings."""
    if isinstance(model, str):
        return SAMPLES[model]
    made: Any
    if model in REFORMER:
        made = tiny_reformer(replace(BAND, n_token=256, attn_layers=("local", "lsh"), **model))
    else:
        made = tiny_model(n_token=256, **model)
    save_checkpoint(folder / "checkpoint.pt", made.config, made.state_dict())
    return folder / "checkpoint.pt"


@pytest.mark.full
@pytest.mark.usefixtures("cached_exports")
@pytest.mark.parametrize("to", get_args(Format))
@pytest.mark.parametrize("model", [*SAMPLES, *TRANSFORMER_XL, *REFORMER], ids=str)
def test_equal_over_carried_memory(model: str | dict[str, Any], to: Format, tmp_path: Path) -> None:
    segment_len = None if isinstance(model, str) else 5  # shorter than the parts that absolute places allow
    options = ConversionOptions.of(to=to, segment_len=segment_len, verify_segments=SEGMENTS, threads=1)
    report = convert(load(checkpoint(model, tmp_path)), tmp_path / "bundle", options)
    assert report.passed and report.segments >= SEGMENTS
    assert report.tokens > report.mem_len + report.segment_len  # every ring is written once round
    assert {graph.format for graph in read_bundle(tmp_path / "bundle").graphs.values()} == {to}


def test_every_encoding_is_in_the_table() -> None:
    for name, config, models in (
        ("encoding", TransformerXLConfig, TRANSFORMER_XL),
        ("position", ReformerConfig, REFORMER),
    ):
        assert {model[name] for model in models if name in model} == set(get_args(get_type_hints(config)[name]))
