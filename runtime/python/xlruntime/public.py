"""The names that `xlruntime` has for applications, which it imports when one of them is first asked for."""

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
    "error_code",
    "load",
    "load_translator",
]
