"""Run xlexport bundles on ONNX Runtime, without PyTorch.

The logger "xlruntime" reports the steps of opening a bundle at the levels INFO and DEBUG. For example::

    import xlruntime

    model = xlruntime.load("bundle")
    stream = model.stream()
    stream.feed("Call me Ishmael. ").log_probs  # natural logarithms, one for each token
"""

import logging

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
from .load_options import LoadOptions
from .memory import Memory
from .model import Model, load
from .sampling import Random, Sampling
from .scores import DocumentScore, TokenScores
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
    "ProviderError",
    "Random",
    "Sampling",
    "Scores",
    "SearchOptions",
    "StateDamagedError",
    "StateError",
    "StateMismatchError",
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
    "load_translator",
]

__version__ = "0.2.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # an application decides what is shown
