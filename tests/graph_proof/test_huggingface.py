"""Graphs that transformers 5 exports: `.ci/run` puts it in front of the path; with transformers 4 nothing runs."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import xlexport
from xlexport import GraphOptions
from xlexport.graph_proof.report import Check, GraphReport

pytestmark = pytest.mark.full
transformers = pytest.importorskip("transformers")
exporter_onnx = pytest.importorskip("transformers.exporters.exporter_onnx", reason="transformers is older than 5")


def verified(
    config: object, folder: Path, cache: str, first: Path | None = None
) -> tuple[GraphReport, dict[str, Check]]:
    """Export a model that has read three tokens, and verify its graph."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    read = model(torch.zeros(2, 3, dtype=torch.long), use_cache=True)
    step = {"input_ids": torch.zeros(2, 1, dtype=torch.long), cache: read[cache], "use_cache": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's and transformers' own
        exported = exporter_onnx.OnnxExporter().export(model, step, config=exporter_onnx.OnnxConfig(dynamic=True))
    exported.save_pretrained(folder)
    report = xlexport.verify_graph(folder / "model.onnx", options=GraphOptions(steps=500, first=first))
    return report, {check.name: check for check in report.checks}


def test_state_space_model(tmp_path: Path) -> None:
    config = transformers.MambaConfig(vocab_size=16, hidden_size=8, state_size=4, num_hidden_layers=1, time_step_rank=2)
    first: dict[str, Any] = {"cache_params.layers.0.conv_states.0": np.zeros((1, 16, 4), np.float32)}  # width 4
    np.savez(tmp_path / "first.npz", **first)
    report, checks = verified(config, tmp_path / "graph", "cache_params", tmp_path / "first.npz")
    names = [f"layers.0.{kind}_states.0" for kind in ("conv", "recurrent")]
    assert [(pair.input, pair.output) for pair in report.pairs] == [
        (f"cache_params.{name}", f"cache.{name}") for name in names
    ]
    assert report.passed and checks["state read"].passed and checks["rows"].passed, report.rows()


def test_cache_whose_positions_run_out(tmp_path: Path) -> None:
    config = transformers.GPT2Config(vocab_size=16, n_positions=64, n_embd=8, n_layer=1, n_head=2)
    report, checks = verified(config, tmp_path / "graph", "past_key_values")
    names = [f"layers.0.{kind}" for kind in ("keys", "values")]
    assert [(pair.input, pair.output) for pair in report.pairs] == [
        (f"past_key_values.{name}", f"cache.{name}") for name in names
    ]
    assert checks["horizon"].passed is False and "64" in f"{checks['horizon'].place} {checks['horizon'].detail}"
