"""Axes of size 1 and weights of zero: published files have both, and random weights of handsome sizes hide faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.families.recurrent.test_recurrent import Decay
from tests.helpers.tiers import thinned
from tests.helpers.weights import random_model
from xlexport import export_module
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.families.recurrent.mamba import Mamba1, Mamba1Sizes
from xlexport.families.recurrent.mamba2 import Mamba2, Mamba2Sizes
from xlexport.families.recurrent.rwkv4 import RWKV4, RWKV4Sizes
from xlexport.families.recurrent.rwkv7 import RWKV7, RWKV7Sizes
from xlexport.formats import load
from xltraining.architectures import model_class
from xltraining.checkpoint import save_checkpoint
from xltraining.reformer import ReformerConfig
from xltraining.transformer_xl import TransformerXLConfig

LENGTHS: dict[str, Any] = {
    **{"n_token": 5, "d_model": 2, "n_head": 1, "d_head": 1, "d_inner": 1, "tgt_len": 8, "mem_len": 8},
    **{"dropout": 0.0, "dropatt": 0.0},
}
ONES = {"vocab_size": 2, "hidden_size": 1, "num_hidden_layers": 1, "state_size": 1, "conv_kernel": 2, "expand": 1}
MODELS: dict[str, Callable[[], Any]] = {
    "mamba": lambda: Mamba1(Mamba1Sizes.from_huggingface({**ONES, "expand": 2, "time_step_rank": 1})),
    "mamba of one number": lambda: Mamba1(Mamba1Sizes.from_huggingface({**ONES, "time_step_rank": 1})),
    "falcon_mamba": lambda: Mamba1(Mamba1Sizes.from_huggingface({**ONES, "expand": 2, "model_type": "falcon_mamba"})),
    "mamba2": lambda: Mamba2(Mamba2Sizes.from_huggingface({**ONES, "num_heads": 1, "head_dim": 1, "n_groups": 1})),
    "rwkv4": lambda: RWKV4(RWKV4Sizes.from_huggingface({**ONES, "intermediate_size": 1})),
    "rwkv7": lambda: RWKV7(RWKV7Sizes(2, 1, 1, 1, 1, 1, 1, 1, 1)),
    "rwkv7, one head": lambda: RWKV7(RWKV7Sizes(5, 2, 8, 1, 4, 4, 4, 4, 4)),
}


def export(model: Any, folder: Path) -> None:
    report = export_module(model, folder / "bundle", threads=1, segments=5)
    assert report.passed


@pytest.mark.release
@pytest.mark.parametrize("name", MODELS)
def test_axes_of_size_1(name: str, tmp_path: Path) -> None:
    model = MODELS[name]().eval()
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.3
    export(model, tmp_path)


@pytest.mark.release
def test_feed_forward_weights_of_almost_zero(tmp_path: Path) -> None:
    sizes = RWKV4Sizes.from_huggingface({"vocab_size": 5, "hidden_size": 4, "num_hidden_layers": 2})
    export(RWKV4(sizes).eval(), tmp_path)  # all but the embedding's and the output's weights are zero


XL = TransformerXLConfig(**LENGTHS, n_layer=1)
REFORMER = ReformerConfig(
    **LENGTHS, attn_layers=("local", "lsh"), n_hashes=1, n_buckets=(2,), chunk_length=4, chunks_before=1,
    local_chunk_length=4, local_chunks_before=1, position="absolute", max_positions=64,
)  # fmt: skip
CONFIGS = {"transformer_xl": XL, **{rule: replace(REFORMER, rule=rule) for rule in ("band", "paper", "chunk")}}


@pytest.mark.release
@pytest.mark.parametrize("name", thinned(CONFIGS, ["transformer_xl"], pytest.mark.release))
def test_one_head_of_one_number(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    model = random_model(lambda: model_class(config)(config))
    save_checkpoint(tmp_path / "model", config, model.state_dict())
    assert convert(
        load(tmp_path / "model"), tmp_path / "bundle", ConversionOptions(tokenizer="none", threads=1)
    ).report.passed


@pytest.mark.release
def test_state_behind_a_head_of_zeros(tmp_path: Path) -> None:
    model = Decay()
    model.head.weight.data.zero_()
    export(model.eval(), tmp_path)
