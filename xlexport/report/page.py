"""One HTML page about one document: its text coloured by surprisal, with everything the page needs inside it."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

import numpy as np

from xlexport import __version__
from xlexport.errors import OutputExistsError
from xlexport.report.colours import LEVELS, css_colours
from xlexport.report.packing import CHUNK, Chunk, Packer, bytes_for, pack
from xlexport.report.page_text import text_of_bytes, text_of_ids, token_labels
from xlexport.scoring.inputs import STDIN, Input, Reading, documents
from xlexport.scoring.remarks import NEWLINES_MERGED, losses, segmentation
from xlruntime import Document, DocumentScore, TextError
from xlruntime.documents import as_ids, check_ids
from xlruntime.evaluation import EvaluationSettings
from xlruntime.model import Model

__all__ = ["check_page", "read_whole", "write_report"]

LONGEST_BYTES = 32 << 20  # of a document: browsers do not open pages much longer than what it gives
SCRIPTS = ("data.js", "text.js", "measures.js", "panels.js", "report.js")  # parts of one module, in this order
LEAST_CEILING = 12  # bits of a token that end the scale: those of a blind guess, but no fewer than these
ARCHITECTURES = {"transformer_xl": "Transformer-XL", "reformer": "Reformer"}
PLAIN_NAMES = {"bundle", "model", "checkpoint", "out", "output"}  # of folders; they name no model
WORD_CEILING = 32  # bits of a word that end the scale, unless a token's does later
Progress = Callable[[int], AbstractContextManager[Callable[[int], None]]]  # a length gives what is told of each advance


def check_page(output: Path, force: bool) -> None:
    """Refuse a file that cannot be written, or must not be replaced, before any work is done.

    Raises:
        OutputExistsError: something stands there that is not a file, or it is one and `force` is off.
        FileNotFoundError: its folder does not exist.
    """
    if not output.parent.is_dir():
        raise FileNotFoundError(f"{output.parent}: no such folder to write {output.name} into. Create it first.")
    if output.is_dir() or (output.exists() and not output.is_file()):
        raise OutputExistsError(f"{output}: exists and is not a file, so it is never replaced. Give another path.")
    if output.is_symlink() and not output.exists():
        raise OutputExistsError(f"{output}: a link that leads nowhere. Remove it, or give another path.")
    if output.exists() and not force:
        raise OutputExistsError(f"{output}: a file is there already. Add --force to replace it, or give another path.")


def read_whole(path: Path | None, ids: bool, stdin: BinaryIO) -> Document:
    """A document with its bytes, or with its token ids; `path` None is standard input, gzip is unpacked.

    Raises:
        OSError, TextError, TokenError: it cannot be read, or does not hold ids.
    """
    given = Input(STDIN if path is None else path.name, path)
    (document,) = documents([given], Reading(ids=ids), stdin, keep=False)
    source = cast(Any, document.source)
    return Document(given.name, np.concatenate([np.zeros(0, np.int64), *source]) if ids else source.read())


def write_report(
    model: Model,
    document: Document,
    output: Path,
    *,
    top: int = 5,
    title: str | None = None,
    force: bool = False,
    progress: Progress = lambda length: contextlib.nullcontext(lambda advance: None),
    **evaluation: Any,
) -> DocumentScore:
    """Score `document` and write the page about it, whole or not at all.

    Args:
        document: whose source is bytes or token ids.
        top: likeliest tokens that the page shows for each, 0 to 10.
        title: of the page; None is the document's name.
        force: replace a file at `output`.
        progress: opened with the document's length in what its offsets count, and told how far scoring came since.
        evaluation: settings, see `Model.evaluation`.

    Raises:
        OptionError: a setting or `top` is out of range, or the bundle has no detail graph.
        TextError, TokenError: the document is too short, too long, or not what the tokenizer reads.
        OutputExistsError, FileNotFoundError: as `check_page`.
    """
    check_page(output, force)
    source = document.source
    if isinstance(source, bytes):
        if len(source) > LONGEST_BYTES:
            raise TextError(
                f"{document.name}: {len(source):,} bytes, but at most {LONGEST_BYTES:,} are possible: browsers open no "
                "longer page. Give a part of it."
            )
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
    summary, reached = None, 0
    with progress(len(text.after) - 1) as advance:
        for part in model.score_tokens([document], detail=top, **evaluation):
            chunks += packer.add(part)
            summary = part.summary
            advance(int(part.ends.max(initial=reached)) - reached)
            reached = int(part.ends.max(initial=reached))
    if summary is None or not summary.scored_tokens:
        raise TextError(f"{document.name}: fewer than 2 tokens, so nothing to score. Give a longer text.")
    title = (title or document.name).encode("utf-8", "replace").decode()  # names of files may be any bytes
    about = _about(model, settings, summary, chunks, top, title)
    labels = pack(json.dumps(token_labels(packer.used, model.tokenizer)).encode("ascii"))
    with _publishing(output, force) as file:
        file.writelines(_page(about, labels, chunks))
    return summary


def _about(
    model: Model, settings: EvaluationSettings, summary: DocumentScore, chunks: Iterable[Chunk], top: int, title: str
) -> dict[str, Any]:
    """What a page knows besides its blocks."""
    vocab_size = model.bundle.vocab_size
    uniform = math.ceil(math.log2(vocab_size))  # bits of a blind guess, the most that entropy can be
    token = max(LEAST_CEILING, uniform)
    return {
        "title": title,
        "tokens": summary.tokens,
        "chunkTokens": CHUNK,
        "chunks": [[chunk.tokens, chunk.units, chunk.width_bytes] for chunk in chunks],
        "idBytes": bytes_for(vocab_size - 1),
        "top": top,
        "vocabSize": vocab_size,
        "levels": LEVELS,
        "ceiling": {"token": token, "word": max(WORD_CEILING, token), "entropy": max(1, uniform)},
        "hasBytes": bool(summary.bytes),
        "unit": "byte" if _counts_bytes(summary) else "token",
        "figures": _figures(summary),
        "notes": _notes(model, settings, summary),
    }


def _figures(summary: DocumentScore) -> list[tuple[str, str]]:
    """The document's totals, the most telling first."""
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
    """Whether each token is a byte."""
    return summary.bytes == summary.tokens and summary.bits_per_byte == summary.bits_per_token


def _notes(model: Model, settings: EvaluationSettings, summary: DocumentScore) -> list[str]:
    """What a reader must know of how the document was scored, in sentences: first the model, then what to beware of."""
    memory = "the whole document in one step" if settings.whole else f"segments of {settings.segment_len:,}"
    notes = [f"{_model_name(model)}; {memory}" + ("." if settings.whole else f", memory {settings.most_rows:,}.")]
    if said := segmentation(settings):
        notes.append(said)
    if model.tokenizer.merges_newlines:
        notes.append(NEWLINES_MERGED)
    return notes + losses(summary)


def _model_name(model: Model) -> str:
    """What computed the scores: architecture, sizes, and the bundle's name where it tells more than that it is one."""
    bundle = model.bundle
    layers = bundle.config.get("n_layer") or len(bundle.config.get("attn_layers", ()))
    sizes = [f"{layers} layers of {bundle.config['d_model']:,}"] if layers and "d_model" in bundle.config else []
    name = model.folder.resolve().name
    parts = [
        ARCHITECTURES.get(bundle.architecture, bundle.architecture),
        *sizes,
        f"vocabulary of {bundle.vocab_size:,}",
        bundle.precision,
        *([] if name.removesuffix(".bundle").lower() in PLAIN_NAMES else [name]),
    ]
    return ", ".join(parts)


def _page(about: Mapping[str, Any], labels: str, chunks: Iterable[Chunk]) -> Iterator[str]:
    """The page, piece by piece. Nothing of the document is markup or script in it: its text is in packed blocks."""
    style = css_colours() + _file("report.css")
    script = "".join(_file(name) for name in SCRIPTS)
    values = {
        "policy": f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; base-uri 'none'; "
        "form-action 'none'",
        "title": html.escape(about["title"]),
        "style": style,
        "script": script,
        "version": html.escape(__version__),
        "about": json.dumps(about).replace("<", "\\u003c"),
    }
    before, _, after = _file("template.html").partition("{{blocks}}")
    yield _filled(before, values)
    yield _block("labels", labels)
    for number, chunk in enumerate(chunks):
        yield _block(f"main-{number}", chunk.main)
        yield _block(f"detail-{number}", chunk.detail)
    yield _filled(after, values)


def _block(name: str, packed: str) -> str:
    return f'<script type="text/plain" id="{name}">{packed}</script>\n'


def _filled(template: str, values: Mapping[str, str]) -> str:
    """A template with its {{names}} replaced, in one pass: what is put in is not looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], template)


def _file(name: str) -> str:
    return files("xlexport.report").joinpath("assets", name).read_text("utf-8")


def _digest(content: str) -> str:
    """What a content security policy calls an inline script or style by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


@contextlib.contextmanager
def _publishing(output: Path, force: bool) -> Iterator[TextIO]:
    """A temporary file beside `output` that takes its place when the block succeeds, and vanishes when it fails."""
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        check_page(output, force)  # somebody else may have written it meanwhile
        os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)
