"""The token ids that a bundle is verified on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from xlexport.errors import ExportError
from xlexport.sample import sample_text
from xlruntime import spec
from xlruntime.documents import Tokenizer, check_ids
from xlruntime.tokenizers.vocabulary import Vocabulary
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

__all__ = ["check_verify_text", "verify_ids"]

RANDOM_IDS = 100_000
FEWEST_KNOWN = 1_000  # with fewer known words or characters of the sample text, random ids verify more


def check_verify_text(tokenizer: spec.Tokenizer, text: Path | None) -> None:
    """Raise ExportError or OSError if a text is not there, or the bundle could not use it."""
    if text is None:
        return
    if tokenizer.kind == "none":
        raise ExportError(f"{text}: the bundle has no tokenizer, so random ids verify it.", repair="Leave out --text.")
    if text.is_dir():
        raise ExportError(f"{text}: is a folder, expected a text file.")
    if not text.stat().st_size and text.is_file():  # not opened, because a pipe can be read only once
        raise ExportError(f"{text}: the file is empty.", repair="Use another text.")


def verify_ids(bundle: spec.Bundle, tokenizer: Tokenizer, text: Path | None) -> npt.NDArray[np.int64]:
    """Return token ids to verify on: those of `text` or of the sample text, or random ids.

    Tokens of the sample text that a vocabulary lacks are omitted, because unknown words verify little.

    Raises:
        TokenError, TextError, OSError: the text does not fit the bundle, or cannot be read.
    """
    check_verify_text(bundle.tokenizer, text)
    if text is not None:
        ids = tokenizer.encode(text.read_bytes())
    elif bundle.tokenizer.kind == "none":
        ids = _random_ids(bundle.vocab_size)
    elif isinstance(tokenizer, VocabularyTokenizer):
        ids = _known_ids(tokenizer.vocabulary)
    else:
        ids = tokenizer.encode(sample_text().encode("utf-8"))
    check_ids(ids, bundle.vocab_size, str(text or "the sample text"))
    return ids


def _known_ids(vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
    ids = VocabularyTokenizer(vocabulary, skip_unknown=True).encode(sample_text().encode("utf-8"))
    marks = [vocabulary.id_of(symbol) for symbol in (vocabulary.line_start, vocabulary.line_end)]
    known = np.count_nonzero(~np.isin(ids, [number for number in marks if number is not None]))
    return ids if known >= FEWEST_KNOWN else _random_ids(len(vocabulary))


def _random_ids(n_token: int) -> npt.NDArray[np.int64]:
    """Return random ids distributed like words (Zipf's law): every decade of ids has the same probability."""
    decades = np.random.default_rng(0).random(RANDOM_IDS) * np.log(n_token + 1)
    return np.clip(np.exp(decades).astype(np.int64) - 1, 0, n_token - 1)
