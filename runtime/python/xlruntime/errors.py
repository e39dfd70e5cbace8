"""Errors of `xlruntime`, one class for each code of docs/bundle_format.md.

The names and codes::

    HintedError
    └── XlruntimeError                                      runtime
        ├── BundleError (ValueError)                        base of all problems of a bundle
        │   ├── BundleNotFoundError (FileNotFoundError)     bundle_not_found
        │   ├── BundleFormatError                           bundle_format
        │   ├── BundleDamagedError                          bundle_damaged
        │   ├── BundleMismatchError                         bundle_mismatch
        │   └── BundleGraphError                            bundle_graph
        ├── StateError (ValueError)                         base of all problems of a saved state
        │   ├── StateDamagedError                           state_damaged
        │   └── StateMismatchError                          state_mismatch
        ├── OptionError (ValueError)                        option
        ├── TokenError (ValueError)                         token
        ├── TextError (ValueError)                          text
        │   └── TooLongError                                too_long
        ├── VocabularyError (ValueError)                    vocabulary
        ├── ArgumentError (TypeError)                       argument
        ├── ProviderError (RuntimeError)                    provider
        └── StepTimeoutError (TimeoutError)                 timeout

Every message is one line: the place, the problem, and the expected and found values. The hint is a field. Characters
that a terminal cannot show are escaped, and the middle of a long message or hint is left out.
"""

from typing import ClassVar

from .messages import bounded

__all__ = [
    "ArgumentError",
    "BundleDamagedError",
    "BundleError",
    "BundleFormatError",
    "BundleGraphError",
    "BundleMismatchError",
    "BundleNotFoundError",
    "HintedError",
    "OptionError",
    "ProviderError",
    "StateDamagedError",
    "StateError",
    "StateMismatchError",
    "StepTimeoutError",
    "TextError",
    "TokenError",
    "TooLongError",
    "VocabularyError",
    "XlruntimeError",
    "error_code",
]


class HintedError(Exception):
    """An error that may carry a hint for the user; its text is message and hint in one line."""

    def __init__(self, message: str = "", hint: str | None = None) -> None:
        """Keep the problem with its place, and what the user can do about it."""
        self.message = bounded(message)
        self.hint = None if hint is None else bounded(hint, 450)
        super().__init__(self.message)

    def __str__(self) -> str:
        return " ".join(filter(None, (self.message, self.hint)))


class XlruntimeError(HintedError):
    """Base of all errors that this package raises on purpose; `code` names the kind in all runtimes."""

    code: ClassVar[str] = "runtime"


class BundleError(XlruntimeError, ValueError):
    """Base of the problems of a bundle."""


class BundleNotFoundError(BundleError, FileNotFoundError):
    """The path is not a bundle."""

    code = "bundle_not_found"


class BundleFormatError(BundleError):
    """The manifest is of another format, contradicts itself, or requires what this runtime lacks."""

    code = "bundle_format"


class BundleDamagedError(BundleError):
    """A file of the bundle is missing, or differs from its digest."""

    code = "bundle_damaged"


class BundleMismatchError(BundleError):
    """The bundle is not the one that the caller expects."""

    code = "bundle_mismatch"


class BundleGraphError(BundleError):
    """A graph cannot be loaded or run, or it is not the graph that the manifest describes."""

    code = "bundle_graph"


class StateError(XlruntimeError, ValueError):
    """Base of the problems of a saved state."""


class StateDamagedError(StateError):
    """A file is not a saved state, or differs from what was saved."""

    code = "state_damaged"


class StateMismatchError(StateError):
    """A state was saved from another bundle, by another version, or under other settings."""

    code = "state_mismatch"


class OptionError(XlruntimeError, ValueError):
    """A setting is out of range, or settings contradict each other; the message lists all problems."""

    code = "option"


class TokenError(XlruntimeError, ValueError):
    """Token ids lie outside the vocabulary."""

    code = "token"


class TextError(XlruntimeError, ValueError):
    """Text is not valid UTF-8 or empty, or the bundle has no tokenizer for it."""

    code = "text"


class TooLongError(TextError):
    """A document or source is longer than the model reads."""

    code = "too_long"


class VocabularyError(XlruntimeError, ValueError):
    """The file of a vocabulary or a tokenizer is invalid; the message lists the problems."""

    code = "vocabulary"


class ArgumentError(XlruntimeError, TypeError):
    """An argument is of another kind than expected, such as one text instead of a list of texts."""

    code = "argument"


class ProviderError(XlruntimeError, RuntimeError):
    """ONNX Runtime is missing, installed twice, or lacks the requested execution provider."""

    code = "provider"


class StepTimeoutError(XlruntimeError, TimeoutError):
    """A step took longer than the `step_timeout` of `load`, and was ended."""

    code = "timeout"


def error_code(error: BaseException) -> str:
    """Return the code of any error: `file` and `memory` for Python's own, `internal` for unexpected ones."""
    if isinstance(error, XlruntimeError):
        return error.code
    return "file" if isinstance(error, OSError) else "memory" if isinstance(error, MemoryError) else "internal"
