"""The jobs of a scheduler on a bundle that reads each document in one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from xlexport.serve.jobs import RequestJob, ScoredPiece
from xlexport.serve.stages import Counts, not_finite
from xlexport.serve.turns import QueueEntry, Queues, in_turn
from xlruntime import EvaluationSettings, Model, Random, Sampling
from xlruntime.scorer import Scorer

__all__ = ["FullDocuments"]


@dataclass(frozen=True)
class _Watched(Sampling):
    """A rule of drawing that remembers the logits of the last draw."""

    logits: list[npt.NDArray[np.float32]] = field(default_factory=list)

    def draw(self, logits: npt.NDArray[np.float32], rng: Random, recent: Sequence[int] = ()) -> int:
        """Draw one token id from logits (n_token,), after `recent` tokens."""
        self.logits[:] = [logits]
        return super().draw(logits, rng, recent)


@dataclass(eq=False)
class _Whole(QueueEntry):
    """A job on a bundle that reads each document in one step, with the rest of its steps."""

    steps: Iterator[None]


class FullDocuments:
    """Jobs on a bundle that reads each document in one step. They take turns: each runs one step."""

    def __init__(self, engine: Model, evaluation: EvaluationSettings, counts: Counts) -> None:
        self.engine = engine
        self.evaluation = evaluation
        self.counts = counts
        self.waiting = Queues[_Whole]()
        self.seated = list[tuple[_Whole]]()  # the job of the last step
        self._round = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting

    def add(self, job: RequestJob) -> None:
        """Take a job."""
        document = _Whole(job, self._run(job))
        document.last = self._round
        self.waiting.add(document)

    def drop(self) -> None:
        """Forget the jobs that have ended."""
        self.waiting.drop(self.counts.failed + self.counts.cancelled)

    def step(self) -> None:
        """Run the next step of the job whose turn it is."""
        if self.idle:
            return
        self._round += 1
        document, *_ = in_turn(queue[0] for queue in self.waiting.values())
        self.seated, job = [(document,)], document.job
        try:
            next(document.steps)
        except StopIteration:
            job.finish()
        except Exception as error:
            job.fail(error)
        else:
            self.counts.step(1, 1)
        if job.done():
            self.waiting.take(job.owner)
        if job.owner in self.waiting:
            self.waiting[job.owner][0].last = self._round

    def _run(self, job: RequestJob) -> Iterator[None]:
        """Run a job, and pause after each step."""
        if job.scores and len(job.ids) > 1:
            for part in Scorer(self.engine, self.evaluation, top=job.top or None).tokens([job.ids]):
                if not np.isfinite(part.log_probs).all():
                    raise not_finite(1)
                self.counts.read += len(part)
                job.parts.append(ScoredPiece(part.log_probs, part.context, part.rank, part.top_ids, part.top_log_probs))
                yield
        for choice in job.choices if job.max_tokens else ():
            watched = _Watched(**vars(choice.sampling))
            for token in self.engine.generate(
                job.ids, max_tokens=job.max_tokens, sampling=watched, **self.evaluation.to_dict()
            ):
                self.counts.drawn += 1
                if choice.add(token, watched.logits[0], job.top):
                    break
                yield
            else:
                if choice.drawn < job.max_tokens:
                    choice.stop()
