"""The checkpoints that are installed with xlexport and the text that is part of Python, for `demo` and as defaults."""

from __future__ import annotations

import platform
from pathlib import Path

from xlexport.errors import CheckpointNotFoundError

__all__ = ["SAMPLES", "sample_checkpoint", "sample_text", "sample_text_name"]

SAMPLES = {
    "bytes": Path("transformer_xl_bytes", "checkpoint.pt"),
    "bpe": Path("transformer_xl_bpe", "checkpoint.pt"),
}
"""The installed checkpoints by what their tokens are."""


def sample_checkpoint(tokens: str = "bytes") -> Path:
    """Return the path of a Transformer-XL that was trained on English prose.

    Args:
        tokens: what the model reads, one of `SAMPLES`.

    Raises:
        CheckpointNotFoundError: this installation does not include it.
    """
    package, file = Path(__file__).resolve().parent, SAMPLES[tokens]
    places = (package / "_samples" / file, package.parent / "samples" / file)  # installed; checkout
    for place in places:
        if place.is_file():
            return place
    raise CheckpointNotFoundError(
        f"the sample checkpoint is in neither {places[0]} nor {places[1]}.",
        hint="Install from a complete clone: pip install ./runtime/python '.[cpu,convert]' -c constraints.txt",
    )


def sample_text() -> str:
    """Return half a megabyte of English that every CPython includes: the topics of its language reference."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def sample_text_name() -> str:
    """Return what `sample_text` is, for people; it differs between versions of Python."""
    return f"the topics of Python {platform.python_version()}'s language reference"
