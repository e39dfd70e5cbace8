"""Sizes of the experiments, and the models that they compare."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from xltraining.training_config import TrainingConfig
from xltraining.transformer_xl import TransformerXLConfig

__all__ = ["SCALES", "Scale", "Variant", "model_of", "training_of"]

Encoding = Literal["relative", "shaw", "sinusoidal", "learned"]


@dataclass(frozen=True)
class Scale:
    """The size of an experiment.

    Attributes:
        model: fields of the configuration.
        tgt_len: tokens through which gradients flow; memory in training is as long.
        lengths: attention lengths to evaluate with, as multiples of `tgt_len`.
        most: the most units of text to train on and to evaluate with; 0: all.
        held_out: the most units of held-out text to evaluate with; 0: all.
        bf16: whether to train with bfloat16 autocast; None: on CUDA if the device supports it.
        reversible: whether reversible layers compute activations again; without, an update is faster.
    """

    model: dict[str, Any]
    tgt_len: int
    steps: int
    batch_size: int
    learning_rate: float
    warmup_steps: int
    seeds: int
    lengths: tuple[float, ...] = (0.5, 1, 2, 4)
    most: int = 0
    held_out: int = 0
    bf16: bool | None = None
    reversible: bool = True


_QUICK = {"n_layer": 2, "n_head": 4, "d_model": 128, "d_head": 32, "d_inner": 512, "dropout": 0.0}
SCALES = {
    "tiny": Scale(
        {"n_layer": 2, "n_head": 2, "d_model": 32, "d_head": 16, "d_inner": 64, "dropout": 0.0},
        tgt_len=32, steps=60, batch_size=8, learning_rate=4e-3, warmup_steps=10, seeds=2, lengths=(0.5, 1, 2),
        most=40_000,
    ),
    "quick32": Scale(
        _QUICK, tgt_len=32, steps=2500, batch_size=32, learning_rate=3e-3, warmup_steps=300, seeds=3, held_out=65_536,
        bf16=True,
    ),
    "quick128": Scale(
        _QUICK, tgt_len=128, steps=1500, batch_size=8, learning_rate=3e-3, warmup_steps=200, seeds=3, held_out=32_768,
        bf16=True,
    ),
    "small": Scale(
        {"n_layer": 6, "n_head": 8, "d_model": 192, "d_head": 24, "d_inner": 768, "dropout": 0.1},
        tgt_len=128, steps=8000, batch_size=16, learning_rate=2e-3, warmup_steps=300, seeds=3,
    ),
    "paper": Scale(
        {"n_layer": 16, "n_head": 10, "d_model": 410, "d_head": 41, "d_inner": 2100, "dropout": 0.1},
        tgt_len=128, steps=200_000, batch_size=60, learning_rate=2.5e-4, warmup_steps=0, seeds=1,
        lengths=(0.5, 1, 2, 3, 4, 5),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """One model of a table, with what the paper reports of it.

    Attributes:
        paper: the paper's figures, in the order of the table's columns.
        length: `tgt_len` as a multiple of the scale's.
        model, training: further fields of the configurations.
        run: name of its runs, if an experiment with an equal model shares them; empty: the model's own.
    """

    name: str
    recurrence: bool = True
    encoding: Encoding = "relative"
    loss: Literal["full", "half"] = "full"
    paper: tuple[float | None, ...] = ()
    length: float = 1.0
    model: tuple[tuple[str, Any], ...] = ()
    training: tuple[tuple[str, Any], ...] = ()
    run: str = ""


def model_of(variant: Variant, scale: Scale, n_token: int, cutoffs: tuple[int, ...] = ()) -> TransformerXLConfig:
    """Return the configuration of a model; `cutoffs` divide its vocabulary into clusters."""
    tgt_len = round(scale.tgt_len * variant.length)
    mem_len = tgt_len if variant.recurrence else 0
    config = TransformerXLConfig(
        n_token=n_token,
        cutoffs=cutoffs,
        tgt_len=tgt_len,
        mem_len=mem_len,
        encoding=variant.encoding,
        **scale.model,
    )
    return replace(config, **dict(variant.model))


def training_of(variant: Variant, scale: Scale, seed: int, device: str) -> TrainingConfig:
    """Return the settings of a model's training; every model of a scale has equally many updates."""
    config = TrainingConfig(
        steps=scale.steps,
        batch_size=scale.batch_size,
        learning_rate=scale.learning_rate,
        warmup_steps=scale.warmup_steps,
        clip=0.25,
        seed=seed,
        loss=variant.loss,
        device=device,
        bf16=scale.bf16,
        reversible=scale.reversible,
        eval_every=scale.steps,
    )
    return replace(config, **dict(variant.training))
