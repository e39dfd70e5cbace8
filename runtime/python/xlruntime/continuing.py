"""Checks of a scorer that carries memory from document to document."""

from __future__ import annotations

from .engine import Engine
from .errors import OptionError, TextError, XlruntimeError
from .evaluation import EvaluationSettings

__all__ = ["check_continuous", "check_separator", "is_space"]


def check_continuous(evaluation: EvaluationSettings, batch_size: int) -> None:
    """Raise OptionError if memory cannot be carried from document to document."""
    if evaluation.full_document:
        raise OptionError(
            "continuous: this model reads each document in one step and carries no memory.", hint="Leave it out."
        )
    if batch_size != 1:
        raise OptionError(f"continuous: documents go one after another, so batch size must be 1, not {batch_size}.")


def check_separator(engine: Engine, separator: str) -> None:
    """Raise OptionError if the tokenizer has no tokens for the separator."""
    try:
        if separator:
            engine.tokenizer.encode_piece(separator, None)
    except XlruntimeError as error:
        raise OptionError(
            f"separator: {error.message}", hint="Give another separator, or an empty one for none."
        ) from error


def is_space(engine: Engine, token: int) -> bool:
    """Return whether the text of a token ends in white space, as that of a line's end does."""
    try:
        return engine.tokenizer.decode([token])[-1:].isspace()
    except TextError:  # the library cannot show a token on its own
        return False
