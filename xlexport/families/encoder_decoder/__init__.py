"""Encoder-decoder with reversible layers on both sides (Vaswani et al. 2017, Kitaev et al. 2020)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xlexport.families.base import Architecture
from xlexport.families.step import Step

if TYPE_CHECKING:
    from torch import Tensor

    from xlexport.families.encoder_decoder.describe import EncoderDecoderDescription
    from xlruntime.bundle import Encoder
    from xlruntime.evaluation import EvaluationRules
    from xltraining.encoder_decoder import DecoderMemory, EncoderDecoder

__all__ = ["ARCHITECTURE", "EncoderDecoderArchitecture"]


class EncoderDecoderArchitecture(Architecture):
    """All code and constants that depend on the encoder-decoder."""

    name = "encoder_decoder"
    title = "encoder-decoder"

    def description(self) -> EncoderDecoderDescription:
        """Return what people read about a model."""
        from xlexport.families.encoder_decoder.describe import EncoderDecoderDescription

        return EncoderDecoderDescription()

    def evaluation(self, config: Mapping[str, Any]) -> EvaluationRules:
        """Declare that a target is read in one step, unless it is generated, and how long it is."""
        from xlruntime.evaluation import EvaluationRules

        return EvaluationRules(segment_len=config["tgt_len"], max_positions=config["tgt_len"])

    def encoder(self, config: Mapping[str, Any]) -> Encoder:
        """Return the sizes and reserved ids of the encoder."""
        from xlruntime.bundle import Encoder
        from xltraining.encoder_decoder.config import END, PAD, START

        return Encoder(config["source_len"], PAD, START, END)

    def build_step(self, model: EncoderDecoder) -> Step:
        """Return the step module."""
        from xlexport.families.encoder_decoder.step import EncoderDecoderStep

        return EncoderDecoderStep(model)

    def available(self, config: Mapping[str, Any], choices: Mapping[str, Any]) -> Collection[str]:
        """Return no options: a target is read up to its longest length."""
        return ()

    def project_memory(
        self, model: EncoderDecoder, memory: DecoderMemory, newest: int | None = None
    ) -> Iterable[tuple[str, Tensor]]:
        """Return the keys and values of normalised hidden states."""
        from xlexport.families.encoder_decoder.step import project_memory

        if newest is not None:
            memory = replace(memory, layers=[rows[:, max(0, rows.shape[1] - newest) :] for rows in memory.layers])
        return project_memory(model, memory)


ARCHITECTURE = EncoderDecoderArchitecture()
