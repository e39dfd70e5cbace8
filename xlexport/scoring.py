"""Documents for the `score` command, and how it prints what it finds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

import click
import numpy as np

from xlexport.cli_output import print_json, tell
from xlruntime import Document, DocumentScore, TextError, TokenError, TokenScores
from xlruntime.spec import Evaluation
from xlruntime.text import Tokenizer, continuation

__all__ = [
    "documents_of",
    "print_document",
    "print_generated",
    "print_losses",
    "print_newlines",
    "print_segmentation",
    "printing_tokens",
    "require_scored",
]

LN2 = math.log(2)


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
    words = (stdin.read() if str(path) == "-" else path.read_bytes()).split()
    try:
        return Document(name, np.array([int(word) for word in words], np.int64))
    except (ValueError, OverflowError) as error:
        raise TokenError(
            f"{name}: not token ids separated by white space ({error}). Leave out --ids for text."
        ) from error


def require_scored(score: DocumentScore) -> None:
    """Refuse a document with nothing to score; its first token has no context.

    Raises:
        TextError: it has fewer than two tokens.
    """
    if not score.scored_tokens:
        raise TextError(
            f"{score.document}: {score.tokens} of at least 2 tokens, so nothing to score. Give a longer text."
        )


def print_segmentation(evaluation: Evaluation) -> None:
    """Say so where the scores depend on how the document is cut."""
    if evaluation.segmentation_matters:
        tell(f"Without same_length the scores depend on the segment length, which is {evaluation.segment_len}.")


def print_document(score: DocumentScore, as_json: bool, to_stderr: bool) -> None:
    """The total of a document: an object, or a line."""
    if as_json:
        print_json(asdict(score), err=to_stderr)
        return
    per_byte = "" if score.bits_per_byte is None else f"{score.bits_per_byte:.4f} bits per byte, "
    click.echo(
        f"{score.document}: {score.tokens:,} tokens, {per_byte}{score.bits_per_token:.4f} bits per token, "
        f"perplexity {score.perplexity:.4g}, {score.tokens_per_second:,.0f} tokens/s",
        err=to_stderr,
    )


def print_newlines(tokenizer: Tokenizer) -> None:
    """Say so where the tokens do not hold a document's newlines."""
    if tokenizer.merges_newlines:
        tell("The tokenizer takes newlines for spaces, so the bits are no code for where lines end.")


def print_losses(score: DocumentScore) -> None:
    """Say what of a document the tokens do not hold, on which its bits per byte depend."""
    if score.dropped_bytes:
        tell(
            f"{score.document}: {score.dropped_bytes:,} bytes have no symbol in the vocabulary (newlines), so they "
            "were left out; ratios are of what is covered, as in published figures."
        )
    if score.unknown_tokens:
        tell(
            f"{score.document}: {score.unknown_tokens:,} of {score.tokens:,} tokens stand for what the vocabulary "
            "lacks, so the bits are no code for the text."
        )


def printing_tokens(parts: Iterator[TokenScores], tokenizer: Tokenizer) -> Iterator[DocumentScore]:
    """The totals of documents as they end, and on the way an object for each token as soon as it is scored."""
    for part in parts:
        _print_tokens(part, tokenizer)
        if part.summary is not None:
            yield part.summary


def _print_tokens(part: TokenScores, tokenizer: Tokenizer) -> None:
    columns = zip(
        *(array.tolist() for array in (part.index, part.tokens, part.starts, part.ends, part.log_probs, part.context)),
        strict=True,
    )
    for index, token, start, end, log_prob, context in columns:
        print_json(
            {
                "document": part.document,
                "index": index,
                "token": tokenizer.decode(np.array([token])),
                "id": token,
                "start": start,
                "end": end,
                "log_prob": log_prob,
                "surprisal_bits": -log_prob / LN2,
                "context": context,
            }
        )


def print_generated(prompt: bytes, tokens: Iterator[int], tokenizer: Tokenizer, as_json: bool) -> None:
    """The continuation: one object, or the text once it is complete (a character may be several tokens)."""
    ids, beginning = list(tokens), prompt.decode("utf-8", "replace")
    text = continuation(tokenizer, beginning, tokenizer.encode_piece(prompt, None), np.array(ids, np.int64))
    if as_json:
        print_json({"prompt": beginning, "text": text, "ids": ids})
    else:
        click.echo(beginning + text)
