"""Run xlexport bundles on ONNX Runtime, without PyTorch.

The logger "xlruntime" reports the steps of opening a bundle at the levels INFO and DEBUG. For example::

    import xlruntime

    model = xlruntime.load("bundle")
    stream = model.stream()
    stream.feed("Call me Ishmael. ").log_probs  # natural logarithms, one for each token
"""

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bundle import Bundle
    from .devices import Device
    from .documents import Document
    from .errors import (
        ArgumentError,
        BundleDamagedError,
        BundleError,
        BundleFormatError,
        BundleGraphError,
        BundleMismatchError,
        BundleNotFoundError,
        OptionError,
        ProviderError,
        StateDamagedError,
        StateError,
        StateMismatchError,
        StepTimeoutError,
        TextError,
        TokenError,
        TooLongError,
        VocabularyError,
        XlruntimeError,
        error_code,
    )
    from .evaluation import EvaluationSettings
    from .known_answers import CheckResult
    from .load_options import LoadOptions
    from .memory import Memory
    from .model import Model, load
    from .prefix_cache import PrefixCache
    from .sampling import Random, Sampling
    from .scores import DocumentScore, TokenScores
    from .step_model import StepModel, StepStream, load_step_model
    from .stops import GrowingText
    from .stream import NonFiniteScoreWarning, Scores, Stream
    from .translator import SearchOptions, Translation, Translator, load_translator
    from .words import WordScores

__all__ = [
    "ArgumentError",
    "Bundle",
    "BundleDamagedError",
    "BundleError",
    "BundleFormatError",
    "BundleGraphError",
    "BundleMismatchError",
    "BundleNotFoundError",
    "CheckResult",
    "Device",
    "Document",
    "DocumentScore",
    "EvaluationSettings",
    "GrowingText",
    "LoadOptions",
    "Memory",
    "Model",
    "NonFiniteScoreWarning",
    "OptionError",
    "PrefixCache",
    "ProviderError",
    "Random",
    "Sampling",
    "Scores",
    "SearchOptions",
    "StateDamagedError",
    "StateError",
    "StateMismatchError",
    "StepModel",
    "StepStream",
    "StepTimeoutError",
    "Stream",
    "TextError",
    "TokenError",
    "TokenScores",
    "TooLongError",
    "Translation",
    "Translator",
    "VocabularyError",
    "WordScores",
    "XlruntimeError",
    "__version__",
    "error_code",
    "load",
    "load_step_model",
    "load_translator",
]

__version__ = "0.2.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # an application decides what is shown

# The modules of all public names. They are imported, in this order, until one has the name that is asked for.
MODULES = (
    *("errors", "bundle", "devices", "documents", "evaluation", "known_answers", "load_options", "memory"),
    *("model", "prefix_cache", "sampling", "scores", "step_model", "stops", "stream", "translator", "words"),
)


def __getattr__(name: str) -> Any:
    """Import what the name needs when it is first asked for."""
    if name in MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    for module in MODULES if name in __all__ else ():
        if (value := getattr(importlib.import_module(f"{__name__}.{module}"), name, None)) is not None:
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the package, whether they are imported or not."""
    return sorted({*globals(), *__all__})
