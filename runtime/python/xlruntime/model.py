"""The interface for applications: an open bundle with streams, scores of documents, and continuations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from .check_once import open_checked
from .documents import Document, Source
from .engine import Engine
from .errors import ArgumentError, OptionError
from .evaluation import SettingValue
from .fitting import BatchSize
from .known_answers import CheckResult, check
from .load_options import LoadKeywords, LoadOptions
from .messages import shown
from .prefix_cache import PrefixCache
from .sampling import Sampling, generate_full_document
from .scorer import Scorer
from .scores import DocumentScore, TokenScores
from .stream import Stream, restore_stream
from .words import WordScores, word_scores

__all__ = ["Model", "load"]


def load(folder: str | Path, **options: Unpack[LoadKeywords]) -> Model:
    """Open a bundle: a folder that `xlexport convert` wrote. Nothing is downloaded.

    Args:
        folder: its path; a text may also be `ORG/NAME` or `ORG/NAME@REVISION` in the local cache of Hugging Face's hub.
            A local folder of that name wins.
        options: the fields of `LoadOptions`, such as `device="cuda"`, `threads=1` or `digest="..."`.

    Raises:
        BundleError: the bundle is missing, broken or not the expected one, or that of an encoder-decoder; or with
            `check="once"` it computes something else on this machine.
        ProviderError: ONNX Runtime or the device is missing, or with `strict_device` a node runs on another device; or
            the library of kernels is missing or cannot be loaded.
        OptionError: an option is malformed, or `cuda_graphs` is not possible with this bundle.
    """
    return open_checked(Model, folder, LoadOptions.of(options))


class Model(Engine):
    """An open bundle, for scoring and generating. Safe to share between threads.

    Its methods take evaluation settings as keywords; see `evaluation`. You need not close a model. At the end of a
    `with` block it closes its graphs and frees their memory; they open again when needed.
    """

    kind = "language model"

    def check(self) -> CheckResult:
        """Score the bundle's known answers on this machine, and compare them with the trained model's own scores.

        Bundles that were written before this version have none.

        Raises:
            BundleFormatError: the file of known answers breaks a rule; the message has the path of the field.
            BundleError: a graph does not run.
        """
        with self._files.unchanged():
            return check(self)

    def stream(self, *, capacity: int | None = None, **settings: SettingValue | None) -> Stream:
        """Return a stream: a walk through one document.

        Args:
            capacity: slots of the largest ring; None is just enough.
            settings: see `evaluation`.

        Raises:
            OptionError: a setting is out of range, or this bundle reads each document in one step.
        """
        return Stream(self, self.evaluation(**settings), capacity)

    def restore(self, file: str | Path, *, capacity: int | None = None) -> Stream:
        """Continue a stream that `Stream.save` wrote.

        Args:
            capacity: slots of the largest ring; with None, scores are bit-equal to those of an uninterrupted stream.
                With another number, they are equal up to rounding.

        Raises:
            StateError: the file is not a stream's state, is damaged, or belongs to another bundle.
            FileNotFoundError: the file does not exist.
        """
        return restore_stream(self, Path(file), capacity)

    def score(
        self,
        documents: Iterable[Document | Source],
        *,
        batch_size: BatchSize = 1,
        bos: int | bool | None = None,
        prefixes: PrefixCache | None = None,
        **settings: SettingValue | None,
    ) -> Iterator[DocumentScore]:
        """Score whole documents, each with its own memory; yield results in input order.

        Args:
            documents: texts, bytes, paths, open binary files, token ids, or `Document`s, which have names.
            batch_size: most documents that run at the same time; "auto" forms batches of similar lengths. A document
                that the model reads in one step is always alone in its batch.
            bos: id of a token that the model reads before each document, so that its first token has a score, too.
                None: `bundle.tokenizer.begin` before each text, if the tokenizer's own rule puts it there, as
                `xlexport score` does (`adds_begin`); False: no token. Ids that you give are read as they are.
            prefixes: a cache for several calls, with which equal contexts of documents are read once. Scores are the
                same, on a CPU bit for bit with a batch size of 1.
            settings: see `evaluation`.

        Raises:
            ArgumentError: `documents` is one document, not a list, or `prefixes` is no cache.
            OptionError, TokenError, TextError, OSError: a setting or a document is not usable.
        """
        several = _several(documents, "score")
        return Scorer(self, self.evaluation(**settings), batch_size, bos=bos, prefixes=prefixes).documents(several)

    def surprisal(
        self,
        texts: Iterable[str | Document],
        *,
        batch_size: BatchSize = 1,
        bos: int | bool | None = None,
        **settings: SettingValue | None,
    ) -> Iterator[WordScores]:
        """Score whole texts as `score` does, and yield the surprisal of each text's words in input order.

        Words and sums are those of `xlexport score --per word`. All scores of a text are held in memory.

        Args:
            texts: texts, or `Document`s whose sources are texts.
            bos: see `score`. Without it a text's first token has no score, and its word is not complete.

        Raises:
            ArgumentError: `texts` is one text, not a list, or one of them is not a text.
            OptionError, TextError: a setting or a text is not usable.
        """
        scorer = Scorer(self, self.evaluation(**settings), batch_size, bos=bos)
        return self._words(scorer, _several(texts, "surprisal"))

    def _words(self, scorer: Scorer, texts: Iterable[Document | Source]) -> Iterator[WordScores]:
        """Yield the words of each text as soon as the text and all texts before it are scored."""
        held: dict[int, str] = {}  # texts that are not complete
        parts: dict[int, list[TokenScores]] = {}
        done: dict[int, WordScores] = {}
        following = 0

        def holding() -> Iterator[Document | Source]:
            for number, entry in enumerate(texts):
                source = entry.source if isinstance(entry, Document) else entry
                if not isinstance(source, str):
                    raise ArgumentError(
                        f"surprisal: text {number} is {shown(source)}, not a text, so it has no words.",
                        hint="Give a str, or use score_tokens.",
                    )
                held[number] = source
                yield entry

        for part in scorer.tokens(holding()):
            parts.setdefault(part.number, []).append(part)
            if part.summary is not None:
                done[part.number] = word_scores(held.pop(part.number), self.tokenizer, parts.pop(part.number))
            while following in done:
                yield done.pop(following)
                following += 1

    def score_tokens(
        self,
        documents: Iterable[Document | Source],
        *,
        batch_size: BatchSize = 1,
        top: int | None = None,
        bos: int | bool | None = None,
        **settings: SettingValue | None,
    ) -> Iterator[TokenScores]:
        """Score documents as `score` does, but yield the scores of tokens as soon as they are known.

        Args:
            top: number of likeliest tokens (0 to 10). If given, parts also have each target's rank and each
            prediction's entropy. The `detail` graph then runs in place of `score`, with the same scores.

        Raises:
            ArgumentError: `documents` is one document, not a list.
            OptionError: as `score`, or the bundle lists fewer tokens than `top`.
        """
        if "detail" in settings:
            raise OptionError("score_tokens: detail is top since this version.")
        several = _several(documents, "score_tokens")
        scorer = Scorer(self, self.evaluation(**settings), batch_size, top, bos=bos)
        tokenizer = None if self.bundle.tokenizer.kind == "none" else self.tokenizer
        return (replace(part, tokenizer=tokenizer) for part in scorer.tokens(several))

    def generate(
        self,
        prompt: str | bytes | npt.NDArray[np.int64] | list[int],
        *,
        max_tokens: int,
        sampling: Sampling | None = None,
        **settings: SettingValue | None,
    ) -> Iterator[int]:
        """Continue `prompt`: yield up to `max_tokens` token ids as they are drawn.

        The continuation ends before the first token of `bundle.tokenizer.ends`, unless `sampling` has `ignore_eos`.

        Raises:
            OptionError: a setting is out of range.
            TextError: the prompt is empty, or prompt and continuation are too long.
        """
        evaluation = self.evaluation(**settings)
        if evaluation.full_document:
            return generate_full_document(self, evaluation, prompt, max_tokens, sampling or Sampling())
        return Stream(self, evaluation).generate(prompt, max_tokens=max_tokens, sampling=sampling)


def _several(documents: Iterable[Any], method: str) -> Iterator[Any]:
    """Return the documents of a list, one by one.

    A text is iterable, too: its characters would be scored as documents.

    Raises:
        ArgumentError: it is one document, not a list of them; or, at its turn, one of them is a number.
    """
    kind = None
    if isinstance(documents, str | bytes | bytearray):
        kind = "text"
    elif isinstance(documents, Path | Document):
        kind = "path" if isinstance(documents, Path) else "document"
    elif hasattr(documents, "read"):
        kind = "file"
    elif isinstance(documents, np.ndarray) and documents.ndim == 1 and documents.dtype.kind in "iu":
        kind = "ids"
    if kind is not None or isinstance(documents, Mapping) or not isinstance(documents, Iterable):
        raise ArgumentError(
            f"{method}: expected a list of documents, found {shown(documents)}.",
            hint=f"Give a list: model.{method}([{kind or 'text'}])",
        )
    return _not_numbers(documents, method)


def _not_numbers(documents: Iterable[Any], method: str) -> Iterator[Any]:
    for number, document in enumerate(documents):
        if isinstance(document, int | float | np.number):
            raise ArgumentError(
                f"{method}: document {number} is the number {shown(document)}.",
                hint=f"Give a list of documents, each with its token ids: model.{method}([ids])",
            )
        yield document
