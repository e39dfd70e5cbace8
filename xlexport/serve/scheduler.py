"""Run the jobs of all requests for one bundle in one thread, in rounds of steps.

In a round, clients take turns (`stages`): about one segment of documents is read, and each client draws a token, or all
of them share a step. So others wait for a segment of a long document, not for all of it.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from xlexport.serve.full_documents import FullDocuments
from xlexport.serve.jobs import ClosedError, RequestJob
from xlexport.serve.stages import Counts, DrawStage, ReadStage
from xlruntime import Model, OptionError, TextError
from xlruntime.documents import check_ids, check_length
from xlruntime.prefix_cache import PrefixCache
from xlruntime.scorer import check_top

__all__ = ["Scheduler"]

logger = logging.getLogger(__name__)


class Scheduler:
    """The jobs on one bundle. Its thread starts with the first job. Safe to share between threads.

    Args:
        most: documents at most that are read, and continuations that are drawn, in a round.
        shared_steps: whether they share steps; otherwise, each has a step of its own, and gets the very numbers that it
            gets alone (see `stages`); only random continuations without a seed share steps. All of them share steps in
            any case if the device is not a CPU.
        prefixes: the cache of their prefixes, which other schedulers may share; None: each job reads all its tokens.
        settings: evaluation settings of all jobs, as `Model.evaluation` takes them.

    Attributes:
        engine: the open bundle; evaluation: the settings of all jobs; prefixes: as above.
        counts: what was done so far.
    """

    def __init__(
        self,
        engine: Model,
        most: int = 8,
        *,
        shared_steps: bool = False,
        prefixes: PrefixCache | None = None,
        **settings: Any,
    ) -> None:
        if most < 1:
            raise OptionError(f"batch size is {most}, at least 1 is needed.")
        self.engine = engine
        self.evaluation = engine.evaluation(**settings)
        self.prefixes = prefixes
        self.counts = Counts()
        self._lock = threading.Condition()
        self._arrived: list[RequestJob] = []
        self._unfinished: set[RequestJob] = set()
        self._closed = False
        self._thread: threading.Thread | None = None
        shared = (shared_steps or not engine.device.on_host) and not engine.bundle.fixed  # of one batch size
        self._first: ReadStage | FullDocuments
        self._stages: list[ReadStage | DrawStage | FullDocuments]
        if self.evaluation.full_document:
            self._first = FullDocuments(engine, self.evaluation, self.counts)
            self._stages = [self._first]
        else:
            drawing = DrawStage(engine, self.evaluation, self.counts, most, shared)
            self._first = ReadStage(engine, self.evaluation, self.counts, most, shared, drawing, prefixes)
            self._stages = [self._first, drawing]

    def submit(self, job: RequestJob) -> None:
        """Take a job. The scheduler's thread sets its results.

        Raises:
            TextError: there is nothing to continue, or the document could get longer than the model can read.
            TokenError, OptionError: ids, or the number of likeliest tokens, are out of range.
            ClosedError: the scheduler was closed.
        """
        self._check(job)
        with self._lock:
            if self._closed:
                raise ClosedError()
            self.counts.jobs += 1
            self._arrived.append(job)
            self._unfinished.add(job)
            job.add_done_callback(lambda _: self._count(job))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
                self._thread.start()
            self._lock.notify()

    @property
    def load(self) -> int:
        """Number of jobs that have not ended."""
        return len(self._unfinished)

    def under_way(self) -> list[tuple[str, str]]:
        """Return the client of each job that has not ended, and whether it is reading, drawing or waiting for a row."""
        names = zip(("reading", "drawing"), self._stages, strict=False)
        doing = {tenant.job: name for name, stage in names for tenant, *_ in stage.seated}
        with self._lock:
            return [(job.owner.client, doing.get(job, "waiting")) for job in self._unfinished]

    def close(self) -> None:
        """End all jobs with an error, and the thread. A second call has no effect."""
        with self._lock:
            self._closed = True
            self._lock.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _check(self, job: RequestJob) -> None:
        check_ids(job.ids, self.engine.bundle.vocab_size, "the prompt")
        if job.top:
            check_top(self.engine, job.top)
        if job.start is None and not len(job.ids):
            raise TextError("nothing to continue: the prompt has no tokens.", hint="Give a prompt.")
        if job.max_tokens:
            self.engine.session("generate")
        if (job.keep or job.start is not None) and self.evaluation.full_document:
            raise OptionError(
                "this model reads each document in one step and carries no memory, so it has no sessions."
            )
        # As in `Stream.feed`: a token that was held counts, too.
        before = 0 if job.start is None else int(job.start.memory.position[0]) + 1
        check_length(before + len(job.ids) + job.max_tokens, self.evaluation, "the document")

    def _run(self) -> None:
        while self._collect():
            try:
                self._round()
            except Exception as error:  # a bug: no request may wait for ever because of it
                logger.exception("the scheduler failed")
                self._fail_all(error)
        self._fail_all(ClosedError())

    def _collect(self) -> bool:
        """Wait for work and take new jobs; return False if the scheduler was closed."""
        with self._lock:
            while not self._closed and not self._arrived and all(stage.idle for stage in self._stages):
                self._lock.wait()
            arrived, self._arrived = self._arrived, []
            closed = self._closed
        for job in arrived:
            self._first.add(job)
        return not closed

    def _round(self) -> None:
        """Run one step of everything that is under way."""
        for stage in self._stages:
            stage.drop()
        for stage in self._stages:
            stage.step()

    def _fail_all(self, error: Exception) -> None:
        with self._lock:
            jobs = list(self._unfinished)
        for job in jobs:
            job.fail(error)

    def _count(self, job: RequestJob) -> None:
        """Count a job that has ended; called by the thread that ended it."""
        with self._lock:
            self._unfinished.discard(job)
            if job.cancelled():
                self.counts.cancelled += 1
            elif job.exception() is not None:
                self.counts.failed += 1
            else:
                self.counts.finished += 1
