"""The checkpoint that is installed with xlexport and the text that is part of Python, for `demo` and as defaults."""

from __future__ import annotations

import platform
from pathlib import Path

from xlexport.errors import CheckpointNotFoundError

__all__ = ["sample_checkpoint", "sample_text", "sample_text_name"]

SAMPLE = Path("transformer_xl_bytes", "checkpoint.pt")


def sample_checkpoint() -> Path:
    """Return the path of a byte-level Transformer-XL, trained on English prose; its folder also holds the recipe.

    Raises:
        CheckpointNotFoundError: this installation does not include it.
    """
    package = Path(__file__).resolve().parent
    places = (package / "_samples" / SAMPLE, package.parent / "samples" / SAMPLE)  # installed; checkout
    for place in places:
        if place.is_file():
            return place
    raise CheckpointNotFoundError(
        f"the sample checkpoint is in neither {places[0]} nor {places[1]}.",
        repair="Install from a complete clone: pip install '.[cpu,convert]' -c constraints.txt",
    )


def sample_text() -> str:
    """Return half a megabyte of English that every CPython includes: the topics of its language reference."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


def sample_text_name() -> str:
    """Return what `sample_text` is, for people; it differs between versions of Python."""
    return f"the topics of Python {platform.python_version()}'s language reference"
