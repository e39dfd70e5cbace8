"""A long real text that every CPython brings."""

from __future__ import annotations

from xlexport.errors import ExportError

__all__ = ["sample_text"]


def sample_text() -> str:
    """The language reference that `help()` shows, topic after topic: about half a megabyte of English prose.

    Raises:
        ExportError: this Python was built without it.
    """
    try:
        from pydoc_data.topics import topics  # noqa: PLC0415  # half a megabyte that only some commands need
    except ImportError as error:
        raise ExportError("this Python has no pydoc_data.topics to use as a sample text. Give --text FILE.") from error
    return "\n\n".join(topics[name] for name in sorted(topics))
