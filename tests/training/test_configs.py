"""Configurations of all models: what they refuse in one short line, and sizes that follow."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from xltraining.config_fields import PlainFields
from xltraining.encoder_decoder import EncoderDecoderConfig
from xltraining.errors import ConfigError
from xltraining.recurrent import LSTMConfig, MambaConfig
from xltraining.reformer import Reformer, ReformerConfig
from xltraining.training_config import TrainingConfig
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

XL, REFORMER, PAIRS = TransformerXLConfig, ReformerConfig, EncoderDecoderConfig
ROTATIONS: dict[str, Any] = {"n_head": 8, "d_head": 128, "n_hashes": 8, "attn_layers": ("lsh",) * 8}


@pytest.mark.parametrize(
    "config",
    [
        XL(n_layer=3, mem_len=7, same_length=True, first_memory="zeros", cutoffs=(9, 20)),
        REFORMER(n_buckets=(4, 6), attn_layers=("lsh", "full"), redraw_hashes=True),
        PAIRS(source_len=7),
        TrainingConfig(betas=(0.5, 0.6), average_from=0.5),
    ],
)
def test_to_dict_and_back(config: PlainFields) -> None:
    plain = config.to_dict()
    assert not any(isinstance(value, tuple) for value in plain.values())
    assert type(config).from_dict(plain) == config


@pytest.mark.parametrize(
    ("kind", "values", "problems"),
    [
        (LSTMConfig, {"n_token": 1 << 20, "d_model": 1 << 30}, ["n_token × d_model", "4 × d_model²"]),
        (
            MambaConfig,
            {"n_layer": 1001, "d_conv": 1, "dt_rank": 0},
            ["n_layer must be", "d_conv must be", "dt_rank must"],
        ),
        (MambaConfig, {"d_model": 1 << 28}, ["columns × expand × d_model must be at most 281,474,976,710,656, found"]),
        (XL, {"n_layer": 0, "d_model": 7, "mem_len": -1, "dropout": 1.0}, ["n_layer", "d_model", "mem_len", "dropout"]),
        (XL, {"n_head": 2.0, "n_token": True}, ["n_head must be an integer, found 2.0", "n_token must be an integer"]),
        (XL, {"clamp_len": "none", "same_length": 1}, ["clamp_len must be an integer", "same_length must be true or"]),
        (XL, {"first_memory": "random"}, ["first_memory must be one of empty, zeros, found 'random'"]),
        (XL, {"n_layer": torch.zeros(5, 5)}, ["n_layer must be an integer, found tensor("]),
        (XL, {"n_layer": list(range(10**5)), "n_head": "a\nb"}, ["n_layer must be an integer", "n_head must be an"]),
        (XL, {"n_layers": 2, "d_modle": 8}, ["unknown names in the Transformer-XL configuration: d_modle, n_layers"]),
        (XL, {"same_length": True, "mem_len": 0}, ["same_length needs mem_len of at least 1"]),
        (XL, {"n_layer": 10**9}, ["n_layer must be at most 1,000, found 1,000,000,000"]),
        (XL, {"n_token": 10**6, "cutoffs": (*range(1, 50_001),)}, ["cutoffs must be at most 100, found 50,000"]),
        (XL, {"tgt_len": 10**30, "d_embed": 1 << 62}, ["tgt_len must be at most 2,147,483,648", "d_embed must be at"]),
        (XL, {"n_token": 1 << 30, "d_model": 1 << 20, "n_head": 1 << 29}, ["n_token × d_embed", "3 × n_head × d_head"]),
        (XL, {"cutoffs": (0, 5)}, ["cutoffs must rise between 0 and n_token 256, found [0, 5]"]),
        (XL, {"cutoffs": (5, 5)}, ["cutoffs must rise"]),
        (XL, {"cutoffs": (5, 256)}, ["cutoffs must rise"]),
        (XL, {"cutoffs": (5.0,)}, ["cutoffs must be a tuple of integers"]),
        (XL, {"cutoffs": (5,), "tie_projs": (True,)}, ["a value for each of 2 clusters, found 1"]),
        (XL, {"tie_projs": (1,)}, ["tie_projs must be a tuple of true and false"]),
        (XL, {"div_val": 0}, ["div_val must be at least 1"]),
        (XL, {"d_model": 12, "cutoffs": (5, 9), "div_val": 4}, ["found widths [12, 3, 0]"]),
        (XL, {"d_embed": 0}, ["found widths [0]"]),
        (XL, {"d_embed": True}, ["d_embed must be an integer"]),
        (XL, {"window_extra": 2}, ["window_extra must be at most 1"]),
        (XL, {"encoding": "rotary"}, ["encoding must be one of relative, shaw, sinusoidal, learned, found 'rotary'"]),
        (XL, {"encoding": "learned"}, ["mem_len must be 0 for encoding learned, found 128"]),
        (XL, {"encoding": "shaw", "untie_r": False}, ["untie_r must be true for encoding shaw"]),
        (XL, {"max_klen": 9}, ["max_klen is for encoding shaw or learned, found relative"]),
        (XL, {"encoding": "learned", "mem_len": 0, "max_klen": 9}, ["max_klen must be at least tgt_len, found 9"]),
        (XL, {"encoding": "learned", "mem_len": 0, "first_memory": "zeros"}, ["first_memory must be 'empty'"]),
        *(
            (XL, {"dropout": value}, ["dropout must be a finite number, found"])
            for value in (10**400, True, "0.1", None)
        ),
        (XL, {"layer_norm_epsilon": float("nan")}, ["layer_norm_epsilon must be a finite number, found nan"]),
        (REFORMER, {"n_token": 0, "chunks_before": 2, "mem_len": 0}, ["n_token", "chunks_before must be 1", "mem_len"]),
        (REFORMER, {"n_buckets": 64}, ["n_buckets must be a tuple of integers, found 64"]),
        (REFORMER, {"n_buckets": [4, True]}, ["n_buckets must be a tuple of integers"]),
        (REFORMER, {"n_buckets": [4, 5]}, ["n_buckets must be even numbers"]),
        (REFORMER, {"attn_layers": "lsh"}, ["attn_layers must be a tuple of texts, found 'lsh'"]),
        (REFORMER, {"attn_layers": ["global"]}, ["must be of local, lsh, full, separate, found 'global'"]),
        (REFORMER, {"self_mask": float("nan")}, ["self_mask must be a finite number, found nan"]),
        (REFORMER, {"rule": "window"}, ["rule must be one of band, paper, chunk, found 'window'"]),
        (REFORMER, {"axial_dims": [64, 64]}, ["axial_dims must add up to d_model 256, found 128"]),
        (REFORMER, {"axial_shape": [64]}, ["must have the same axes"]),
        (REFORMER, {"max_positions": 100}, ["max_positions must be the size of axial_shape, 8,192, found 100"]),
        (REFORMER, {"position": "axial_sum"}, ["axial_dims must all be d_model 256"]),
        (REFORMER, {"position": "absolute", "max_positions": 0}, ["max_positions must be at least 1"]),
        (REFORMER, {"position": "rotary", "d_head": 5}, ["d_head must be even if positions are rotary"]),
        (
            REFORMER,
            {"position": "sinusoid", "d_model": 255},
            ["d_model must be even if positions are sines and cosines"],
        ),
        (REFORMER, {"rule": "chunk", "chunk_length": 48}, ["chunk lengths must divide max_positions 8,192, found 48"]),
        (REFORMER, {"n_hashes": 10**30}, ["n_hashes must be at most 2,147,483,648"]),
        (REFORMER, {"n_buckets": [2048, 2048, 1024]}, ["the product of n_buckets must be at most 2,147,483,648"]),
        (REFORMER, {**ROTATIONS, "n_buckets": (2050,)}, ["must be at most 67,108,864, found 67,174,400"]),
        (REFORMER, {"n_rounds": 2}, ["unknown names in the Reformer configuration: n_rounds"]),
        (
            PAIRS,
            {"d_model": 7, "dropout": 1.0, "tgt_len": 0},
            ["tgt_len must be at least 1", "dropout", "d_model must be"],
        ),
        (
            PAIRS,
            {"n_head": "2", "dropatt": float("nan")},
            ["n_head must be an integer, found '2'", "dropatt must be a"],
        ),
        (
            TrainingConfig,
            {"steps": -1, "batch_size": 0, "clip": 0.0, "betas": (0.9, 1.0), "weight_decay": -1, "device": "tpu"},
            ["steps", "batch_size", "clip", "betas", "weight_decay", "device must be cpu, cuda or cuda:N, found 'tpu'"],
        ),
        (TrainingConfig, {"threads": 0}, ["threads must be at least 1"]),
        (TrainingConfig, {"label_smoothing": 1.0}, ["label_smoothing must be below 1, found 1.0"]),
        (TrainingConfig, {"average_from": 1.0}, ["average_from must be below 1, found 1.0"]),
        (TrainingConfig, {"average_from": 0.5, "sharded": True}, ["average_from needs whole weights"]),
        (TrainingConfig, {"loss": "quarter"}, ["loss must be one of full, half, found 'quarter'"]),
        (TrainingConfig, {"batch_size": 4, "micro_batches": 3}, ["micro_batches must divide batch_size 4, found 3"]),
    ],
    ids=str,
)
def test_all_problems_are_named_in_a_short_line(
    kind: type[PlainFields], values: dict[str, Any], problems: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        kind.from_dict(values)
    message = str(caught.value)
    assert all(problem in message for problem in problems), message
    assert "\n" not in message and len(message) < 900


def test_the_largest_sizes_are_within_those_of_torch_and_take_no_memory() -> None:
    """An untrusted file gives sizes before its tensors are compared with them."""
    with torch.device("meta"):
        TransformerXL(XL(n_token=1 << 31, d_model=1 << 17, n_head=1, d_head=1, n_layer=1))
        model = Reformer(REFORMER(attn_layers=("lsh",)))
    name = "layers.0.attention.rotations"
    assert model.word_emb.weight.is_meta and model.get_buffer(name).is_meta
    assert model.get_buffer(name).shape == Reformer(model.config).get_buffer(name).shape
    assert REFORMER(**ROTATIONS, n_buckets=(2048,)).rotation_columns == 1024
    assert REFORMER(attn_layers=("local",), n_buckets=(1 << 30,)).n_layer == 1
