"""Jobs on bundles that read each document in one step: one step at a time, job after job."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xlexport.serve.counts import Counts
from xlexport.serve.jobs import Job, Part, likeliest
from xlexport.serve.reading import not_finite
from xlruntime import EvaluationSettings, Model, Random, Sampling
from xlruntime.scorer import Scorer

__all__ = ["Watched", "Whole"]


@dataclass(frozen=True)
class Watched(Sampling):
    """A rule of drawing that remembers the logits of the last draw."""

    seen: tuple[list[npt.NDArray[np.float32]]] = ([],)

    def draw(self, logits: npt.NDArray[np.float32], rng: Random) -> int:
        """Draw one token id from logits (n_token,)."""
        self.seen[0][:] = [logits]
        return super().draw(logits, rng)


class Whole:
    """The jobs of such a bundle. They take turns: each runs one step."""

    def __init__(self, engine: Model, evaluation: EvaluationSettings, counts: Counts) -> None:
        """Start without jobs."""
        self.engine = engine
        self.evaluation = evaluation
        self.counts = counts
        self._jobs: deque[tuple[Job, Iterator[None]]] = deque()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._jobs

    def add(self, job: Job) -> None:
        """Take a job."""
        self._jobs.append((job, self._run(job)))

    def drop(self) -> None:
        """Forget the jobs for which nobody waits."""
        self._jobs = deque((job, run) for job, run in self._jobs if not (job.cancelled or job.over))

    def step(self) -> None:
        """Run the next step of the job whose turn it is."""
        job, run = self._jobs.popleft()
        try:
            next(run)
        except StopIteration:
            job.finish()
        except Exception as error:
            job.fail(error)
        else:
            self.counts.step(1, 1)
            self._jobs.append((job, run))

    def _run(self, job: Job) -> Iterator[None]:
        """Run a job, and pause after each step."""
        work = job.work
        if work.scores and len(work.ids) > 1:
            for part in Scorer(self.engine, self.evaluation, detail=work.top or None).tokens([work.ids]):
                if not np.isfinite(part.log_probs).all():
                    raise not_finite(1)
                self.counts.read += len(part)
                job.listener.scored(Part(part.log_probs, part.context, part.rank, part.top_ids, part.top_log_probs))
                yield
        for choice, sampling in enumerate(work.samplings if work.max_tokens else ()):
            watched = Watched(sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed, ([],))
            for token in self.engine.generate(
                work.ids, max_tokens=work.max_tokens, sampling=watched, **self.evaluation.to_dict()
            ):
                self.counts.drawn += 1
                if job.listener.drew(choice, likeliest(watched.seen[0][0], token, work.top)):
                    break
                yield
