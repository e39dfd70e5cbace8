"""Encoder-decoder: texts into other texts, with reversible layers on both sides."""

__all__: list[str] = []
