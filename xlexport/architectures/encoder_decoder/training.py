"""The options of `xlexport train` for an encoder-decoder: fields of `EncoderDecoderConfig`."""

from __future__ import annotations

from xlexport.architectures.options import REVERSIBLE, Option

__all__ = ["RUN_OPTIONS", "TRAINING_OPTIONS"]

TRAINING_OPTIONS = (
    Option("n_encoder_layer", "integer", "Layers of the encoder.", 2),
    Option("n_decoder_layer", "integer", "Layers of the decoder.", 2),
    Option("n_head", "integer", "Attention heads.", 4),
    Option("d_model", "integer", "Width of the hidden states.", 192),
    Option("d_head", "integer", "Width of a head.", 48),
    Option("d_inner", "integer", "Width inside the feed-forward blocks.", 768),
    Option("source_len", "integer", "Most tokens of a source.", 96),
    Option("tgt_len", "integer", "Tokens in a segment; for an encoder-decoder the most of a target.", 96),
    Option("dropout", "number", "Dropout.", 0.1),
    Option("dropatt", "number", "Dropout of attention weights.", 0.0),
)
RUN_OPTIONS = (REVERSIBLE,)
