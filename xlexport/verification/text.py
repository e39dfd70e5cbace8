"""The token ids that a bundle is verified on, and the default text, which `quantize` also measures on."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.errors import ExportError
from xlexport.sample import sample_text, sample_text_name
from xlexport.scoring.documents import ids_of_words
from xlruntime.bundle import Bundle, TokenizerEntry
from xlruntime.documents import Tokenizer, check_ids
from xlruntime.errors import OptionError
from xlruntime.tokenizers.vocabulary import Vocabulary
from xlruntime.tokenizers.vocabulary_tokenizer import VocabularyTokenizer

__all__ = ["VerificationText", "check_verify_text", "default_text", "verify_ids", "verify_text"]

RANDOM_IDS = 100_000
RANDOM = "random token ids"
Possible = Callable[[], npt.NDArray[np.int64]]
FEWEST_KNOWN = 1_000  # with fewer known words or characters of the sample text, random ids verify more


@dataclass(frozen=True)
class VerificationText:
    """Token ids (n,), and what they are, for people."""

    ids: npt.NDArray[np.int64]
    name: str


def check_verify_text(tokenizer: TokenizerEntry, text: Path | None, as_ids: bool = False) -> None:
    """Raise ExportError, OptionError or OSError if a text is not there, or the bundle could not use it."""
    if text is None and as_ids:
        raise OptionError("--ids is for the file of --text.", hint="Add --text with a file of token ids.")
    if text is None:
        return
    if tokenizer.kind == "none" and not as_ids:
        raise ExportError(
            f"{text}: the bundle has no tokenizer, so random ids verify it.",
            hint="Add --ids if the file holds token ids separated by white space, or leave out --text.",
        )
    if text.is_dir():
        raise ExportError(f"{text}: is a folder, expected a text file.")
    if not text.stat().st_size and text.is_file():  # not opened, because a pipe can be read only once
        raise ExportError(f"{text}: the file is empty.", hint="Use another text.")


def verify_text(
    tokenizer: TokenizerEntry,
    vocab_size: int,
    reader: Tokenizer,
    text: Path | None,
    as_ids: bool = False,
    possible: Possible | None = None,
) -> VerificationText:
    """Return the tokens to verify on: those of `text` or of the default text, or random ids.

    Args:
        tokenizer: the bundle's entry, and `reader` what it declares.
        as_ids: the text holds token ids separated by white space.
        possible: returns the ids of which random ones are drawn; None: all ids.

    Raises:
        TokenError, TextError, OSError: the text does not fit the bundle, or cannot be read.
    """
    check_verify_text(tokenizer, text, as_ids)
    if text is not None:
        content = text.read_bytes().removeprefix(codecs.BOM_UTF8)
        ids = ids_of_words(content.split(), str(text)) if as_ids else reader.encode(content)
        walked = VerificationText(ids, str(text))
    elif (usual := default_text(tokenizer, reader)) is not None:
        walked = usual
    else:
        ids = np.arange(vocab_size) if possible is None else possible()
        # Like words (Zipf's law): every decade of ids has the same probability.
        decades = np.random.default_rng(0).random(RANDOM_IDS) * np.log(len(ids) + 1)
        walked = VerificationText(ids[np.clip(np.exp(decades).astype(np.int64) - 1, 0, len(ids) - 1)], RANDOM)
    check_ids(walked.ids, vocab_size, walked.name)
    return walked


def default_text(tokenizer: TokenizerEntry, reader: Tokenizer) -> VerificationText | None:
    """Return the real text for bundles whose user gives none; None if the tokenizer cannot read it.

    Tokens of the text that a vocabulary lacks are omitted, because unknown words verify and measure little.

    Args:
        tokenizer: the bundle's entry, and `reader` what it declares.
    """
    if tokenizer.kind == "none":
        return None
    if isinstance(reader, VocabularyTokenizer):
        ids = _known_ids(reader.vocabulary)
        return None if ids is None else VerificationText(ids, sample_text_name())
    return VerificationText(reader.encode(sample_text().encode("utf-8")), sample_text_name())


def verify_ids(bundle: Bundle, tokenizer: Tokenizer, text: Path | None, *more: Any) -> npt.NDArray[np.int64]:
    """Return the token ids of `verify_text` for an open bundle."""
    return verify_text(bundle.tokenizer, bundle.vocab_size, tokenizer, text, *more).ids


def _known_ids(vocabulary: Vocabulary) -> npt.NDArray[np.int64] | None:
    """Return the ids of the sample text's known tokens; None if there are too few."""
    ids = VocabularyTokenizer(vocabulary, skip_unknown=True).encode(sample_text().encode("utf-8"))
    marks = [vocabulary.id_of(symbol) for symbol in (vocabulary.line_start, vocabulary.line_end)]
    known = np.count_nonzero(~np.isin(ids, [number for number in marks if number is not None]))
    return ids if known >= FEWEST_KNOWN else None
