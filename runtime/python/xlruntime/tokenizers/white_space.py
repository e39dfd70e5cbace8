"""Which tokens begin with white space, and so show that the word before them has ended."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..documents import SPACES, Tokenizer
from ..errors import OptionError
from . import ByteTokenizer
from .libraries import SentencePieceTokenizer, TokenizersTokenizer
from .vocabulary import is_byte
from .vocabulary_tokenizer import VocabularyTokenizer

__all__ = ["starts_word"]


def starts_word(tokenizer: Tokenizer, vocab_size: int) -> npt.NDArray[np.bool_]:
    """Return for each token id (vocab_size,) whether the token begins with white space, or ends the text.

    Tokens that end the text are the special ones of a tokenizer.json, the control pieces of SentencePiece, and the
    `line_end` of a vocabulary. A model of bytes has none.

    Raises:
        OptionError: the tokens do not show where words end.
    """
    starts = np.zeros(vocab_size, np.bool_)
    ids = [number for number in _ids(tokenizer) if 0 <= number < vocab_size]
    if not ids:
        raise _refusal("no token of this vocabulary begins with white space")
    starts[ids] = True
    return starts


def _ids(tokenizer: Tokenizer) -> list[int]:
    if isinstance(tokenizer, ByteTokenizer):
        return [tokenizer.first_id + space for space in SPACES]
    if isinstance(tokenizer, TokenizersTokenizer | SentencePieceTokenizer):
        return tokenizer.word_starts()
    if not isinstance(tokenizer, VocabularyTokenizer):
        raise _refusal("this bundle has no tokenizer")
    vocabulary = tokenizer.vocabulary
    if vocabulary.kind == "words":
        raise _refusal("each token is a whole word, whose end is certain")
    ends = {vocabulary.line_end, vocabulary.space} - {None}
    return [
        number
        for number, symbol in enumerate(vocabulary.symbols)
        if symbol in ends or _is_space(symbol, vocabulary.kind)
    ]


def _is_space(symbol: str, kind: str) -> bool:
    if kind == "bytes":
        return is_byte(symbol) and int(symbol) in SPACES
    return symbol != "" and symbol[0].encode("utf-8", "replace") in SPACES


def _refusal(why: str) -> OptionError:
    return OptionError(f"no correction for word boundaries: {why}.", hint="Leave it out.")
