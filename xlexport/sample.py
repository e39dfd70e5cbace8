"""A checkpoint that comes with xlexport and a text that comes with Python, for `xlexport demo` and as defaults."""

from __future__ import annotations

from pathlib import Path

from xlexport.errors import CheckpointNotFoundError

__all__ = ["sample_checkpoint", "sample_text"]

SAMPLE = Path("transformer_xl_bytes", "checkpoint.pt")


def sample_checkpoint() -> Path:
    """A byte-level Transformer-XL, trained on English prose; its recipe stands beside it.

    Raises:
        CheckpointNotFoundError: this installation was built without it.
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
    """Half a megabyte of English that every CPython brings: the topics of its language reference, by name."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))
