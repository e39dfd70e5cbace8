"""Score documents by word for a page: the place of each word in its document, and its bits as in `score --per word`."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.report.page_text import text_of_bytes
from xlexport.scoring.inputs import TextSource
from xlexport.scoring.totals import nothing_to_score
from xlexport.scoring.units import Unit, UnitSplitter
from xlruntime import Document, DocumentScore, EvaluationSettings, Model, TextError, TokenScores
from xlruntime.documents import DOCUMENT_LIMITS, Context, Tokenizer
from xlruntime.errors import HintedError
from xlruntime.limits import Limits
from xlruntime.scorer import Scorer
from xlruntime.scores import LN2

__all__ = ["MOST_DOCUMENTS", "DocumentWords", "Held", "LeftOut", "WordCollector", "hold", "score_words", "why_of"]

MOST_DOCUMENTS = 10_000  # on one page: browsers get slow with many more
MOST_BYTES = 8 << 20  # of the text of all of them


@dataclass(frozen=True)
class Held:
    """A document that is held in memory, so that several sides can score it.

    Attributes:
        contexts: what the model reads before it; several, if the sides differ in it.
        columns: the other columns of its row.
    """

    name: str
    raw: bytes
    limits: Limits = DOCUMENT_LIMITS
    contexts: tuple[Context | None, ...] = (None,)
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def contexts_as_text(self) -> list[str]:
        """The contexts as text, or nothing if there is none."""
        texts = [_text(context) for context in self.contexts]
        return texts if any(texts) else []

    def document(self, side: int) -> Document:
        """Return the document for a side, from 0."""
        context = self.contexts[min(side, len(self.contexts) - 1)]
        return Document(self.name, io.BytesIO(self.raw), self.limits, context)


@dataclass(frozen=True)
class LeftOut:
    """A document that has no scores on the page, and why.

    Attributes:
        failed: whether it cannot be scored; otherwise the page has no room for it.
    """

    name: str
    why: str
    failed: bool
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DocumentWords:
    """The words of one document as one model scored them.

    Attributes:
        text: the document as Python text, with bytes that are not UTF-8 as `surrogateescape` writes them.
        starts, ends: (n,) place of each word in UTF-16 units, without the white space around it.
        bits: (n,) sum over the tokens of each word; NaN unless all of them have a score.
        summary: the document's total, as `score` prints it.
    """

    text: str
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    bits: npt.NDArray[np.float64]
    summary: DocumentScore


def hold(documents: Iterable[Sequence[Document]]) -> tuple[list[Held | LeftOut], int]:
    """Read documents, as many as a page has room for.

    Args:
        documents: each with one of its contexts, or once for each of them.

    Returns:
        the documents of the page in order, and the number of further ones that were not read.
    """
    rows: list[Held | LeftOut] = []
    room, further = MOST_BYTES, 0
    for same in documents:
        if len(rows) == MOST_DOCUMENTS:
            further += 1
            continue
        name, limits, columns = same[0].name, same[0].limits, same[0].columns
        try:
            raw, *_ = [_bytes_of(document, room + 1) for document in same]  # each context may fail
        except (HintedError, OSError) as error:
            rows.append(LeftOut(name, why_of(error, name), True, columns))
            continue
        contexts = tuple(document.context for document in same)
        size = len(raw) + sum(len(_text(context).encode("utf-8", "surrogatepass")) for context in contexts)
        if size > room:
            why = f"too long: a page has room for {MOST_BYTES:,} bytes of text in all"
            rows.append(LeftOut(name, why, False, columns))
            continue
        room -= size
        rows.append(Held(name, raw, limits, contexts, columns))
    return rows, further


def why_of(error: Exception, name: str) -> str:
    """Return the message of an error without the name of the document, which the page shows anyway."""
    return str(error).removeprefix(f"{name}: ")


def _bytes_of(document: Document, most: int) -> bytes:
    """Return at most `most` bytes of a document."""
    source: Any = document.source
    return bytes(source.read(most))


def _text(context: Context | None) -> str:
    """Return a context as Python text; token ids have none."""
    if isinstance(context, bytes):
        return context.decode("utf-8", "surrogateescape")
    return context if isinstance(context, str) else ""


class WordCollector:
    """Collects the words of one document from the parts of its scores."""

    def __init__(self, raw: bytes, tokenizer: Tokenizer) -> None:
        source = TextSource("", partial(io.BytesIO, raw), at_hand=True, keep=True)
        source.read()  # all of it is kept until the splitter lets it go
        self._raw, self._tokenizer = raw, tokenizer
        self._splitter = UnitSplitter("word", source, tokenizer)
        self._units: list[Unit] = []
        self._summary: DocumentScore | None = None

    def take(self, part: TokenScores) -> None:
        """Take the next part of the document."""
        self._units += self._splitter.take(part)
        self._summary = part.summary

    def words(self) -> DocumentWords:
        """Return the words, after the document's last part."""
        assert self._summary is not None
        after = text_of_bytes(self._raw, self._tokenizer).after
        units = [unit for unit in self._units if unit.words]
        bits = [unit.nats / LN2 if unit.scored_tokens == unit.tokens > 0 else np.nan for unit in units]
        return DocumentWords(
            text=self._raw.decode("utf-8", "surrogateescape"),
            starts=after[np.array([unit.start for unit in units], np.int64)],
            ends=after[np.array([unit.end for unit in units], np.int64)],
            bits=np.array(bits, np.float64),
            summary=self._summary,
        )


def score_words(
    model: Model,
    settings: EvaluationSettings,
    documents: Sequence[Held],
    side: int = 0,
    bos: int | bool | None = None,
    watch: Callable[[TokenScores], None] = lambda part: None,
) -> list[DocumentWords | Exception]:
    """Score documents one after another; a document that fails gives its error.

    Args:
        side: which of the documents' contexts to use, from 0.
        bos: id of a token that the model reads before each document.
        watch: called with each part of the scores.

    Raises:
        TextError: the bundle has no tokenizer, and so no words.
    """
    if model.tokenizer.vocab_size is None:
        raise TextError(
            f"{model.folder}: a bundle without a tokenizer: it scores token ids, which have no words.",
            hint="Convert its checkpoint again with --tokenizer.",
        )
    texts = (document.document(side) for document in documents)
    collectors: dict[int, WordCollector] = {}
    results: dict[int, DocumentWords | Exception] = {}
    for part in Scorer(model, settings, 1, None, keep_going=True, bos=bos).tokens(texts):
        number = part.number
        watch(part)
        if part.error is not None:
            collectors.pop(number, None)
            results[number] = part.error
            continue
        if number not in collectors:
            collectors[number] = WordCollector(documents[number].raw, model.tokenizer)
        collectors[number].take(part)
        if part.summary is not None:
            words = collectors.pop(number).words()
            results[number] = nothing_to_score(part.summary) or words
    return [results[number] for number in range(len(documents))]
