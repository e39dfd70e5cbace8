"""The bundles that a server has open, each with its scheduler and its tokens."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.scoring.begin_token import bos_token
from xlexport.serve.errors import ApiError, hide
from xlexport.serve.logprobs import TokenTexts
from xlexport.serve.scheduler import Scheduler
from xlruntime import OptionError, PrefixCache
from xlruntime.bundle import TextToken
from xlruntime.documents import Tokenizer, as_ids, check_ids
from xlruntime.messages import listed, named
from xlruntime.prefix_cache import carries_memory
from xlruntime.tokenizers import ByteTokenizer, VocabularyTokenizer

__all__ = ["Models", "ServedModel"]

# Memory for a byte of text while it becomes tokens, measured; the libraries' own depends on the text.
ENCODING_BYTES: dict[type, int] = {ByteTokenizer: 10, VocabularyTokenizer: 130}
LIBRARY_BYTES = 300


@dataclass(frozen=True)
class ServedModel:
    """One open bundle.

    Attributes:
        name: the name by which requests choose it.
        scheduler: runs its jobs; texts: the texts of its tokens.
        prefix: the token to put before a text without context: the one that begins texts, else one that ends them, else
            a newline; None: there is none.
        created: when it was opened, in seconds since 1970.
    """

    name: str
    scheduler: Scheduler
    texts: TokenTexts
    prefix: TextToken | None
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, name: str, scheduler: Scheduler, prefix: str | None = None) -> ServedModel:
        """Return a bundle ready to be served.

        Args:
            prefix: name or text of the token to put before a text; None: the bundle's own.

        Raises:
            OptionError: `prefix` is not one token.
        """
        tokenizer, token = scheduler.engine.tokenizer, scheduler.engine.bundle.tokenizer.prefix
        if prefix is not None or token is None:
            token = _token(tokenizer, "\n" if prefix is None else prefix)
        if prefix is not None and token is None:
            raise OptionError(f"prefix {named(prefix)}: not one token of {named(name)}.", hint="Give another one.")
        hide(scheduler.engine.folder, name)
        return cls(name, scheduler, TokenTexts(tokenizer), token)

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to token ids and back."""
        return self.scheduler.engine.tokenizer

    def named_tokens(self) -> dict[str, int]:
        """Return the ids of the tokens that begin and end texts, by the names that clients get."""
        rule = self.scheduler.engine.bundle.tokenizer
        return {token.name: token.id for token in (*rule.ends, rule.begin, self.prefix) if token is not None}

    @property
    def encoding_bytes(self) -> int:
        """Bytes of memory that `ids` takes for each byte of a text."""
        return ENCODING_BYTES.get(type(self.tokenizer), LIBRARY_BYTES)

    def check(self, ids: npt.NDArray[np.int64]) -> None:
        """Refuse token ids (n,) that the model lacks.

        Raises:
            TokenError: one of them is outside the vocabulary.
        """
        check_ids(ids, self.scheduler.engine.bundle.vocab_size, "the prompt")

    def ids(self, source: str | list[int], whole: bool = False) -> npt.NDArray[np.int64]:
        """Return the token ids (n,) of a prompt, given as text or ids.

        Args:
            whole: whether a text is a whole document, whose last line ends with it, as in `xlexport score`.
        """
        if not isinstance(source, str):
            return as_ids(source, "the prompt")
        return self.tokenizer.encode(source) if whole else self.tokenizer.encode_piece(source, None)

    def top(self, logprobs: int | None) -> int | None:
        """Return how many of the `logprobs` likeliest tokens there are."""
        return None if logprobs is None else min(logprobs, self.scheduler.engine.bundle.vocab_size)

    @functools.cached_property
    def session_bytes(self) -> int:
        """Memory of a session in bytes."""
        return self.scheduler.engine.new_memory(self.scheduler.evaluation).nbytes

    def describe(self) -> dict[str, Any]:
        """Return what `/v1/models` lists."""
        bundle = self.scheduler.engine.bundle
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "xlexport",
            "architecture": bundle.architecture,
            "precision": bundle.precision,
            "vocab_size": bundle.vocab_size,
            "max_model_len": self.scheduler.evaluation.longest_document,
            "sessions": not self.scheduler.evaluation.full_document,
            "settings": self.scheduler.evaluation.to_dict(),
        }


class Models:
    """The bundles of a server, by name."""

    def __init__(self, served: Iterable[ServedModel]) -> None:
        """Take at least one bundle.

        Raises:
            OptionError: two have the same name, or the cache of prefixes cannot keep any memory.
        """
        self.all = list(served)
        self._by_name = {model.name: model for model in self.all}
        if len(self._by_name) < len(self.all):
            names = ", ".join(named(model.name) for model in self.all)
            raise OptionError(f"two bundles have the same name: {names}.", hint="Rename a folder.")
        if self.prefixes is not None:
            several = [(model.scheduler.engine, model.scheduler.evaluation) for model in self.all]
            for one in [one for one in several if carries_memory(*one)] or several:
                self.prefixes.check(*one)

    @property
    def prefixes(self) -> PrefixCache | None:
        """The cache of prefixes that all bundles share; None: there is none."""
        return self.all[0].scheduler.prefixes

    def find(self, name: str | None) -> ServedModel:
        """Return the bundle of a request; without a name, the only one.

        Raises:
            ApiError: there is none of this name, or the name is missing and there are several.
        """
        have = listed(named(model.name) for model in self.all)
        if name is None:
            if len(self.all) > 1:
                raise ApiError(400, f"model is missing; this server has {have}.", "missing_model", "model")
            return self.all[0]
        if name not in self._by_name:
            raise ApiError(404, f"no model {named(name)}; this server has {have}.", "model_not_found", "model")
        return self._by_name[name]

    def close(self) -> None:
        """End all jobs."""
        for model in self.all:
            model.scheduler.close()


def _token(tokenizer: Tokenizer, text: str) -> TextToken | None:
    """Return the token of a name, or of a text that is one token; None if it is none."""
    with contextlib.suppress(OptionError):
        return TextToken(bos_token(text, tokenizer), text, "its text")
    return None
