"""Errors of `xltraining`.

    XltrainingError
    ├── ConfigError (ValueError)                            a configuration that cannot be
    ├── DataError (ValueError)                              text that cannot be trained on
    ├── CheckpointError (ValueError)                        a checkpoint that cannot be used
    │   └── CheckpointNotFoundError (FileNotFoundError)     no such file or folder
    ├── CheckpointWriteError (OSError)                      a checkpoint that could not be written
    └── TrainingDivergedError (ArithmeticError)             the loss is not finite any more

Every message is one line: what is wrong, where, what was expected and what was found. How to repair it is a field.
"""

__all__ = [
    "CheckpointError",
    "CheckpointNotFoundError",
    "CheckpointWriteError",
    "ConfigError",
    "DataError",
    "TrainingDivergedError",
    "XltrainingError",
]


class XltrainingError(Exception):
    """Base of all errors that this package raises on purpose; its text is message and repair in one line."""

    def __init__(self, message: str = "", repair: str | None = None) -> None:
        """Keep what is wrong, and where; and what the user can do about it, if there is anything to suggest."""
        super().__init__(message)
        self.message = message
        self.repair = repair

    def __str__(self) -> str:
        if not self.repair:
            return self.message
        return f"{self.message}{'' if self.message.endswith('.') else ';'} {self.repair}"


class ConfigError(XltrainingError, ValueError):
    """A model or training configuration is invalid; the message lists every problem."""


class DataError(XltrainingError, ValueError):
    """A text file is missing, unreadable or too short to train on."""


class CheckpointError(XltrainingError, ValueError):
    """A checkpoint is damaged, of an unknown kind, or does not fit its configuration."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """The path of a checkpoint leads nowhere."""


class CheckpointWriteError(XltrainingError, OSError):
    """A checkpoint could not be written; what stood at its path is untouched."""


class TrainingDivergedError(XltrainingError, ArithmeticError):
    """The loss or a weight became infinite or NaN; the last checkpoint is untouched."""
