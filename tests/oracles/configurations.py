"""The table of configurations that are compared with the oracle: every pair of values of every two options occurs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from xltraining.transformer_xl import TransformerXLConfig

Values = dict[str, Any]
Feature = tuple[tuple[str, Any], ...]

N_TOKEN = 50
SEGMENTS = {
    "mixed": (16, 1, 7, 5, 16, 16, 7, 1, 5, 16, 16, 7, 16),
    "sevens": (7,) * 18,
    "sixteens": (16,) * 8,
}
TIE_PROJS = ("unset", "none", "all but first", "all")
OPTIONS: dict[str, tuple[Any, ...]] = {
    "n_layer": (1, 2, 3, 4),
    "sizes": (  # d_model, n_head, d_head, d_inner
        (68, 2, 8, 24),
        (70, 3, 5, 17),  # 35 frequencies
        (66, 1, 41, 30),
        (72, 4, 1, 1),
    ),
    "d_embed": ("equal", "narrower", "double"),
    "cutoffs": ((), (20,), (1, 2), (9, 30, 42)),  # of (1, 2), shortlist and first tail hold one token each
    "div_val": (1, 2, 4),
    "tie_weight": (True, False),
    "tie_projs": TIE_PROJS,
    "proj_same_dim": (True, False),
    "untie_r": (True, False),
    "pre_lnorm": (False, True),
    "same_length": (False, True),
    "window_extra": (0, 1),
    "clamp_len": (-1, 4, 1000),  # below the memory's length, beyond every distance
    "mem_len": (3, 13, 32),  # shorter than a segment, not a multiple of one, longer than any
    "first_memory": ("empty", "zeros"),
    "layer_norm_epsilon": (1e-5, 1e-3, 1e-12),
    "segments": tuple(SEGMENTS),
}


@dataclass(frozen=True)
class Configuration:
    """One row of the table: a value for each option."""

    number: int
    values: Values

    def __str__(self) -> str:
        """Return the distinguishing values, as the test's id."""
        model = self.model
        norm, memory = "pre" if model.pre_lnorm else "post", model.first_memory
        return f"{self.number}-{norm}-{memory}-{len(model.cutoffs)}cutoffs-div{model.div_val}"

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the walked segments."""
        return SEGMENTS[self.values["segments"]]

    @property
    def model(self) -> TransformerXLConfig:
        values = {name: value for name, value in self.values.items() if name not in ("sizes", "segments")}
        d_model, n_head, d_head, d_inner = self.values["sizes"]
        clusters = len(values["cutoffs"]) + 1
        return TransformerXLConfig(
            **values
            | {
                "n_token": N_TOKEN,
                "d_model": d_model,
                "n_head": n_head,
                "d_head": d_head,
                "d_inner": d_inner,
                "d_embed": {"equal": None, "narrower": 64, "double": 2 * d_model}[values["d_embed"]],
                "tie_projs": {
                    "unset": (),
                    "none": (False,) * clusters,
                    "all but first": (False,) + (True,) * (clusters - 1),
                    "all": (True,) * clusters,
                }[values["tie_projs"]],
                "tgt_len": max(self.lengths),
                "dropout": 0.1,  # evaluation must ignore it
                "dropatt": 0.1,
            }
        )

    def segments(self, batch_size: int) -> list[tuple[Tensor, Tensor]]:
        """Return tokens and targets (B, S) of each segment; targets cover all clusters in some, and one in others."""
        generator = torch.Generator().manual_seed(self.number)
        bounds = self.model.cluster_bounds
        ids: list[Tensor] = []
        for number, length in enumerate(self.lengths):
            only = bounds[number // 2 % len(bounds)]
            chosen = bounds if number % 2 == 0 else (only,)
            ranges = [chosen[index] for index in torch.randint(len(chosen), (3 * length,), generator=generator)]
            drawn = [int(torch.randint(first, end, (), generator=generator)) for first, end in ranges]
            ids.append(torch.tensor(drawn).view(3, length))
        document = torch.cat([torch.zeros(3, 1, dtype=torch.int64), *ids], dim=1)[:batch_size]
        cut, start = [], 0
        for length in self.lengths:
            cut.append((document[:, start : start + length], document[:, start + 1 : start + length + 1]))
            start += length
        return cut


def _combinations(*names: str) -> list[Feature]:
    """Return every combination of the values of some options."""
    return list(itertools.product(*(itertools.product([name], OPTIONS[name]) for name in names)))


def _covered(values: Values, wanted: Iterable[Feature]) -> set[Feature]:
    return {feature for feature in wanted if all(values[name] == value for name, value in feature)}


def _table(seed: int) -> tuple[Configuration, ...]:
    """Draw rows until they cover all pairs of values; each is the best of many random rows at covering new pairs."""
    draw = random.Random(seed)
    missing = dict.fromkeys(pair for names in itertools.combinations(OPTIONS, 2) for pair in _combinations(*names))
    rows: list[Configuration] = []
    while missing:
        wanted = dict(next(iter(missing)))
        candidates = [{name: draw.choice(values) for name, values in OPTIONS.items()} | wanted for _ in range(50)]
        covered = [
            [pair for pair in itertools.combinations(values.items(), 2) if pair in missing] for values in candidates
        ]
        best = max(range(50), key=lambda index: len(covered[index]))
        for pair in covered[best]:
            del missing[pair]
        rows.append(Configuration(len(rows), candidates[best]))
    return tuple(rows)


def _representatives(table: tuple[Configuration, ...]) -> tuple[Configuration, ...]:
    """Return rows that have every value, every width of many tails, and each first memory with each normalisation."""
    missing = {
        *(value for name in OPTIONS for value in _combinations(name)),
        *_combinations("pre_lnorm", "first_memory"),
        *((("cutoffs", OPTIONS["cutoffs"][-1]), ("div_val", div_val)) for div_val in OPTIONS["div_val"]),
    }
    rows: list[Configuration] = []
    while missing:
        best = max(table, key=lambda row: len(_covered(row.values, missing)))
        missing -= _covered(best.values, missing)
        rows.append(best)
    return tuple(rows)


TABLE = _table(seed=37)
REPRESENTATIVES = _representatives(TABLE)
