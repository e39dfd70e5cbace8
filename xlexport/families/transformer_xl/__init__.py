"""Transformer-XL: segment recurrence and relative positions (Dai et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from xlexport.families.base import Architecture
from xlexport.families.step import FixedSizes, Step
from xltraining.config_fields import Option

if TYPE_CHECKING:
    from torch import Tensor

    from xlexport.families.transformer_xl.describe import TransformerXLDescription
    from xlexport.families.transformer_xl.workload import TransformerXLWorkload
    from xlruntime.evaluation import EvaluationRules, EvaluationSettings
    from xltraining.transformer_xl import TransformerXL

__all__ = ["ABSOLUTE", "ARCHITECTURE", "TransformerXLArchitecture", "is_absolute"]

ABSOLUTE = ("sinusoidal", "learned")  # encodings of places in parts of `tgt_len` tokens


class TransformerXLArchitecture(Architecture):
    """All code and constants that depend on Transformer-XL."""

    name = "transformer_xl"
    title = "Transformer-XL"
    sizes = ("n_token", "n_layer", "n_head", "d_head", "d_model", "d_inner", "encoding")
    evaluation_options = (
        Option(
            "clamp_len",
            "integer",
            "Largest distinct distance in tokens; -1: no limit.",
            minimum=-1,
            problem=lambda value: "0 is neither -1 (no clamp) nor at least 1." if value == 0 else None,
        ),
        Option("same_length", "boolean", "Let every token see the same number of earlier tokens."),
    )

    def description(self) -> TransformerXLDescription:
        """Return what people read about a model."""
        from xlexport.families.transformer_xl.describe import TransformerXLDescription

        return TransformerXLDescription()

    def workload(self) -> TransformerXLWorkload:
        """Return what a step computes and reads."""
        from xlexport.families.transformer_xl.workload import TransformerXLWorkload

        return TransformerXLWorkload()

    def evaluation(self, config: Mapping[str, Any]) -> EvaluationRules:
        """Declare memory length and clamp length, and whether every token sees the same number of others.

        A model with absolute places has none of these. Its documents begin again after each part of `tgt_len` tokens.
        """
        from xlruntime.evaluation import EvaluationRules, Ring, Setting

        if is_absolute(config):
            limit = config["tgt_len"]  # of a part; a layer keeps its earlier tokens
            return EvaluationRules(
                segment_len=-(-limit // 2),  # so that verification also carries memory within a part
                rings={"capacity": Ring(rows=(0, 0, limit - 1), slots=(0, 1, limit - 1), window=(0, 0, limit))},
                max_positions=limit,
                restart=True,
            )
        clamp_len = config["clamp_len"] if config["clamp_len"] > 0 else -1
        fewest = min(1, config["mem_len"])  # a model without memory keeps none
        kept, distance = "rows of memory that a layer keeps", "largest distinct distance, in tokens"
        return EvaluationRules(
            segment_len=config["tgt_len"],
            settings={
                "mem_len": Setting(config["mem_len"], kept, minimum=fewest),
                "clamp_len": Setting(clamp_len, distance, minimum=1, off=-1),
                "same_length": Setting(config["same_length"], "whether all tokens see equally many others"),
            },
            rings={
                "capacity": Ring(
                    (1, 0, 0), slots=(1, 1, 0), window=(1, 0, config["window_extra"]), window_if="same_length"
                )
            },
            fresh_memory=config["first_memory"],
        )

    def build_step(self, model: TransformerXL) -> Step:
        """Return the step module on rings."""
        from xlexport.families.transformer_xl.step import make_step

        return make_step(model)

    def build_fixed_step(self, model: TransformerXL, fixed: FixedSizes) -> Step:
        """Return the step module on windows."""
        from xlexport.families.transformer_xl.step import make_step

        return make_step(model, fixed)

    def kind(self, config: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
        """Return the kind of a model, such as "a Transformer-XL with absolute places"."""
        return f"a {self.title}{' with absolute places' if is_absolute(config) else ''}"

    def configured(
        self, model: TransformerXL, config: Mapping[str, Any], evaluation: EvaluationSettings | None = None
    ) -> TransformerXL:
        """Return a trained model under a bundle's settings; weights are shared."""
        from xlruntime.evaluation import UNBOUNDED_WINDOW

        if evaluation is None or model.config.is_absolute:
            return model
        return model.with_evaluation(
            mem_len=evaluation.most_rows,
            clamp_len=evaluation["clamp_len"],
            same_length=evaluation.widest_window != UNBOUNDED_WINDOW,
        )

    def project_memory(
        self, model: TransformerXL, memory: list[Tensor], newest: int | None = None
    ) -> Iterable[tuple[str, Tensor]]:
        """Return the keys and values of hidden states, as the rings hold them."""
        from xlexport.families.transformer_xl.step import project_memory

        if model.config.is_absolute:  # after a part's last token, its first one is never read again
            memory = [rows[:, max(0, rows.shape[1] - model.config.tgt_len + 1) :] for rows in memory]
        if newest is not None:
            memory = [rows[:, max(0, rows.shape[1] - newest) :] for rows in memory]
        return project_memory(model, memory)


def is_absolute(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration's positions are places in a part of a document."""
    return config.get("encoding") in ABSOLUTE


ARCHITECTURE = TransformerXLArchitecture()
