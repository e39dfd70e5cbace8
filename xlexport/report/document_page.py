"""Write one self-contained HTML page about one document: its text coloured by surprisal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from xlexport import atomic_output
from xlexport.atomic_output import check_file
from xlexport.callbacks import Progress, no_progress
from xlexport.page.assemble import COLOUR_LEVELS, bundle_note, ceilings, page_pieces, page_title
from xlexport.report.packing import CHUNK, Chunk, Packer, bytes_for, pack
from xlexport.report.page_text import text_of_bytes, text_of_ids, token_labels
from xlexport.scoring.totals import caveats, losses
from xlruntime import Document, DocumentScore, EvaluationSettings, Model, TextError, TokenScores
from xlruntime.documents import as_ids, check_ids

__all__ = ["read_for_page", "write_report"]

LONGEST_BYTES = 32 << 20  # of a document: browsers do not open much longer pages


def read_for_page(document: Document) -> Document:
    """Return a document with the bytes or token ids of its source, up to the limit of a page.

    Raises:
        TextError: the document exceeds the limit.
        OSError, TokenError: the document cannot be read, or does not hold token ids.
    """
    source: Any = document.source
    if isinstance(source, str | bytes | np.ndarray | list):
        return document
    if hasattr(source, "read"):
        raw = source.read(LONGEST_BYTES + 1)
        if len(raw) > LONGEST_BYTES:
            raise _too_long(document.name, f"more than {LONGEST_BYTES:,} bytes")
        return replace(document, source=raw)
    parts = [np.zeros(0, np.int64)]
    for ids in source:
        parts.append(ids)
        if sum(map(len, parts)) > LONGEST_BYTES:
            raise _too_long(document.name, f"more than {LONGEST_BYTES:,} tokens")
    return replace(document, source=np.concatenate(parts))


def _too_long(name: str, size: str) -> TextError:
    return TextError(
        f"{name}: {size}, but at most {LONGEST_BYTES:,} are possible, because browsers cannot open longer pages.",
        hint="Give a part of it.",
    )


def write_report(
    model: Model,
    document: Document,
    output: Path,
    *,
    top: int = 5,
    bos: int | bool | None = None,
    title: str | None = None,
    force: bool = False,
    progress: Progress = no_progress,
    watch: Callable[[TokenScores], None] = lambda part: None,
    **evaluation: Any,
) -> DocumentScore:
    """Score `document` and write the page about it, whole or not at all.

    Args:
        document: a document whose source is bytes or token ids.
        top: number of likeliest tokens that the page shows for each token, 0 to 10.
        bos: id of a token that the model reads before the document, so that its first token has a score, too.
        title: the page's title; None: the document's name.
        force: replace a file at `output`.
        progress: called with the scored length and the document's length, both in the unit of its offsets.
        watch: called with each part of the scores.
        evaluation: settings, see `Model.evaluation`.

    Raises:
        OptionError: a setting or `top` is out of range, or the bundle has no detail graph.
        TextError, TokenError: the document is too short, too long, or not what the tokenizer reads.
        OutputExistsError, OutputFolderError: as `atomic_output.check_file`.
    """
    check_file(output, force)
    source = document.source
    if isinstance(source, bytes):
        if len(source) > LONGEST_BYTES:
            raise _too_long(document.name, f"{len(source):,} bytes")
        text = text_of_bytes(source, model.tokenizer)
    elif isinstance(source, np.ndarray):
        ids = as_ids(source, document.name)
        check_ids(ids, model.bundle.vocab_size, document.name)
        text = text_of_ids(ids, model.tokenizer)
    else:
        raise TypeError(f"{document.name}: bytes or token ids are needed, found {type(source).__name__}")
    settings = model.evaluation(**evaluation)
    packer = Packer(text, model.bundle.vocab_size, top)
    chunks: list[Chunk] = []
    summary, end = None, 0
    for part in model.score_tokens([document], top=top, bos=bos, **evaluation):
        chunks += packer.add(part)
        watch(part)
        summary = part.summary
        end = int(part.ends.max(initial=end))
        progress(end, len(text.after) - 1)
    if summary is None or not summary.scored_tokens:
        raise TextError(f"{document.name}: fewer than 2 tokens, so nothing to score.", hint="Give a longer text.")
    title = page_title(title or document.name)
    about = _about(model, settings, summary, chunks, top, title)
    labels = pack(json.dumps(token_labels(packer.used, model.tokenizer)).encode("ascii"))
    with (
        atomic_output.file(output, lambda: check_file(output, force)) as path,
        path.open("w", encoding="utf-8", newline="\n") as file,
    ):
        file.writelines(page_pieces("document", about, _blocks(labels, chunks)))
    return summary


def _blocks(labels: str, chunks: Iterable[Chunk]) -> Iterator[tuple[str, str]]:
    yield "labels", labels
    for number, chunk in enumerate(chunks):
        yield f"main-{number}", chunk.main
        yield f"detail-{number}", chunk.detail


def _about(
    model: Model, settings: EvaluationSettings, summary: DocumentScore, chunks: Iterable[Chunk], top: int, title: str
) -> dict[str, Any]:
    """Return the data of a page except its blocks."""
    vocab_size = model.bundle.vocab_size
    return {
        "title": title,
        "sides": [["", bundle_note(model.bundle, model.folder, settings)]],
        "tokens": summary.tokens,
        "chunkTokens": CHUNK,
        "chunks": [[chunk.tokens, chunk.units, chunk.width_bytes] for chunk in chunks],
        "idBytes": bytes_for(vocab_size - 1),
        "top": top,
        "vocabSize": vocab_size,
        "levels": COLOUR_LEVELS,
        "ceiling": ceilings(vocab_size),
        "hasBytes": bool(summary.bytes),
        "unit": "byte" if _counts_bytes(summary) else "token",
        "figures": _figures(summary),
        "notes": [*caveats(settings, model.tokenizer), *losses(summary)],
    }


def _figures(summary: DocumentScore) -> list[tuple[str, str]]:
    """Return the document's totals, the most informative first."""
    same = _counts_bytes(summary)
    rows = [
        ("bits per byte", summary.bits_per_byte, ".3f"),
        ("bits per token", summary.bits_per_token, ".3f"),
        (f"perplexity per {'byte' if same else 'token'}", summary.perplexity, ",.4g"),
        ("tokens", summary.tokens, ","),
        ("words", summary.words or None, ","),
        ("bytes", summary.bytes or None, ","),
    ]
    hidden = {"bits per token", "tokens"} if same else set()  # tokens are bytes
    return [(name, format(value, style)) for name, value, style in rows if value is not None and name not in hidden]


def _counts_bytes(summary: DocumentScore) -> bool:
    """Return whether each token is a byte."""
    return summary.bytes == summary.tokens and summary.bits_per_byte == summary.bits_per_token
