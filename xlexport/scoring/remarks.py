"""Documents for the `evaluate` command, and what commands say about documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import click
import numpy as np

from xlexport.scoring.documents import MARK, ids_of_words
from xlexport.terminal import print_json, standard_output, tell
from xlruntime import Document, DocumentScore, TextError
from xlruntime.documents import Tokenizer, continuation
from xlruntime.evaluation import EvaluationSettings

__all__ = [
    "NEWLINES_MERGED",
    "documents_of",
    "losses",
    "nothing_to_score",
    "print_generated",
    "print_losses",
    "print_newlines",
    "print_segmentation",
    "segmentation",
]

NEWLINES_MERGED = "The tokenizer takes newlines for spaces, so the bits are no code for where lines end."


def documents_of(files: Sequence[Path], ids: bool, stdin: BinaryIO) -> list[Document]:
    """A document a file, `-` for standard input, none of it read yet but for ids.

    Raises:
        FileNotFoundError, TextError: files are missing, folders or too short; lists all of them.
        TokenError: with `ids`, a file that holds something else than whole numbers.
    """
    problems, missing = [], False
    for path in files:
        if str(path) == "-":
            continue
        if not path.exists() or path.is_dir():
            missing = True
            problems.append(f"{path}: {'a folder' if path.is_dir() else 'no such file'}")
        elif path.is_file() and path.stat().st_size < 2:  # pipes and devices show when they are read
            problems.append(f"{path}: {path.stat().st_size} bytes, at least 2 tokens are needed to score anything")
    if problems:
        kind = FileNotFoundError if missing else TextError
        raise kind("; ".join(problems) + ". Give text files that are not empty.")
    return [_document(path, ids, stdin) for path in files]


def _document(path: Path, ids: bool, stdin: BinaryIO) -> Document:
    name = "standard input" if str(path) == "-" else str(path)
    if not ids:
        return Document(name, stdin if str(path) == "-" else path)
    raw = stdin.read() if str(path) == "-" else path.read_bytes()
    return Document(name, ids_of_words(raw.removeprefix(MARK).split(), name))


def nothing_to_score(score: DocumentScore) -> TextError | None:
    """What is wrong with a document that has no token with a score; its first token has no context."""
    if score.scored_tokens:
        return None
    return TextError(f"{score.document}: {score.tokens} of at least 2 tokens, so nothing to score. Give a longer text.")


def segmentation(evaluation: EvaluationSettings) -> str | None:
    """That the scores depend on how the document is cut; None where they do not."""
    if not evaluation.segmentation_matters:
        return None
    return f"Without same_length the scores depend on the segment length, which is {evaluation.segment_len}."


def print_segmentation(evaluation: EvaluationSettings) -> None:
    """Say so where the scores depend on how the document is cut."""
    if said := segmentation(evaluation):
        tell(said)


def print_newlines(tokenizer: Tokenizer) -> None:
    """Say so where the tokens do not hold a document's newlines."""
    if tokenizer.merges_newlines:
        tell(NEWLINES_MERGED)


def losses(score: DocumentScore) -> list[str]:
    """What of a document the tokens do not hold, on which its bits per byte depend."""
    found = []
    if score.dropped_bytes:
        found.append(
            f"{score.dropped_bytes:,} bytes have no symbol in the vocabulary (newlines), so they were left out; "
            "ratios are of what is covered, as in published figures."
        )
    if score.unknown_tokens:
        found.append(
            f"{score.unknown_tokens:,} of {score.tokens:,} tokens stand for what the vocabulary lacks, so the bits "
            "are no code for the text."
        )
    return found


def print_losses(score: DocumentScore) -> None:
    """Say what of a document the tokens do not hold."""
    for said in losses(score):
        tell(f"{score.document}: {said}")


def print_generated(prompt: bytes, tokens: Iterator[int], tokenizer: Tokenizer, as_json: bool) -> None:
    """The continuation: one object, or the text once it is complete (a character may be several tokens)."""
    ids, beginning = list(tokens), prompt.decode("utf-8", "replace")
    text = continuation(tokenizer, beginning, tokenizer.encode_piece(prompt, None), np.array(ids, np.int64))
    if as_json:
        print_json({"prompt": beginning, "text": text, "ids": ids})
    else:
        with standard_output():
            click.echo(beginning + text)
