"""Errors of `xltraining`.

    XltrainingError
    ├── ConfigError (ValueError)                            a configuration that cannot be
    ├── DataError (ValueError)                              text that cannot be trained on
    ├── CheckpointError (ValueError)                        a checkpoint that cannot be used
    │   └── CheckpointNotFoundError (FileNotFoundError)     no such file or folder
    ├── CheckpointWriteError (OSError)                      a checkpoint that could not be written
    └── TrainingDivergedError (ArithmeticError)             the loss is not finite any more

Every message is one line: what is wrong, where, what was expected and found, and how to mend it.
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
    """Base of all errors that this package raises on purpose."""


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
