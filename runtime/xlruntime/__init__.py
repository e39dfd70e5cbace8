"""Run xlexport bundles on ONNX Runtime, without PyTorch.

The logger "xlruntime" reports what opening a bundle does, at the levels INFO and DEBUG. For example::

    import xlruntime

    model = xlruntime.load("bundle")
    stream = model.stream()
    stream.feed("Call me Ishmael. ").log_probs  # natural logarithms, one a token
"""

import logging

from .beam_search import SearchOptions
from .documents import Document
from .errors import (
    ArgumentError,
    BundleError,
    BundleNotFoundError,
    OptionError,
    ProviderError,
    StateError,
    StepTimeoutError,
    TextError,
    TokenError,
    VocabularyError,
    XlruntimeError,
)
from .generation import Sampling
from .model import Model, load
from .scores import DocumentScore, TokenScores
from .stream import NonFiniteScoreWarning, Scores, Stream
from .translator import Translation, Translator, load_translator
from .words import WordScores

__all__ = [
    "ArgumentError",
    "BundleError",
    "BundleNotFoundError",
    "Document",
    "DocumentScore",
    "Model",
    "NonFiniteScoreWarning",
    "OptionError",
    "ProviderError",
    "Sampling",
    "Scores",
    "SearchOptions",
    "StateError",
    "StepTimeoutError",
    "Stream",
    "TextError",
    "TokenError",
    "TokenScores",
    "Translation",
    "Translator",
    "VocabularyError",
    "WordScores",
    "XlruntimeError",
    "__version__",
    "load",
    "load_translator",
]

__version__ = "0.1.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # an application decides what is shown
