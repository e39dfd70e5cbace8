"""The reach of a model's memory: loss by context length, and relative effective context length (RECL).

The context length is the span of a layer's attention: the memory length at evaluation. The remembered rows were
themselves computed from earlier tokens, so through all layers a longer part of the document has an effect.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.analysis.recl import THRESHOLD, Recl, find_recl
from xlexport.callbacks import Progress, Tell, no_progress, silent
from xlexport.errors import XlexportError
from xlexport.scoring.documents import rereadable
from xlruntime import Document, Model, TextError
from xlruntime.documents import TextCounts
from xlruntime.errors import OptionError
from xlruntime.evaluation import SettingValue
from xlruntime.hub_cache import folder_name
from xlruntime.scores import LN2, perplexity, ratio
from xlruntime.token_reader import TokenReader

__all__ = [
    "ContextReport",
    "ContextText",
    "LengthScore",
    "ModelContext",
    "ReclOptions",
    "context_lines",
    "default_lengths",
    "measure_context",
    "names_of",
    "read_text",
    "share_name",
    "unit_of",
]

READ_TOKENS = 1 << 16
SHARES = (0.1, 0.5, 1.0)  # as in the paper's Table 8

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LengthScore:
    """The scores of the text with one memory length; a ratio is None if its divisor is zero or unknown."""

    mem_len: int
    context: float  # mean number of tokens that a prediction attended to
    scored_tokens: int
    nats: float
    bits_per_token: float
    bits_per_byte: float | None
    bits_per_char: float | None
    perplexity: float
    tokens_per_second: float


@dataclass(frozen=True)
class ModelContext:
    """One model's curve and RECL, and the settings that were used; `mem_len` is the bundle's own."""

    bundle: str
    mem_len: int
    segment_len: int
    settings: Mapping[str, SettingValue]
    lengths: tuple[LengthScore, ...]
    recl: tuple[Recl, ...]


@dataclass(frozen=True)
class ReclOptions:
    """The range in which to search for RECL; see `xlexport.analysis.recl`.

    Raises:
        OptionError: the message lists all values out of range.
    """

    start: int = 100
    step: int = 100
    longest: int | None = None  # None: the longest of the curve
    shares: tuple[float, ...] = SHARES
    threshold: float = THRESHOLD

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {value}, at least 1 is needed"
            for name, value in (("start", self.start), ("step", self.step))
            if value < 1
        ]
        if wrong := [share for share in self.shares if not 0 < share <= 1]:
            problems.append(f"shares of hard tokens are {wrong}, expected numbers above 0 and up to 1")
        if not self.shares:
            problems.append("shares of hard tokens are an empty list, expected one or more, for example 0.1 and 1")
        if not 0 < self.threshold < 1:
            problems.append(f"threshold is {self.threshold}, expected a number between 0 and 1")
        if self.longest is not None and self.longest < self.start + self.step:
            problems.append(
                f"longest is {self.longest}, at least start + step = {self.start + self.step} is needed to compare two"
            )
        if problems:
            raise OptionError("RECL: " + "; ".join(problems) + ".")


@dataclass(frozen=True)
class ContextReport:
    """Curves and RECL of a group of models on one text; `curve` lacks lengths that only RECL needs."""

    documents: tuple[str, ...]
    tokens: int
    scored_tokens: int
    full_context: bool  # whether only tokens with the longest context count
    recl: ReclOptions | None
    curve: tuple[int, ...]
    models: tuple[ModelContext, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields for JSON, with a separate field for each setting of a model."""
        fields = asdict(self)
        for model in fields["models"]:
            model.update(model.pop("settings"))
        return fields


@dataclass(frozen=True)
class ContextText:
    """Documents as one bundle's tokens.

    Attributes:
        documents: with token ids as their source.
        starts, ends: (N,) the place of each scored token in its document's text (see `TokenPiece`).
        index: (N,) the index of each scored token in its document.
        scored_bytes, scored_chars: bytes and characters of the scored tokens; 0 for documents given as ids.
    """

    documents: tuple[Document, ...]
    starts: Ids
    ends: Ids
    index: Ids
    tokens: int
    scored_bytes: int
    scored_chars: int


def read_text(model: Model, documents: Sequence[Document]) -> ContextText:
    """Tokenize documents and keep their tokens.

    Raises:
        TextError: a document has fewer than two tokens.
        TokenError, OSError: a document cannot be read.
    """
    units, starts, ends, index = [], [], [], []
    scored_bytes = scored_chars = 0
    for document in documents:
        reader = TokenReader(document, model.tokenizer, model.bundle.vocab_size)
        pieces = []
        while not reader.at_end:
            pieces.append(reader.take(READ_TOKENS))
        n = sum(map(len, pieces))
        if n < 2:
            raise TextError(
                f"{document.name}: {n} of at least 2 tokens, so nothing to score.",
                hint="Give a longer text, or leave it out.",
            )
        units.append(Document(document.name, np.concatenate([piece.ids for piece in pieces])))
        starts.append(np.concatenate([piece.starts for piece in pieces])[1:])
        ends.append(np.concatenate([piece.ends for piece in pieces])[1:])
        index.append(np.arange(1, n))
        counts: TextCounts = reader.counts
        scored_bytes += counts.bytes - counts.first_token_bytes - counts.dropped_bytes
        scored_chars += counts.chars - counts.first_token_chars - counts.dropped_chars
    return ContextText(
        documents=tuple(units),
        starts=np.concatenate(starts),
        ends=np.concatenate(ends),
        index=np.concatenate(index),
        tokens=sum(map(len, starts)) + len(units),
        scored_bytes=scored_bytes,
        scored_chars=scored_chars,
    )


def default_lengths(models: Sequence[Model]) -> tuple[int, ...]:
    """Return memory lengths from a sixteenth of the longest memory to twice that memory, each double the previous."""
    longest = max(model.bundle.settings.most_rows for model in models)
    return tuple(sorted({max(1, longest * 2 // 2**halvings) for halvings in range(6)}))


def measure_context(
    models: Sequence[Model],
    documents: Sequence[Document],
    *,
    lengths: Sequence[int] | None = None,
    recl: ReclOptions | None = None,
    full_context: bool = False,
    batch_size: int = 1,
    progress: Progress = no_progress,
    tell: Tell = silent,
    **evaluation: Any,
) -> ContextReport:
    """Score the same documents repeatedly, once for each memory length.

    Args:
        models: the group; all must have the same tokens.
        documents: as in `Model.score`; sources are read once for each model, but open files only once.
        lengths: memory lengths of the curve; None: `default_lengths`. The curve also has the lengths that RECL needs.
        recl: the range in which to search for RECL; None: do not search.
        full_context: count only tokens with at least as many tokens before them as the longest memory has rows. Then
            every length really limits the context of every counted token.
        progress: called with the number of scored tokens over all passes, and their largest possible number.
        tell: called before the first pass with a line about the largest possible number of passes.
        evaluation: other settings than `mem_len`; see `Model.evaluation`.

    Raises:
        OptionError: settings are out of range, or a model has no memory.
        TextError, TokenError, OSError: a document is not usable.
        XlexportError: tokens differ between the models, there are too few, or scores are not finite.
    """
    for model in models:
        _check_model(model, evaluation)
    curve = tuple(sorted(set(default_lengths(models) if lengths is None else lengths)))
    longest = max(curve) if recl is None or recl.longest is None else recl.longest
    if recl is not None and longest < recl.start + recl.step:
        raise OptionError(
            f"RECL: the longest memory is {longest}, at least start + step = {recl.start + recl.step} is needed to "
            "compare two.",
            hint="Give longer --lengths, a smaller --set start and --set step, or --no-recl.",
        )
    for model in models:
        for mem_len in curve:
            model.evaluation(mem_len=mem_len, **evaluation)
    documents = [rereadable(document) for document in documents]
    texts = [read_text(model, documents) for model in models]
    _check_same_tokens(models, texts)
    counted = texts[0].index >= max(longest, *curve) if full_context else np.ones(len(texts[0].index), bool)
    if not counted.any():
        raise XlexportError(
            f"no token has {max(longest, *curve):,} others before it in its document.",
            hint="Give longer documents or shorter memories, or count all tokens.",
        )

    scores_by_model: list[dict[int, LengthScore]] = [{} for _ in models]
    more = () if recl is None else set(range(recl.start, longest + 1, recl.step)) - set(curve)
    most = len(models) * (len(curve) + len(more))
    n_scored, total = 0, most * (texts[0].tokens - len(texts[0].documents))

    def scored(tokens: int) -> None:
        nonlocal n_scored
        n_scored += tokens
        progress(n_scored, total)

    def losses(mem_len: int) -> list[npt.NDArray[np.float32]]:
        all_losses = []
        for model, text, scores in zip(models, texts, scores_by_model, strict=True):
            nats, scores[mem_len] = _score(model, text, mem_len, counted, batch_size, scored, evaluation)
            all_losses.append(nats)
        return all_losses

    passes_over = f"{most} pass{'es' if most > 1 else ''} over {texts[0].tokens:,} tokens"
    only_recl = f"{len(models) * len(more)} of them only while RECL is not found (--set step, --set longest, --no-recl)"
    tell(f"at most {passes_over}, {only_recl}" if more else passes_over)

    results: list[list[Recl]] = [[] for _ in models]
    if recl is not None:
        results = find_recl(
            losses, start=recl.start, step=recl.step, longest=longest, shares=recl.shares, threshold=recl.threshold
        )
    for mem_len in curve:
        if mem_len not in scores_by_model[0]:
            losses(mem_len)
    return ContextReport(
        documents=tuple(document.name for document in documents),
        tokens=texts[0].tokens,
        scored_tokens=int(np.count_nonzero(counted)),
        full_context=full_context,
        recl=recl,
        curve=curve,
        models=tuple(
            _model_context(model, scores, result, evaluation)
            for model, scores, result in zip(models, scores_by_model, results, strict=True)
        ),
    )


def _check_model(model: Model, evaluation: dict[str, Any]) -> None:
    if model.evaluation(**evaluation).full_document:
        raise OptionError(
            f"{model.folder}: reads each document in one step and has no memory, so its length cannot vary.",
            hint="Give a bundle that carries memory (a Reformer: convert --rule band).",
        )
    if "mem_len" not in model.bundle.evaluation.settings:
        raise OptionError(
            f"{model.folder}: carries a state of fixed size, whose length cannot vary.",
            hint="Give a bundle whose memory has rows, of a Transformer-XL or a Reformer.",
        )


def _check_same_tokens(models: Sequence[Model], texts: Sequence[ContextText]) -> None:
    """Raise XlexportError if the models have different tokens, because losses are compared token by token."""
    first = texts[0]
    for model, text in zip(models[1:], texts[1:], strict=True):
        if text.tokens != first.tokens:
            difference = f"splits the text into {text.tokens:,} tokens, but {models[0].folder} into {first.tokens:,}"
        elif not (np.array_equal(text.starts, first.starts) and np.array_equal(text.ends, first.ends)):
            difference = f"its tokens begin and end at other places than the tokens of {models[0].folder}"
        else:
            continue
        raise XlexportError(
            f"{model.folder}: {difference}. A group is compared token by token: give bundles with the same tokenizer, "
            "or measure them one by one."
        )


def _score(
    model: Model,
    text: ContextText,
    mem_len: int,
    counted: npt.NDArray[np.bool_],
    batch_size: int,
    count_tokens: Callable[[int], None],
    evaluation: dict[str, Any],
) -> tuple[npt.NDArray[np.float32], LengthScore]:
    """Return the losses (n,) in nats of the tokens that count, document by document, and their summary."""
    losses: list[list[npt.NDArray[np.float32]]] = [[] for _ in text.documents]
    contexts: list[list[Ids]] = [[] for _ in text.documents]
    started = time.perf_counter()
    for part in model.score_tokens(text.documents, batch_size=batch_size, mem_len=mem_len, **evaluation):
        losses[part.number].append(-part.log_probs)
        contexts[part.number].append(part.context)
        count_tokens(len(part))
    elapsed = time.perf_counter() - started
    nats = np.concatenate([array for arrays in losses for array in arrays])
    if not np.isfinite(nats).all():
        raise XlexportError(
            f"{model.folder}: {np.count_nonzero(~np.isfinite(nats)):,} scores with memory length {mem_len:,} are not "
            "finite, so losses cannot be compared.",
            hint="Try another memory length, or a float32 bundle.",
        )
    context = np.concatenate([array for arrays in contexts for array in arrays])[counted]
    whole, nats = bool(counted.all()), nats[counted]
    total = float(nats.sum(dtype=np.float64))
    bits = total / LN2
    return nats, LengthScore(
        mem_len=mem_len,
        context=float(context.mean()),
        scored_tokens=len(nats),
        nats=total,
        bits_per_token=bits / len(nats),
        # Counts of bytes cover all scored tokens; for only some of them, use the spans.
        bits_per_byte=ratio(bits, text.scored_bytes) if whole else None,
        bits_per_char=ratio(bits, text.scored_chars) if whole else None,
        perplexity=perplexity(total / len(nats)),
        tokens_per_second=text.tokens / elapsed,
    )


def _model_context(
    model: Model, scores: dict[int, LengthScore], recl: Sequence[Recl], evaluation: dict[str, Any]
) -> ModelContext:
    settings = model.evaluation(**evaluation)
    return ModelContext(
        bundle=str(model.folder),
        mem_len=model.bundle.settings.most_rows,
        segment_len=settings.segment_len,
        settings=settings.values,
        lengths=tuple(scores[mem_len] for mem_len in sorted(scores)),
        recl=tuple(recl),
    )


def unit_of(report: ContextReport) -> str:
    """Return the unit of bits: byte, or token if bytes are unknown."""
    has_bytes = all(score.bits_per_byte is not None for model in report.models for score in model.lengths)
    return "byte" if has_bytes else "token"


def names_of(report: ContextReport) -> list[str]:
    """Return a short name for each model: its folder's name, or the whole path if two folders share a name."""
    names = [folder_name(Path(model.bundle).resolve()) for model in report.models]
    return [name if names.count(name) == 1 else model.bundle for name, model in zip(names, report.models, strict=True)]


def share_name(share: float) -> str:
    """Return a name for the share of tokens on which RECL is based."""
    return f"hardest {100 * share:.4g}%" if share < 1 else "all tokens"


def context_lines(report: ContextReport) -> list[str]:
    """Return a table of the curves and a table of RECL."""
    documents = report.documents[0] if len(report.documents) == 1 else f"{len(report.documents):,} documents"
    which = " that have full context" if report.full_context else ""
    lines = [f"{documents}: {report.scored_tokens:,} of {report.tokens:,} tokens scored{which}", ""]
    lines += _aligned(_one_curve(report) if len(report.models) == 1 else _curves(report), left=False)
    if report.recl is not None:
        table = [["RECL", *map(share_name, report.recl.shares)]]
        for name, model in zip(names_of(report), report.models, strict=True):
            lengths = [f"≥ {recl.at_least:,}" if recl.recl is None else f"{recl.recl:,}" for recl in model.recl]
            table.append([name, *lengths])
        lines += ["", *_aligned(table, left=True)]
    return lines


def _one_curve(report: ContextReport) -> list[list[str]]:
    unit = unit_of(report)
    rows = [["memory", "context", f"bits per {unit}", "change", "tokens/s"]]
    before: float | None = None
    for score in report.models[0].lengths:
        bits = getattr(score, f"bits_per_{unit}")
        change = "" if before is None else f"{bits - before:+.4f}"
        rows.append(
            [f"{score.mem_len:,}", f"{score.context:,.1f}", f"{bits:.4f}", change, f"{score.tokens_per_second:,.0f}"]
        )
        before = bits
    return rows


def _curves(report: ContextReport) -> list[list[str]]:
    unit = unit_of(report)
    rows = [["memory", *(f"{name}, bits per {unit}" for name in names_of(report))]]
    for place, score in enumerate(report.models[0].lengths):
        bits = [getattr(model.lengths[place], f"bits_per_{unit}") for model in report.models]
        rows.append([f"{score.mem_len:,}", *(f"{value:.4f}" for value in bits)])
    return rows


def _aligned(rows: Sequence[Sequence[str]], left: bool) -> list[str]:
    """Align columns to the right; with `left`, align the first to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if left and not number else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
