"""Errors of `xlruntime`.

    RepairableError
    └── XlruntimeError
        ├── BundleError (ValueError)                        a bundle is broken, changed or too new
        │   └── BundleNotFoundError (FileNotFoundError)     the bundle, or a file that it lists, is missing
        ├── ProviderError (RuntimeError)                    ONNX Runtime or the device's execution provider is missing
        ├── StateError (ValueError)                         a saved state is damaged or does not fit
        ├── TokenError (ValueError)                         token ids are outside the vocabulary
        ├── TextError (ValueError)                          text cannot be scored
        ├── VocabularyError (ValueError)                    symbols or rules do not form a vocabulary
        ├── OptionError (ValueError)                        a setting is out of range
        ├── ArgumentError (TypeError)                       an argument is of another kind than expected
        └── StepTimeoutError (TimeoutError)                 a step took longer than `step_timeout`

Every message is one line: the place, the problem, and the expected and found values. The repair is a field.
"""

__all__ = [
    "ArgumentError",
    "BundleError",
    "BundleNotFoundError",
    "OptionError",
    "ProviderError",
    "RepairableError",
    "StateError",
    "StepTimeoutError",
    "TextError",
    "TokenError",
    "VocabularyError",
    "XlruntimeError",
]


class RepairableError(Exception):
    """An error that may suggest a repair; its text is message and repair in one line."""

    def __init__(self, message: str = "", repair: str | None = None) -> None:
        """Keep the problem with its place, and a repair that the user can make, if there is one."""
        super().__init__(message)
        self.message = message
        self.repair = repair

    def __str__(self) -> str:
        return " ".join(filter(None, (self.message, self.repair)))


class XlruntimeError(RepairableError):
    """Base of all errors that this package raises on purpose."""


class BundleError(XlruntimeError, ValueError):
    """A bundle has a broken manifest, a file that differs from the manifest, or a newer format version."""


class BundleNotFoundError(BundleError, FileNotFoundError):
    """The path does not lead to a bundle, or a file that the bundle lists is missing."""


class ProviderError(XlruntimeError, RuntimeError):
    """ONNX Runtime is missing, installed twice, or lacks the requested execution provider."""


class StateError(XlruntimeError, ValueError):
    """A saved stream is damaged, or was saved from another bundle or under other settings."""


class TokenError(XlruntimeError, ValueError):
    """Token ids lie outside the vocabulary."""


class TextError(XlruntimeError, ValueError):
    """Text is not valid UTF-8, too long or empty, or the bundle has no tokenizer for it."""


class VocabularyError(XlruntimeError, ValueError):
    """Symbols are empty, duplicate or not of the vocabulary's kind; the message lists all problems."""


class OptionError(XlruntimeError, ValueError):
    """A setting is out of range, or settings contradict each other; the message lists all problems."""


class ArgumentError(XlruntimeError, TypeError):
    """An argument is of another kind than expected, such as one text instead of a list of texts."""


class StepTimeoutError(XlruntimeError, TimeoutError):
    """A step took longer than the `step_timeout` of `load`, and was ended."""
