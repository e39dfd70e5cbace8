"""Transformer-XL: segment recurrence and relative positions (Dai et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from xlexport.architectures.base import Architecture, Row, stream_memory
from xlexport.architectures.step import Step
from xltraining.config_fields import Option

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.hooks import RemovableHandle

    from xlruntime.bundle import Bundle
    from xlruntime.evaluation import EvaluationRules, EvaluationSettings
    from xltraining.transformer_xl import TransformerXL

__all__ = ["ABSOLUTE", "ARCHITECTURE", "SIZES", "TransformerXLArchitecture", "is_absolute"]

SIZES = ("n_token", "n_layer", "n_head", "d_head", "d_model", "d_inner", "encoding")
ABSOLUTE = ("sinusoidal", "learned")  # encodings of places in parts of `tgt_len` tokens


def _clamp_len_problem(value: int) -> str | None:
    return "0 is neither -1 (no clamp) nor at least 1." if value == 0 else None


class TransformerXLArchitecture(Architecture):
    """All code and constants that depend on Transformer-XL."""

    name = "transformer_xl"
    title = "Transformer-XL"
    supports = frozenset({"attention-plot", "torchscript"})
    evaluation_options = (
        Option(
            "clamp_len",
            "integer",
            "Largest distinct distance in tokens; -1: no limit.",
            minimum=-1,
            problem=_clamp_len_problem,
        ),
        Option("same_length", "boolean", "Whether every token sees the same number of others."),
    )
    conversion_options = (
        Option("cuda_graphs", "boolean", "Whether to write also the graphs that cuda_graphs of other commands needs."),
    )
    evaluation_fields: ClassVar[Mapping[str, str]] = {
        "segment_len": "tgt_len",
        "mem_len": "mem_len",
        "clamp_len": "clamp_len",
        "same_length": "same_length",
    }
    fixed_fields = ("first_memory", "window_extra")

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

    def build_step(self, model: TransformerXL, choices: Mapping[str, Any]) -> Step:
        """Return the step module; with `cuda_graphs` it also has graphs of fixed shapes."""
        from xlexport.architectures.transformer_xl.step import make_step

        return make_step(model, bool(choices.get("cuda_graphs")))

    def available(self, config: Mapping[str, Any], choices: Mapping[str, Any]) -> Collection[str]:
        """Return all options, or for a model with absolute places the ones without memory."""
        every = super().available(config, choices)
        return {"segment_len", "cuda_graphs"} if is_absolute(config) else every

    def kind(self, config: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
        """Return the kind of a model, such as "a Transformer-XL with absolute places"."""
        return f"a {self.title}{' with absolute places' if is_absolute(config) else ''}"

    def under_evaluation(self, model: TransformerXL, evaluation: EvaluationSettings) -> TransformerXL:
        """Return a trained model under a bundle's settings; weights are shared."""
        if model.config.is_absolute:
            return model
        return model.with_evaluation(
            mem_len=evaluation.most_rows, clamp_len=evaluation["clamp_len"], same_length=bool(evaluation["same_length"])
        )

    def comparable_sizes(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the sizes that must be equal."""
        return {"encoding": "relative"} | {name: config[name] for name in SIZES if name in config}

    def project_memory(
        self, model: TransformerXL, memory: list[Tensor], newest: int | None = None
    ) -> Iterable[tuple[str, Tensor]]:
        """Return the keys and values of hidden states, as the rings hold them."""
        from xlexport.architectures.transformer_xl.step import project_memory

        if model.config.is_absolute:  # after a part's last token, its first one is never read again
            memory = [rows[:, max(0, rows.shape[1] - model.config.tgt_len + 1) :] for rows in memory]
        if newest is not None:
            memory = [rows[:, max(0, rows.shape[1] - newest) :] for rows in memory]
        return project_memory(model, memory)

    def observe_attention(self, model: TransformerXL, add: Callable[[int, Tensor], None]) -> list[RemovableHandle]:
        """Pass each layer's attention weights to `add` at the layer's dropout, which is the identity in eval mode."""
        from xltraining.transformer_xl import TransformerXLLayer

        def hook(number: int) -> Callable[[Any, Any, Tensor], None]:
            return lambda module, inputs, weights: add(number, weights)

        layers = [layer for layer in model.layers if isinstance(layer, TransformerXLLayer)]
        return [layer.attention.dropatt.register_forward_hook(hook(number)) for number, layer in enumerate(layers)]

    def summary(self, config: Mapping[str, Any]) -> str:
        """Return the sizes of a model in words."""
        encoding = f", encoding {config['encoding']}" if "encoding" in config else ""
        return f"{config['n_layer']} layers, d_model {config['d_model']}, {config['n_head']} heads{encoding}"

    def bundle_rows(self, bundle: Bundle, folder: Path) -> list[Row]:
        """Return rows of `inspect` about a bundle."""
        evaluation = bundle.settings
        if is_absolute(bundle.config):
            return [
                ("segment", str(evaluation.segment_len)),
                ("documents", f"in parts of {evaluation.max_positions} tokens, each without the ones before it"),
                ("memory of a stream", stream_memory(bundle)),
            ]
        return [
            ("segment, memory, clamp", f"{evaluation.segment_len}, {evaluation.most_rows}, {evaluation['clamp_len']}"),
            ("same_length", str(evaluation["same_length"]).lower()),
            ("first memory", evaluation.fresh_memory),
            ("memory of a stream", stream_memory(bundle)),
        ]

    def checkpoint_rows(self, config: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Row]:
        """Return rows of `inspect` about a checkpoint: the keys that a token sees, and the first memory."""
        if is_absolute(config):
            return [("keys that a token sees", f"those of its part of {config['tgt_len']} tokens before it")]
        return [("keys that a token sees", _window(settings)), ("first memory", settings["first_memory"])]

    def training_config(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a configuration; with absolute places, no memory unless the user asks for some."""
        return {**({"mem_len": 0} if is_absolute(given) else {}), **given}


def is_absolute(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration's positions are places in a part of a document."""
    return config.get("encoding") in ABSOLUTE


def _window(settings: Mapping[str, Any]) -> str:
    wider = "mem_len + 1" if settings["window_extra"] else "mem_len"
    otherwise = "all of memory and of its segment before it"
    if settings["same_length"] is None:
        return f"{wider} with same_length, else {otherwise}"
    return wider if settings["same_length"] else otherwise


ARCHITECTURE = TransformerXLArchitecture()
