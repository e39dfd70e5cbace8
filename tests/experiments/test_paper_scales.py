"""The scales named `paper`, against numbers that the papers print."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from experiments import reformer, reformer_table2, reformer_table4, transformer_xl
from experiments.paper_scales import ENWIK8, IMAGENET64, ONE_BILLION, PENN_TREEBANK, RECL, WIKITEXT, WMT14
from experiments.running import Scale, Variant, training_of
from xltraining.architectures import new_model
from xltraining.config_fields import ModelConfig

WORDS = (267_735, (20_000, 40_000, 200_000))  # of WikiText-103: vocabulary and cutoffs
BILLION = (793_471, (60_000, 100_000, 640_000))


def find(variants: tuple[Variant, ...], name: str) -> Variant:
    return next(variant for variant in variants if variant.name == name)


def millions(config: ModelConfig) -> float:
    """Return the number of a model's weights in millions; no memory is taken for them."""
    with torch.device("meta"):
        return sum(weight.numel() for weight in new_model(config).parameters()) / 1e6


TABLE_6, TABLE_8 = transformer_xl.VARIANTS["table6"], transformer_xl.VARIANTS["table8"]
FIGURE_4 = reformer.VARIANTS["reformer_figure4"]
# A model, its scale and its experiment's `config_of`, its vocabulary; fields of its configuration and its training that
# the papers print; and its weights in millions, with the digits that they print.
PRINTED: list[tuple[Variant, Scale, Any, tuple[int, tuple[int, ...]], dict[str, Any], dict[str, Any], str]] = [
    (TABLE_6[0], WIKITEXT, transformer_xl.model_of, WORDS, {"tgt_len": 128}, {}, "128"),
    (TABLE_6[-1], WIKITEXT, transformer_xl.model_of, WORDS, {"n_layer": 16, "n_head": 10}, {}, "151"),
    (find(TABLE_8, "LSTM"), RECL, transformer_xl.model_of, WORDS, {}, {}, "151"),
    (transformer_xl.VARIANTS["table10"][2], WIKITEXT, transformer_xl.model_of, WORDS, {"tgt_len": 176}, {}, "128"),
    (transformer_xl.VARIANTS["table10"][3], WIKITEXT, transformer_xl.model_of, WORDS, {"tgt_len": 172}, {}, "128"),
    (
        *(transformer_xl.VARIANTS["table7"][0], ONE_BILLION, transformer_xl.model_of, BILLION),
        *({"n_layer": 20}, {"steps": 400_000}, "301"),  # "0.3B"
    ),
    (
        *(transformer_xl.VARIANTS["table5"][1], PENN_TREEBANK, transformer_xl.model_of, (10_000, ())),
        *({"variational": True}, {"average_from": 0.6}, "26"),  # the text: 24M
    ),
    *(
        (
            *(find(FIGURE_4, name), scale, reformer.config_of, (256, ())),
            {"n_layer": 3, "d_model": 1024, "d_inner": 4096, "n_head": 8, "chunk_length": 128, "tgt_len": length},
            *({"optimizer": "adafactor", "batch_size": 8}, weights),  # not printed
        )
        for name in ("LSH-8", "full")
        for scale, length, weights in ((ENWIK8, 65_536, "36"), (IMAGENET64, 12_288, "35"))
    ),
    (
        *(Variant("full"), reformer_table2.SCALES["paper"], reformer_table2.config_of, (0, ())),
        *({"d_model": 256, "d_inner": 256, "n_head": 4, "n_layer": 1, "tgt_len": 1024}, {"steps": 150_000}, "1"),
    ),
    *(
        (
            *(find(reformer_table4.VARIANTS, name), WMT14, reformer_table4.config_of, (37_000, ())),
            *({"tie_weight": tied, "n_encoder_layer": 6, "d_model": width}, {"steps": steps}, weights),
        )
        for name, tied, width, steps, weights in (
            ("reversible", True, 512, 100_000, "63"),  # Vaswani et al.: 65
            ("reversible unshared", False, 512, 500_000, "101"),
            ("reversible big unshared", False, 1024, 300_000, "290"),
        )
    ),
]


@pytest.mark.parametrize("row", PRINTED, ids=lambda row: f"{row[0].name} {row[6]}")
def test_paper_scale_has_the_numbers_of_the_text(row: Any) -> None:
    variant, scale, config_of, (n_token, cutoffs), model, training, weights = row
    config, run = config_of(variant, scale, n_token, cutoffs), training_of(variant, scale, 0, "cpu")
    assert {name: getattr(config, name) for name in model} == model
    assert {name: getattr(run, name) for name in training} == training
    assert f"{millions(config):.0f}" == weights


def test_paper_scale_reaches_every_printed_length() -> None:
    lengths = {round(128 * factor) for factor in WIKITEXT.lengths}
    for table in ("table6", "table10"):
        printed = {variant.paper[2] for variant in transformer_xl.VARIANTS[table]} - {None}
        assert printed | set(transformer_xl.STANDARD_6) <= lengths
    recl = {length for group in transformer_xl.PAPER_8.values() for row in group.values() for length in row if length}
    assert max(recl) == 900 and round(128 * max(RECL.lengths)) > 900
    assert {length % RECL.recl_step for length in recl - {128}} == {0}
    assert max(ENWIK8.depths) == 20 and {3, 12} <= set(ENWIK8.depths)
    assert max(reformer.ROUNDS) == 8
    assert WMT14.training["label_smoothing"] == 0.1
