from dataclasses import dataclass
from typing import Literal

import pytest
import torch

from xltraining.config_fields import options_of, setting
from xltraining.errors import ConfigError
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig


def test_to_dict_and_back() -> None:
    config = TransformerXLConfig(n_layer=3, mem_len=7, same_length=True, first_memory="zeros")
    assert TransformerXLConfig.from_dict(config.to_dict()) == config


def test_invalid_values_are_all_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        TransformerXLConfig(n_layer=0, d_model=7, mem_len=-1, dropout=1.0, layer_norm_epsilon=0.0)
    message = str(caught.value)
    assert all(name in message for name in ("n_layer", "d_model", "mem_len", "dropout", "layer_norm_epsilon"))
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_head", 2.0),
        ("n_token", True),
        ("clamp_len", "none"),
        ("same_length", 1),
        ("dropatt", "0.1"),
        ("layer_norm_epsilon", float("nan")),
        ("first_memory", "random"),
    ],
)
def test_a_value_of_a_wrong_type_is_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        TransformerXLConfig.from_dict({name: value})


def test_values_of_a_wrong_type_are_shown_in_one_short_line() -> None:
    for value in (torch.zeros(5, 5), "a\nb", list(range(10**5))):
        with pytest.raises(ConfigError) as caught:
            TransformerXLConfig.from_dict({"n_layer": value})
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 200


def test_sizes_that_would_never_be_built_are_refused() -> None:
    with pytest.raises(ConfigError, match="n_layer must be at most 1,000, found 1,000,000,000"):
        TransformerXLConfig(n_layer=10**9)
    with pytest.raises(ConfigError, match="cutoffs must be at most 100, found 50,000"):
        TransformerXLConfig(n_token=10**6, cutoffs=tuple(range(1, 50_001)), div_val=4)
    with pytest.raises(ConfigError, match=r"tgt_len must be at most 2,147,483,648, .*; d_embed must be at most"):
        TransformerXLConfig(tgt_len=10**30, d_embed=1 << 62)
    with pytest.raises(ConfigError, match=r"n_token × d_embed must be at most .*; 3 × n_head × d_head × d_model must"):
        TransformerXLConfig(n_token=1 << 30, d_model=1 << 20, n_head=1 << 20, d_head=1 << 20)


def test_the_largest_sizes_are_within_those_of_torch() -> None:
    with torch.device("meta"):
        TransformerXL(TransformerXLConfig(n_token=1 << 31, d_model=1 << 17, n_head=1, d_head=1, n_layer=1))


def test_unknown_names_are_all_listed() -> None:
    with pytest.raises(ConfigError, match="d_modle, n_layers"):
        TransformerXLConfig.from_dict({"n_layers": 2, "d_modle": 8, "n_head": 2})


def test_same_length_without_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="same_length needs mem_len"):
        TransformerXLConfig(same_length=True, mem_len=0)


def test_window_counts_the_query_itself() -> None:
    assert TransformerXLConfig(mem_len=5, same_length=True).window == 5
    assert TransformerXLConfig(mem_len=5, same_length=False).window is None


@dataclass(frozen=True)
class _Shape:
    colour: Literal["red", "blue"] | None = setting(None, "Of the surface.")


def test_setting_may_be_an_optional_choice() -> None:
    option = options_of(_Shape)["colour"]
    assert (option.kind, option.choices, option.optional) == ("choice", ("red", "blue"), True)
    assert option.type_problem(None) is None and option.type_problem("green") is not None
