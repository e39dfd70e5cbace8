from typing import Any

import pytest
import torch

from xltraining.errors import ConfigError
from xltraining.reformer import Reformer, ReformerConfig


def test_to_dict_and_back() -> None:
    config = ReformerConfig(n_buckets=(4, 6), attn_layers=("lsh", "full"), rule="band", redraw_hashes=True)
    plain = config.to_dict()
    assert plain["n_buckets"] == [4, 6] and plain["attn_layers"] == ["lsh", "full"]
    assert ReformerConfig.from_dict(plain) == config


def test_sizes_that_follow() -> None:
    config = ReformerConfig(n_buckets=(4, 6), attn_layers=("lsh", "local", "full"), streams="mean")
    assert (config.n_layer, config.buckets, config.rotation_columns, config.d_output) == (3, 24, 5, 256)
    assert config.local_rows == 128 and config.chunk_multiple == 64
    assert ReformerConfig(chunk_length=6, local_chunk_length=4).chunk_multiple == 12
    assert ReformerConfig(chunk_length=6, local_chunk_length=4, attn_layers=("local",)).chunk_multiple == 4


def test_invalid_values_are_all_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        ReformerConfig(n_token=0, chunks_before=2, dropout=1.0, layer_norm_epsilon=0.0, n_buckets=(3,), mem_len=0)
    message = str(caught.value)
    names = ("n_token", "chunks_before", "dropout", "layer_norm_epsilon", "n_buckets", "mem_len")
    assert all(name in message for name in names) and "\n" not in message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_head": 2.0}, "n_head must be an integer, found 2.0"),
        ({"n_buckets": 64}, "n_buckets must be a tuple of integers, found 64"),
        ({"n_buckets": [4, True]}, "n_buckets must be a tuple of integers"),
        ({"attn_layers": "lsh"}, "attn_layers must be a tuple of texts, found 'lsh'"),
        ({"attn_layers": ["lsh", "global"]}, "attn_layers must be of local, lsh, full, separate, found 'global'"),
        ({"redraw_hashes": 1}, "redraw_hashes must be true or false, found 1"),
        ({"self_mask": float("nan")}, "self_mask must be a finite number, found nan"),
        ({"rule": "window"}, "rule must be one of band, paper, chunk, found 'window'"),
        ({"n_buckets": [4, 5]}, "n_buckets must be even numbers"),
        ({"axial_dims": [64, 64]}, "axial_dims must add up to d_model 256, found 128"),
        ({"axial_shape": [64]}, "must have the same axes"),
        ({"max_positions": 100}, "max_positions must be the size of axial_shape, 8,192, found 100"),
        ({"position": "axial_sum"}, "axial_dims must all be d_model 256"),
        ({"position": "absolute", "max_positions": 0}, "max_positions must be at least 1"),
        ({"position": "rotary", "d_head": 5}, "d_head must be even if positions are rotary"),
        ({"position": "sinusoid", "d_model": 255}, "d_model must be even if positions are sines and cosines"),
        ({"rule": "chunk", "chunk_length": 48}, "chunk lengths must divide max_positions 8,192, found 48 .* and 64"),
        ({"n_hashes": 10**30}, "n_hashes must be at most 2,147,483,648"),
        ({"n_buckets": [2048, 2048, 1024]}, "the product of n_buckets must be at most 2,147,483,648, found 4,294,967"),
        ({"n_rounds": 2}, "unknown names in the Reformer configuration: n_rounds"),
    ],
    ids=str,
)
def test_an_invalid_value_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        ReformerConfig.from_dict(values)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


def test_any_number_of_chunks_before_under_rule_chunk() -> None:
    assert ReformerConfig(rule="chunk", chunks_before=2, position="rotary", max_positions=0).chunks_before == 2


def test_a_model_without_data_has_rotations_without_data() -> None:
    """Check that rotations take no memory: an untrusted file gives their size before its tensors are compared."""
    config = ReformerConfig(attn_layers=("lsh",))
    with torch.device("meta"):
        model = Reformer(config)
    assert model.word_emb.weight.is_meta
    name = "layers.0.attention.rotations"
    assert model.get_buffer(name).is_meta
    assert model.get_buffer(name).shape == Reformer(config).get_buffer(name).shape


def test_rotations_of_all_layers_are_bounded_together() -> None:
    sizes: dict[str, Any] = {"n_head": 8, "d_head": 128, "n_hashes": 8, "attn_layers": ("lsh",) * 8}
    assert ReformerConfig(**sizes, n_buckets=(2048,)).rotation_columns == 1024
    with pytest.raises(ConfigError, match="must be at most 67,108,864, found 67,174,400"):
        ReformerConfig(**sizes, n_buckets=(2050,))
    assert ReformerConfig(**{**sizes, "attn_layers": ("local",)}, n_buckets=(1 << 30,)).n_layer == 1
