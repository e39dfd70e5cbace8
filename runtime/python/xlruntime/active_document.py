"""A document that is being scored on a row of a batch."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from .documents import TokenPiece
from .scores import Sum
from .token_reader import TokenReader

__all__ = ["ActiveDocument"]


@dataclass
class ActiveDocument:
    """A document on its row of the batch: its reader, its place and the sum so far."""

    number: int
    reader: TokenReader
    held: int  # the last token read; its successor is the next target
    position: int  # index of the next target, among the document's own tokens
    context: int = 0  # number of tokens read of what comes before the document
    first: TokenPiece | None = None  # the document's first token, until a part has reported it
    tokens: int | None = None  # as `Opened` has it
    unscored: int = 1  # 0 if the first token has a context
    log_probs: Sum = field(default_factory=Sum)
    begun_at: int = 0  # the position at which this process began or resumed it
    started: float = field(default_factory=time.perf_counter)

    @property
    def name(self) -> str:
        """The document's name."""
        return self.reader.document.name
