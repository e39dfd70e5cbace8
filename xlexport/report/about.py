"""What pages say about a bundle: a sentence about the model, and the ends of the colour scales."""

from __future__ import annotations

import math
from pathlib import Path

from xlexport.architectures import title_of
from xlruntime import Bundle, EvaluationSettings

__all__ = ["bundle_note", "ceilings"]

LEAST_CEILING = 12  # bits at the end of the scale for tokens: the bits of a blind guess, but at least this many
PLAIN_NAMES = {"bundle", "model", "checkpoint", "out", "output"}  # names of folders that do not describe a model
WORD_CEILING = 32  # bits at the end of the scale for words, or the end of the tokens' scale if that is larger


def bundle_note(bundle: Bundle, folder: Path, settings: EvaluationSettings) -> str:
    """Return a sentence about the model in `folder` and its memory."""
    memory = "the whole document in one step" if settings.full_document else f"segments of {settings.segment_len:,}"
    return f"{_model_name(bundle, folder)}; {memory}" + (
        "." if settings.full_document else f", memory {settings.most_rows:,}."
    )


def ceilings(vocab_size: int) -> dict[str, int]:
    """Return the bits at the ends of the scales, by what the text is coloured by."""
    uniform = math.ceil(math.log2(vocab_size))  # bits of a blind guess, which is the largest possible entropy
    token = max(LEAST_CEILING, uniform)
    return {"token": token, "word": max(WORD_CEILING, token), "entropy": max(1, uniform)}


def _model_name(bundle: Bundle, folder: Path) -> str:
    """Return a description of the model: architecture, sizes, and the bundle's name unless it is in PLAIN_NAMES."""
    layers = bundle.config.get("n_layer") or len(bundle.config.get("attn_layers", ()))
    sizes = [f"{layers} layers of {bundle.config['d_model']:,}"] if layers and "d_model" in bundle.config else []
    name = folder.resolve().name
    parts = [
        title_of(bundle.architecture),
        *sizes,
        f"vocabulary of {bundle.vocab_size:,}",
        bundle.precision,
        *([] if name.removesuffix(".bundle").lower() in PLAIN_NAMES else [name]),
    ]
    return ", ".join(parts)
