"""Bundles of lower precision, whose cost in bits per token of a real text is limited. See `docs/quantization.md`."""
