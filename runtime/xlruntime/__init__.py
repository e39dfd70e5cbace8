"""Run xlexport bundles on ONNX Runtime, without PyTorch.

For example::

    import xlruntime

    model = xlruntime.load("bundle")
    stream = model.stream()
    stream.feed("Call me Ishmael. ").log_probs  # natural logarithms, one a token
"""

from .documents import Document
from .errors import (
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

__all__ = [
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
    "StateError",
    "StepTimeoutError",
    "Stream",
    "TextError",
    "TokenError",
    "TokenScores",
    "VocabularyError",
    "XlruntimeError",
    "load",
]
