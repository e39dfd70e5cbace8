"""The measured work: a step of the graphs on full memory, and the same work by the eager model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.families import architecture, workload_of
from xlruntime.evaluation import EvaluationSettings
from xlruntime.model import Model
from xlruntime.session import GraphSession

__all__ = ["EagerSide", "GraphSide", "Purpose", "StepWork"]

Purpose = Literal["score", "generate"]


@dataclass(frozen=True)
class StepWork:
    """One step: `segment_len` tokens in each of `batch_size` rows, with full memory."""

    purpose: Purpose
    evaluation: EvaluationSettings
    segment_len: int
    batch_size: int

    @property
    def tokens(self) -> int:
        """The number of results: all scored tokens, or one generated token in each row."""
        return self.batch_size * (self.segment_len if self.purpose == "score" else 1)

    @property
    def position(self) -> int:
        """The position of the step in its document: after a full memory, or as far as positions allow."""
        if self.evaluation.full_document:
            return 0
        last, mem_len = self.evaluation.longest_part, self.evaluation.most_rows
        return mem_len if last is None else min(mem_len, max(0, last - self.segment_len))

    def ids(self, config: Mapping[str, Any]) -> npt.NDArray[np.int64]:
        """Return random tokens and their targets, (2, B, S).

        A vocabulary in clusters is sorted by frequency, and the cost of its rare tokens depends on their frequency. So
        its token i is drawn with a probability of about 1 / (i + 1) (Zipf's law); otherwise all are equally probable.
        """
        random, shape = np.random.default_rng(0), (2, self.batch_size, self.segment_len)
        V = config["n_token"]
        if config.get("cutoffs"):
            return np.minimum(np.exp(random.random(shape) * math.log(V + 1)).astype(np.int64) - 1, V - 1)
        return random.integers(0, V, shape)


class GraphSide:
    """Steps of the graph that the work uses, each at the next place of the ring."""

    def __init__(self, model: Model, work: StepWork) -> None:
        self.model, self.work = model, work
        self.graph = model.graph_for(work.purpose, work.segment_len)
        self.tokens, self.targets = work.ids(model.bundle.config)
        self.memory = model.new_memory(work.evaluation, work.batch_size)
        self.memory.memory_length[:] = work.evaluation.most_rows
        random = np.random.default_rng(0)
        values = workload_of(model.bundle.architecture).integer_values(model.bundle.config)
        for entry in self.memory.entries:
            if entry.dtype == "int32":  # equal ids everywhere would change the work
                ids = self.memory.array(entry)
                ids[:] = random.integers(0, values, ids.shape)
                if not model.device.on_host:
                    self.memory.values[entry.input].update_inplace(ids)

    def step(self) -> object:
        """Run one step as an application does."""
        self._move_to_position()
        return self.model.step(self.work.purpose, self.memory, self.tokens, self.targets)

    def step_in(self, session: GraphSession) -> object:
        """Run one step in another session of the graph."""
        self._move_to_position()
        segment = {"tokens": self.tokens, "targets": self.targets}
        outputs = session.step(self.memory.feeds(session.graph, segment), self.memory)
        self.memory.advance(self.work.segment_len)
        return outputs

    def _move_to_position(self) -> None:
        # Some models have a last position; every step must be measured at a valid one.
        self.memory.position[:] = self.work.position


class EagerSide:
    """The eager model of a checkpoint; PyTorch is first imported here."""

    def __init__(self, source: SourceCheckpoint) -> None:
        import torch

        self.source = source
        self.threads = torch.get_num_threads()  # PyTorch's initial number

    def step(self, config: Mapping[str, Any], work: StepWork, threads: int | None) -> Callable[[], object]:
        """Return a function that runs one step, with the paper's memory of hidden states.

        Args:
            config: the bundle's configuration, which may have another rule than the checkpoint.
        """
        import torch

        torch.set_num_threads(threads or self.threads)
        tokens, targets = map(torch.from_numpy, work.ids(config))
        evaluation = work.evaluation
        adapter = architecture(self.source.architecture)
        eager = adapter.configured(self.source.build_model(), config, evaluation)
        memory, carries = workload_of(self.source.architecture).eager_start(eager, work.position, work.batch_size)
        state = {"memory": memory}

        @torch.inference_mode()
        def step() -> object:
            hidden, memory = eager(tokens, state["memory"])
            if carries:
                state["memory"] = memory
            return eager.log_probs(hidden, targets) if work.purpose == "score" else eager.logits(hidden[:, -1])

        return step
