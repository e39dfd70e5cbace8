"""Keep memories after beginnings of documents, so that documents with an equal beginning read it once.

A memory is known by a digest of all that it depends on: the bundle, settings with rules, kernels and graphs, its owner,
and the ids that it has read, a begin token among them. Sums depend on the cuts of a document, if only by rounding. So
the digest has the ends of short steps, too: a document goes on only from a cut that its own reading makes. Then scores
are those of a whole reading, bit for bit on a CPU without shared steps.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .engine import Engine
from .errors import OptionError
from .evaluation import EvaluationSettings
from .memory import Memory

__all__ = ["PrefixCache", "Trail", "carries_memory"]

EVERY = 256  # tokens after which a memory is kept
SHORT = (-1).to_bytes(8, "little", signed=True)  # no id: the end of a short step
ENTRY_BYTES = 2_000  # of an entry besides its tensors


@dataclass(frozen=True)
class Trail:
    """The ids that a memory has read, with the ends of short steps, by which a cache knows it. It never changes.

    Attributes:
        origin: digest of what the memory depends on besides these; sha256: of all of it.
        step: tokens of a whole step.
        read: number of ids.
        boundary: whether the last step went past a multiple of 256 ids.
    """

    origin: bytes
    sha256: Any
    step: int
    read: int = 0
    boundary: bool = False

    def after(self, ids: npt.NDArray[np.int64], whole: bool = True) -> Trail:
        """Return the trail after ids (n,); `whole`: whether no step was short because a document or a piece ended."""
        sha256, read = self.sha256.copy(), self.read + len(ids)
        sha256.update(np.ascontiguousarray(ids, np.int64))
        if not whole:
            sha256.update(SHORT)
        return Trail(self.origin, sha256, self.step, read, read // EVERY > self.read // EVERY)


@dataclass
class _Entry:
    memory: Memory
    used: float = 0.0

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes + ENTRY_BYTES


def carries_memory(engine: Engine, evaluation: EvaluationSettings) -> bool:
    """Return whether a document has a memory of its own, from which another one can go on."""
    return not evaluation.full_document and engine.bundle.fixed.get("batch", 1) == 1


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
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"PrefixCache({len(self)} memories of {self.nbytes:,} bytes)"

    def check(self, engine: Engine, evaluation: EvaluationSettings) -> None:
        """Refuse a model of which it could not keep any memory.

        Raises:
            OptionError: the memory is not that of one document, or is larger than the cache.
        """
        if not carries_memory(engine, evaluation):
            raise OptionError(
                "a prefix cache: this model reads each document in one step, or several in batches of a fixed size.",
                hint="Leave it out.",
            )
        if (size := engine.new_memory(evaluation).nbytes + ENTRY_BYTES) > self._most:
            raise OptionError(
                f"a prefix cache of {self._most:,} bytes, but one memory of this model takes {size:,}.",
                hint="Give more, or leave it out.",
            )

    def trail(self, engine: Engine, evaluation: EvaluationSettings, purpose: str, step: int, owner: object) -> Trail:
        """Return the trail of a document that begins.

        Args:
            purpose: the graphs that read it; step: tokens of a whole step.
            owner: who reads it; only equal ones share memories.
        """
        graphs = engine.steps.get(purpose), purpose, step, engine.kernels, engine.threads, str(engine.device)
        bundle = engine.bundle.digest, engine.bundle.fingerprint  # a manifest only states its fingerprint
        sha256 = hashlib.sha256(repr((bundle, evaluation, graphs, owner)).encode())
        return Trail(sha256.digest(), sha256, step)

    def find(self, trail: Trail, ids: npt.NDArray[np.int64]) -> tuple[Trail, Memory] | None:
        """Return the longest known memory of a document that goes on with ids (n,), and its trail.

        The last id is never among those read, because a step predicts what comes after it. The memory must not change.
        """
        self.expire()
        found, last = None, len(ids) - 1
        for begin in range(0, last, trail.step):
            part = ids[begin : min(begin + trail.step, last)]
            trail = trail.after(part, len(part) == trail.step)
            if (entry := self._entries.get(trail.sha256.digest())) is not None:
                found = trail, entry.memory
        if found is not None:
            self.needs(found[0])
        return found

    def needs(self, trail: Trail) -> bool:
        """Return whether no memory after a trail is there; one that is there counts as used."""
        with self._lock:
            return self._used(trail.sha256.digest()) is None

    def keep(self, trail: Trail, memory: Memory) -> None:
        """Keep the memory of one document after a trail, unless it is too large. Nobody may change it any more."""
        entry, key = _Entry(memory), trail.sha256.digest()
        with self._lock:
            if self._used(key) is not None or entry.nbytes > self._most:
                return
            while self.nbytes + entry.nbytes > self._most:
                self._drop()
            self._entries[key] = entry
            self._used(key)
            self.nbytes += entry.nbytes

    def read(
        self, engine: Engine, evaluation: EvaluationSettings, purpose: str, step: int, ids: npt.NDArray[np.int64]
    ) -> tuple[int, Memory | None]:
        """Return how many of ids (n,) a memory has read, and the memory, which must not change; None: it has read none.

        It has read the whole steps before the last id. What the cache lacks is read and kept.

        Args:
            purpose, step: as `trail` takes them.
        """
        trail = self.trail(engine, evaluation, purpose, step, None)
        stop = min(len(ids) - 1, evaluation.longest_part or len(ids)) // step * step
        if not stop:
            return 0, None
        trail, memory = self.find(trail, ids[: stop + 1]) or (trail, None)
        self.count(trail.read)
        if trail.read < stop:
            memory = engine.new_memory(evaluation) if memory is None else memory.take([0])
        while memory is not None and trail.read < stop:
            part = slice(trail.read, trail.read + step)
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
