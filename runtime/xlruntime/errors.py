"""Errors of `xlruntime`.

    RepairableError
    └── XlruntimeError
        ├── BundleError (ValueError)                        a bundle that is broken, changed or too new
        │   └── BundleNotFoundError (FileNotFoundError)     no bundle, or one without a file that it lists
        ├── ProviderError (RuntimeError)                    no ONNX Runtime, or no execution provider for the device
        ├── StateError (ValueError)                         a stream's state that does not belong here
        ├── TokenError (ValueError)                         token ids outside the vocabulary
        ├── TextError (ValueError)                          text that cannot be scored
        ├── VocabularyError (ValueError)                    symbols or rules that make no vocabulary
        ├── OptionError (ValueError)                        a setting out of range
        └── StepTimeoutError (TimeoutError)                 a step that took longer than `step_timeout`

Every message is one line: what is wrong, where, what was expected and what was found. How to repair it is a field.
"""

__all__ = [
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
    """An error that may say how to repair what is wrong; its text is message and repair in one line."""

    def __init__(self, message: str = "", repair: str | None = None) -> None:
        """Keep what is wrong, and where; and what the user can do about it, if there is anything to suggest."""
        super().__init__(message)
        self.message = message
        self.repair = repair

    def __str__(self) -> str:
        return " ".join(filter(None, (self.message, self.repair)))


class XlruntimeError(RepairableError):
    """Base of all errors that this package raises on purpose."""


class BundleError(XlruntimeError, ValueError):
    """A bundle has a broken manifest, a file that is not what the manifest says, or a newer format version."""


class BundleNotFoundError(BundleError, FileNotFoundError):
    """The path leads to no bundle, or a file that the bundle lists is missing."""


class ProviderError(XlruntimeError, RuntimeError):
    """ONNX Runtime is missing, installed twice, or without the execution provider that was asked for."""


class StateError(XlruntimeError, ValueError):
    """A saved stream is damaged, or was saved from another bundle or under other settings."""


class TokenError(XlruntimeError, ValueError):
    """Token ids lie outside the vocabulary."""


class TextError(XlruntimeError, ValueError):
    """Text is not valid UTF-8 where the tokenizer needs text, or there is none to continue or to tokenize with."""


class VocabularyError(XlruntimeError, ValueError):
    """Symbols are empty, twice there or not of the vocabulary's kind; the message lists all that is wrong."""


class OptionError(XlruntimeError, ValueError):
    """A setting is out of range, or settings do not go together; the message lists all that are wrong."""


class StepTimeoutError(XlruntimeError, TimeoutError):
    """A step took longer than the `step_timeout` of `load`, and was ended."""
