"""The three shapes for which speed is measured, and the settings of a step of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["SHAPES", "TINY_SHAPES", "Shape"]


@dataclass(frozen=True)
class Shape:
    """A Transformer-XL with random weights, and one of its steps on full memory.

    Attributes:
        config: fields of a `TransformerXLConfig` that differ from its defaults.
        cuda_graphs: whether its bundle has a graph that scores at fixed sizes; this needs a vocabulary without
        clusters.
    """

    name: str
    title: str
    segment_len: int
    mem_len: int
    config: dict[str, Any]

    @property
    def cuda_graphs(self) -> bool:
        """Whether a step has fixed sizes, which do not depend on the number of targets in each cluster."""
        return not self.config.get("cutoffs")


_SAMPLE = {
    **{"n_layer": 6, "n_head": 3, "d_model": 192, "d_head": 64, "d_inner": 768},
    **{"pre_lnorm": True, "clamp_len": 192, "same_length": True},
}
_ENWIK8 = {"n_layer": 12, "n_head": 8, "d_model": 512, "d_head": 64, "d_inner": 2048}
_WT103 = {"n_layer": 18, "n_head": 16, "d_model": 1024, "d_head": 64, "d_inner": 4096, "n_token": 267_735}
_SMALL = {"n_layer": 2, "n_head": 2, "d_model": 32, "d_head": 16, "d_inner": 64}
_SMALL_CLUSTERS = {**_SMALL, "n_token": 100, "cutoffs": (20, 40), "div_val": 2}

SHAPES = (
    Shape("sample", "the sample's shape, 6 layers of 192", 128, 384, _SAMPLE),
    Shape("enwik8-12L", "the enwik8 shape, 12 layers of 512", 80, 2100, _ENWIK8),
    Shape(
        "wt103",
        "a WikiText-103 shape, 18 layers of 1,024, 267,735 words in four clusters",
        128,
        1600,
        {**_WT103, "cutoffs": (20_000, 40_000, 200_000), "div_val": 4},
    ),
)
TINY_SHAPES = (
    Shape("tiny", "tiny", 8, 24, _SMALL),
    Shape("tiny-clusters", "tiny, three clusters", 8, 24, _SMALL_CLUSTERS),
)
