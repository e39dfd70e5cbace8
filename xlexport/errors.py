"""Errors of `xlexport`.

    XlexportError (HintedError)
    ├── CheckpointError (ValueError)                        a checkpoint that cannot be converted
    │   ├── CheckpointNotFoundError (FileNotFoundError)     no such file or folder
    │   └── MissingAnswerError                              the user must give a setting that it lacks
    ├── TrustError (PermissionError)                        code of others would run, which the user did not allow
    ├── GraphError (ValueError)                             a graph of others that cannot be verified
    ├── ArrayFileError (ValueError)                         a file of arrays that is damaged, too large, or others
    ├── ExportError (RuntimeError)                          a model that cannot become step graphs
    │   └── OperatorError                                   it computes with an operator that no graph can have
    ├── ParityError (RuntimeError)                          step graphs that do not compute what the model computes
    ├── ReferenceCodeError (TypeError)                      eager code of a user that returns no log-probabilities
    ├── QuantizationError (RuntimeError)                    a bundle that cannot be quantized, or would lose too much
    ├── ResumeError (ValueError)                            a run that cannot go on where one was interrupted
    ├── WorkerError (RuntimeError)                          another process of this run ended before its work was done
    ├── OutputExistsError (FileExistsError)                 the output path is taken
    ├── OutputFolderError (FileNotFoundError)               the folder to write the output into does not exist
    └── MissingDependencyError (ImportError)                an extra that is not installed

Every message is one line: what is wrong, where, what was expected and what was found. The hint is a field.
"""

from collections.abc import Mapping
from typing import Any

from xlruntime.errors import HintedError

__all__ = [
    "ArrayFileError",
    "CheckpointError",
    "CheckpointNotFoundError",
    "ExportError",
    "GraphError",
    "MissingAnswerError",
    "MissingDependencyError",
    "OperatorError",
    "OutputExistsError",
    "OutputFolderError",
    "ParityError",
    "QuantizationError",
    "ReferenceCodeError",
    "ResumeError",
    "TrustError",
    "WorkerError",
    "XlexportError",
]


class XlexportError(HintedError):
    """Base of all errors that this package raises on purpose."""


class CheckpointError(XlexportError, ValueError):
    """A checkpoint is damaged, unsafe to read, or of a kind that no reader knows."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """The path of a checkpoint does not exist, or is a folder without a checkpoint."""


class MissingAnswerError(CheckpointError):
    """A checkpoint lacks a setting without which its model cannot be made."""

    def __init__(
        self,
        message: str = "",
        hint: str | None = None,
        placeholders: Mapping[str, Any] | None = None,
        fields: tuple[str, ...] = (),
    ) -> None:
        """Keep what is needed to describe the checkpoint all the same.

        Args:
            hint: the options that give the setting.
            placeholders: settings with which the checkpoint can be read, for nothing but to describe it.
            fields: fields of the configuration that these settings fill.
        """
        super().__init__(message, hint)
        self.placeholders, self.fields = placeholders or {}, fields


class TrustError(XlexportError, PermissionError):
    """Code of others would run, but the user did not say that it may."""


class GraphError(XlexportError, ValueError):
    """A graph of others that cannot be verified: it is damaged, unsafe to run, carries no state, or does not run."""


class ArrayFileError(XlexportError, ValueError):
    """A file of arrays is missing, damaged or too large, or holds other things than numbers."""


class ExportError(XlexportError, RuntimeError):
    """A model could not be exported, or an exported graph is not what its spec says."""


class OperatorError(ExportError):
    """A model computes with an operator that no graph can have; PyTorch's name of it is the first word."""


class ParityError(XlexportError, RuntimeError):
    """A bundle's results differ from the trained model's by more than the tolerance, so it is not published."""


class ReferenceCodeError(XlexportError, TypeError):
    """Eager code that a bundle should be compared with fails, or does not return log-probabilities and a state."""


class QuantizationError(XlexportError, RuntimeError):
    """A bundle cannot be quantized, or loses more bits per token than the limit, so nothing is written."""


class ResumeError(XlexportError, ValueError):
    """An interrupted run cannot be continued: bundle, options or inputs changed, or it left something broken."""


class WorkerError(XlexportError, RuntimeError):
    """A process that does part of a run has ended or was killed, so the run cannot be completed."""


class OutputExistsError(XlexportError, FileExistsError):
    """The output path exists and must not be replaced."""


class OutputFolderError(XlexportError, FileNotFoundError):
    """The folder that the output should be written into does not exist."""


class MissingDependencyError(XlexportError, ImportError):
    """A package of an extra is not installed; the message holds the pip line that installs it."""
