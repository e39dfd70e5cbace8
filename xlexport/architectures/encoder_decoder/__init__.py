"""Encoder-decoder with reversible layers on both sides (Vaswani et al. 2017, Kitaev et al. 2020)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from xlexport.architectures.base import Architecture, Row
from xlexport.architectures.step import Step

if TYPE_CHECKING:
    from torch import Tensor

    from xlruntime.bundle import Encoder
    from xlruntime.evaluation import EvaluationRules
    from xltraining.encoder_decoder import DecoderMemory, EncoderDecoder

__all__ = ["ARCHITECTURE", "EncoderDecoderArchitecture"]


class EncoderDecoderArchitecture(Architecture):
    """All code and constants that depend on the encoder-decoder."""

    name = "encoder_decoder"
    title = "encoder-decoder"
    first_bytes: ClassVar[Mapping[int, int]] = {259: 3}  # ids 0 to 2 pad, start and end texts

    def evaluation(self, config: Mapping[str, Any]) -> EvaluationRules:
        """Declare that a target is read in one step, unless it is generated, and how long it is."""
        from xlruntime.evaluation import EvaluationRules

        return EvaluationRules(segment_len=config["tgt_len"], max_positions=config["tgt_len"])

    def encoder(self, config: Mapping[str, Any]) -> Encoder:
        """Return the sizes and reserved ids of the encoder."""
        from xlruntime.bundle import Encoder
        from xltraining.encoder_decoder.config import END, PAD, START

        return Encoder(config["source_len"], PAD, START, END)

    def build_step(self, model: EncoderDecoder, choices: Mapping[str, Any]) -> Step:
        """Return the step module."""
        from xlexport.architectures.encoder_decoder.step import EncoderDecoderStep

        return EncoderDecoderStep(model)

    def kind(self, config: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
        """Return the kind of a model, for messages."""
        return "an encoder-decoder"

    def available(self, config: Mapping[str, Any], choices: Mapping[str, Any]) -> Collection[str]:
        """Return no options: a target is read up to its longest length."""
        return ()

    def project_memory(
        self, model: EncoderDecoder, memory: DecoderMemory, newest: int | None = None
    ) -> Iterable[tuple[str, Tensor]]:
        """Return the keys and values of normalised hidden states."""
        from xlexport.architectures.encoder_decoder.step import project_memory

        if newest is not None:
            memory = replace(memory, layers=[rows[:, max(0, rows.shape[1] - newest) :] for rows in memory.layers])
        return project_memory(model, memory)

    def summary(self, config: Mapping[str, Any]) -> str:
        """Return the sizes of a model in words."""
        return (
            f"{_layers(config)}, reversible, d_model {config['d_model']}, {config['n_head']} heads of "
            f"{config['d_head']}, sources of at most {config['source_len']} tokens, targets of {config['tgt_len']}"
        )

    def describe(self, config: Mapping[str, Any]) -> list[Row]:
        """Return rows about the layers and the longest texts."""
        longest = f"{config['source_len']:,} and {config['tgt_len']:,} tokens"
        return [("layers", _layers(config)), ("longest source and target", longest)]


def _layers(config: Mapping[str, Any]) -> str:
    return f"{config['n_encoder_layer']} layers of encoder, {config['n_decoder_layer']} of decoder"


ARCHITECTURE = EncoderDecoderArchitecture()
