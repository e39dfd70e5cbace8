"""Bundles of lower precision, gated by what they cost in bits per token of a real text. See `docs/quantization.md`."""
