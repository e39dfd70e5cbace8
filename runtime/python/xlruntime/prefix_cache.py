"""Keep memories after beginnings of documents, so that documents with an equal beginning read it once.

A memory is known by a digest of all that it depends on: the model, its settings, kernels and graphs, who may use it,
and the ids that it has read, a begin token among them. Where scores depend on how a document is cut, only memories at
cuts are kept that a fresh reading of any longer document makes, too. Then scores are bit-equal to those without it.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .engine import Engine
from .errors import OptionError
from .evaluation import EvaluationSettings
from .memory import Memory

__all__ = ["PrefixCache", "Trail"]

EVERY = 256  # tokens after which a memory is kept
ENTRY_BYTES = 2_000  # of an entry besides its tensors


@dataclass(frozen=True)
class Trail:
    """The ids that a memory has read, by which a cache knows it. It never changes.

    Attributes:
        origin: digest of what the memory depends on besides these ids.
        sha256: of both.
        exact: whether scores depend on cuts, or rounding decides about integers in the memory.
        read: number of ids.
        whole: whether a fresh reading of any longer document makes the same cuts.
        boundary: whether the last step went past a multiple of 256 ids.
    """

    origin: bytes
    sha256: Any
    exact: bool
    read: int = 0
    whole: bool = True
    boundary: bool = False

    def after(self, ids: npt.NDArray[np.int64], whole: bool = True) -> Trail:
        """Return the trail after a step over ids (n,); `whole`: whether the end of the document did not shorten it."""
        sha256 = self.sha256.copy()
        sha256.update(np.ascontiguousarray(ids, np.int64))
        read = self.read + len(ids)
        boundary = read // EVERY > self.read // EVERY
        return replace(self, sha256=sha256, read=read, whole=self.whole and whole, boundary=boundary)

    @property
    def usable(self) -> bool:
        """Whether other documents may go on from such a memory."""
        return self.whole or not self.exact


@dataclass
class _Entry:
    origin: bytes
    memory: Memory
    read: int
    used: float = 0.0

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes + ENTRY_BYTES


class PrefixCache:
    """Memories after beginnings of documents, of at most `nbytes` together. Safe to share between threads.

    Several models may share it. The memory that was used longest ago goes first.

    Args:
        nbytes: most memory in bytes.
        seconds: idle time after which a memory goes.

    Raises:
        OptionError: `nbytes` is not positive.

    Attributes:
        nbytes: memory in use, in bytes.
        hits, misses: documents that went on from a memory, and those that found none.
        saved: tokens that were not read again.
    """

    def __init__(self, nbytes: int, seconds: float = math.inf) -> None:
        if nbytes < 1:
            raise OptionError(f"a prefix cache of {nbytes:,} bytes, at least 1 is needed.")
        self.nbytes = self.hits = self.misses = self.saved = 0
        self._most, self._seconds = nbytes, seconds
        self._entries = OrderedDict[bytes, _Entry]()  # the one used longest ago is the first
        self._lengths: dict[bytes, Counter[int]] = {}  # of the beginnings that are known, by origin
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"PrefixCache({len(self)} memories of {self.nbytes:,} bytes)"

    def trail(self, engine: Engine, evaluation: EvaluationSettings, purpose: str, step: int, owner: object) -> Trail:
        """Return the trail of a document that begins.

        Args:
            purpose: the graphs that read it; step: tokens of a whole step.
            owner: who reads it; only equal ones share memories.
        """
        graphs = engine.steps.get(purpose), purpose, step, engine.kernels, engine.threads, str(engine.device)
        bundle = engine.bundle
        named = bundle.fingerprint, evaluation.to_dict(), graphs, owner
        sha256 = hashlib.sha256(repr(named).encode())
        rounded = bundle.precision != "float32" or any(np.dtype(entry.dtype).kind in "iu" for entry in bundle.memory)
        return Trail(sha256.digest(), sha256, evaluation.segmentation_matters or rounded)

    def find(self, trail: Trail, ids: npt.NDArray[np.int64]) -> tuple[Trail, Memory] | None:
        """Return the longest known memory of a document that goes on with ids (n,), and its trail.

        The last id is never among those read, because a step predicts what comes after it. The memory must not change.
        """
        self.expire()
        start, known = trail.read, list[tuple[bytes, Trail]]()
        if trail.usable:
            with self._lock:
                lengths = sorted(self._lengths.get(trail.origin, ()))
            for length in lengths:
                if start < length < start + len(ids):
                    trail = trail.after(ids[trail.read - start : length - start])
                    known.append((trail.sha256.digest(), trail))
        with self._lock:
            for key, at in reversed(known):
                if (entry := self._used(key)) is not None:
                    return at, entry.memory
        return None

    def needs(self, trail: Trail) -> bool:
        """Return whether `keep` would keep a memory after a trail; one that is there counts as used."""
        with self._lock:
            return trail.usable and trail.read > 0 and self._used(trail.sha256.digest()) is None

    def keep(self, trail: Trail, memory: Memory) -> None:
        """Keep the memory of one document after a trail, unless it is too large. Nobody may change it any more."""
        entry, key = _Entry(trail.origin, memory, trail.read), trail.sha256.digest()
        with self._lock:
            if self._used(key) is not None or entry.nbytes > self._most:
                return
            while self.nbytes + entry.nbytes > self._most:
                self._drop()
            self._entries[key] = entry
            self._used(key)
            self.nbytes += entry.nbytes
            self._lengths.setdefault(trail.origin, Counter())[trail.read] += 1

    def read(
        self, engine: Engine, evaluation: EvaluationSettings, purpose: str, step: int, ids: npt.NDArray[np.int64]
    ) -> tuple[int, Memory | None]:
        """Return how many of ids (n,) a memory has read, and the memory, which must not change; None: it has read none.

        It has read all but the last id, which belongs to the next step; where cuts matter, only whole steps. What the
        cache lacks is read and kept.

        Args:
            purpose, step: as `trail` takes them.
        """
        trail = self.trail(engine, evaluation, purpose, step, None)
        stop = min(len(ids) - 1, evaluation.longest_part or len(ids))
        stop -= stop % step if trail.exact else 0
        if stop < 1:
            return 0, None
        trail, memory = self.find(trail, ids[: stop + 1]) or (trail, None)
        self.count(trail.read)
        if trail.read < stop:
            memory = engine.new_memory(evaluation) if memory is None else memory.take([0])
        while memory is not None and trail.read < stop:
            part = slice(trail.read, min(trail.read + step, stop))
            tokens, targets = ids[None, part], ids[None, part.start + 1 : part.stop + 1]
            if not np.isfinite(engine.step(purpose, memory, tokens, targets)["log_prob"]).all():
                return 0, None  # the document is read as without the cache
            trail = trail.after(tokens[0])
            if (trail.boundary or trail.read == stop) and self.needs(trail):
                self.keep(trail, memory.take([0]))
        return trail.read, memory

    def count(self, saved: int) -> None:
        """Count a document that begins, and the tokens that need not be read again."""
        with self._lock:
            self.hits += saved > 0
            self.misses += saved == 0
            self.saved += saved

    def expire(self) -> None:
        """Drop the memories that nobody has used for too long."""
        with self._lock:
            before = time.monotonic() - self._seconds
            while self._entries and next(iter(self._entries.values())).used < before:
                self._drop()

    def _used(self, key: bytes) -> _Entry | None:
        """Return an entry, which is the last one to go now; None: there is none."""
        if (entry := self._entries.get(key)) is not None:
            entry.used = time.monotonic()
            self._entries.move_to_end(key)
        return entry

    def _drop(self) -> None:
        """Drop the entry that was used longest ago."""
        _, entry = self._entries.popitem(last=False)
        self.nbytes -= entry.nbytes
        lengths = self._lengths[entry.origin]
        lengths[entry.read] -= 1
        if not lengths[entry.read]:
            del lengths[entry.read]
        if not lengths:
            del self._lengths[entry.origin]
