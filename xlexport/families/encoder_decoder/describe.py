"""What people read about an encoder-decoder."""

from __future__ import annotations

from xlexport.families.describe import Config, ModelDescription, Row

__all__ = ["EncoderDecoderDescription"]


class EncoderDecoderDescription(ModelDescription):
    """The description of an encoder-decoder."""

    def summary(self, config: Config) -> str:
        """Return the sizes of a model in words."""
        return (
            f"{self._layers(config)}, reversible, d_model {config['d_model']}, {config['n_head']} heads of "
            f"{config['d_head']}, sources of at most {config['source_len']} tokens, targets of {config['tgt_len']}"
        )

    def layers(self, config: Config) -> list[Row]:
        """Return rows about the layers and the longest texts."""
        longest = f"{config['source_len']:,} and {config['tgt_len']:,} tokens"
        return [("layers", self._layers(config)), ("longest source and target", longest)]

    @staticmethod
    def _layers(config: Config) -> str:
        return f"{config['n_encoder_layer']} layers of encoder, {config['n_decoder_layer']} of decoder"
