"""Which tokens begin with white space, and so show that the word before them has ended."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..documents import Tokenizer, no_boundaries

__all__ = ["starts_word"]


def starts_word(tokenizer: Tokenizer, vocab_size: int) -> npt.NDArray[np.bool_]:
    """Return for each token id (vocab_size,) whether the token begins with white space, or ends the text.

    Tokens that end the text are the special ones of a tokenizer.json, the control pieces of SentencePiece, and the
    `line_end` of a vocabulary. A model of bytes has none.

    Raises:
        OptionError: the tokens do not show where words end.
    """
    starts = np.zeros(vocab_size, np.bool_)
    ids = [number for number in tokenizer.word_starts() if 0 <= number < vocab_size]
    if not ids:
        raise no_boundaries("no token of this vocabulary begins with white space")
    starts[ids] = True
    return starts
