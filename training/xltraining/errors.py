"""Errors of `xltraining`.

    XltrainingError
    ├── ConfigError (ValueError)                            an invalid configuration
    ├── DataError (ValueError)                              text that cannot be trained on
    ├── RunFileError (ValueError)                           a checkpoint that cannot be used
    │   └── RunFileNotFoundError (FileNotFoundError)        no such file or folder
    ├── CheckpointWriteError (OSError)                      a checkpoint that could not be written
    └── TrainingDivergedError (ArithmeticError)             the loss is not finite any more

Every message is a sentence on one line: the problem, its place, the expected and the found. The field `hint` says
how to repair it. Characters that a terminal cannot show are escaped, and the middle of a long text is left out.
"""

from typing import TYPE_CHECKING

from xltraining.messages import bounded, renamed

__all__ = [
    "CheckpointWriteError",
    "ConfigError",
    "DataError",
    "RunFileError",
    "RunFileNotFoundError",
    "TrainingDivergedError",
    "XltrainingError",
]

if not TYPE_CHECKING:  # which would take any name
    __getattr__ = renamed(
        __name__, {"CheckpointError": "RunFileError", "CheckpointNotFoundError": "RunFileNotFoundError"}
    )


class XltrainingError(Exception):
    """Base of all errors that this package raises on purpose; its text is message and hint on one line."""

    def __init__(self, message: str = "", hint: str | None = None) -> None:
        """Keep the message and the hint; both are sentences.

        Args:
            message: what is wrong, and where.
            hint: what the user can do about it; None without a suggestion.
        """
        self.message = bounded(message)
        self.hint = None if hint is None else bounded(hint, 450)
        super().__init__(self.message)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.message, self.hint)))


class ConfigError(XltrainingError, ValueError):
    """A model or training configuration is invalid; the message lists every problem."""


class DataError(XltrainingError, ValueError):
    """A text file is missing, unreadable or too short to train on."""


class RunFileError(XltrainingError, ValueError):
    """A checkpoint is damaged, of an unknown kind, or does not fit its configuration."""


class RunFileNotFoundError(RunFileError, FileNotFoundError):
    """A checkpoint's path does not exist."""


class CheckpointWriteError(XltrainingError, OSError):
    """A checkpoint could not be written; an older one at its path is untouched."""


class TrainingDivergedError(XltrainingError, ArithmeticError):
    """The loss or a weight became infinite or NaN; the last checkpoint is untouched."""
