"""The trained model in PyTorch next to the graphs: its results for each span, in float32 and in float64.

Two float32 computations of one model err alike, only at other places. So the float32 model's own errors against float64
say how exact a graph can be, for any model and text.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport.errors import ParityError
from xlexport.families import architecture as architecture_of_name
from xlexport.verification.spans import Ids, Span
from xlexport.verification.tolerances import OWN_ERRORS, tolerance_of

if TYPE_CHECKING:
    from torch import Tensor

    from xlexport.families import Architecture
    from xlruntime.engine import Engine
    from xlruntime.evaluation import EvaluationSettings
    from xltraining.reformer import LSHTrace

__all__ = ["BEST", "LARGEST_TABLE", "Answer", "Buckets", "Eager", "Expected", "NamedRows", "check_sizes"]

BEST = 64  # most probable tokens that are kept for each position; the detail graph lists fewer
LARGEST_TABLE = 1 << 22  # numbers in a table of log-probabilities
MOST_NATS = 1e30  # in place of infinity, where it is multiplied by zero

Buckets = Sequence["Tensor | None"]  # of each layer, (1, H, R, S) int64; None for a layer without LSH attention
NamedRows = tuple[str, npt.NDArray[Any]]
"""Input of a memory, and its rows (H, rows, d_head), oldest first, or its state."""


@dataclass(frozen=True)
class Expected:
    """The eager model's results for consecutive tokens."""

    tokens: Ids  # (1, S)
    targets: Ids  # (1, S)
    log_prob: npt.NDArray[np.float32]  # (S,) of each target
    entropy: npt.NDArray[np.float32]  # (S,)
    best_ids: Ids  # (S, k), most probable first
    best_log_probs: npt.NDArray[np.float32]  # (S, k)
    ranks: Ids  # (2, S) lowest and highest rank of each target that are possible within tolerance
    last: npt.NDArray[np.float32] | None  # (n_token,) of every token, at the last position; None: not kept

    def part(self, start: int, stop: int) -> Expected:
        """Return the results for the positions from `start` to `stop`."""
        return Expected(
            self.tokens[:, start:stop],
            self.targets[:, start:stop],
            self.log_prob[start:stop],
            self.entropy[start:stop],
            self.best_ids[start:stop],
            self.best_log_probs[start:stop],
            self.ranks[:, start:stop],
            self.last if stop == len(self.log_prob) else None,
        )


@dataclass(frozen=True)
class Answer:
    """What the eager model computes for a span.

    Attributes:
        first_rows: the rows of each memory before a span that begins a document.
        rows: the newest rows of each memory after the span, at least those of its tokens.
        memory: all rows of each memory; None if only the newest are compared.
        trace: the record of each LSH layer's work.
        exact: the answer of the model in float64, without `memory`; None: not computed.
    """

    expected: Expected
    first_rows: list[NamedRows]
    rows: list[NamedRows]
    memory: list[NamedRows] | None
    trace: Sequence[LSHTrace]
    exact: Answer | None = None


class Eager:
    """The trained model under a bundle's settings, with a cache of its last answer, which other graphs may reuse.

    Args:
        own: the relative error of log-probabilities in float32, if it is known from another walk.

    Raises:
        ParityError: the trained model and the bundle differ in architecture or sizes.
    """

    def __init__(
        self, architecture: Architecture, model: Engine, trained: Any, evaluation: EvaluationSettings, own: float = 0.0
    ) -> None:
        _check_architecture(model, trained)
        trained = architecture.configured(trained, model.bundle.config)
        check_sizes(model, trained)
        self.architecture, self.engine, self.evaluation = architecture, model, evaluation
        self.trained = trained
        self.model = architecture.configured(trained, model.bundle.config, evaluation)
        self.slack = 2 * max(tolerance_of(model.bundle).log_prob, OWN_ERRORS * own)
        self._question: tuple[Span, Any, Buckets] | None = None
        self._answer: tuple[Answer, Any] | None = None

    def under(self, evaluation: EvaluationSettings) -> Eager:
        """Return the same trained model under other settings; weights are shared."""
        return Eager(self.architecture, self.engine, self.trained, evaluation)

    def in_float64(self) -> Eager | None:
        """Return the same model in float64; None if its architecture has none."""
        model = self.architecture.in_float64(self.model)
        if model is None:
            return None
        exact = copy.copy(self)
        exact.model = exact.trained = model
        exact._question = exact._answer = None
        return exact

    def read_exactly(self, span: Span, memory: Any, buckets: Buckets = (), keeps: bool = True) -> tuple[Answer, Any]:
        """Return what `read` does of a model in float64, with memories in float32, or none of them.

        Raises:
            ParityError: the model computes with fewer bits somewhere.
        """
        answer, memory = self.read(span, memory, False, buckets)
        if answer.expected.log_prob.dtype != np.float64:
            raise ParityError(
                f"the trained model in float64 returns {answer.expected.log_prob.dtype}.",
                hint="Let its Architecture return None from in_float64, or convert no numbers in the model.",
            )
        kept = answer.rows if keeps else []
        rows = [(name, row.astype(np.float32) if row.dtype == np.float64 else row) for name, row in kept]
        return dataclasses.replace(answer, rows=rows), memory

    def nats(self, spans: Sequence[Span]) -> float:
        """Return the nats of a text if the model chooses its own buckets."""
        import torch

        nats, memory = 0.0, None
        with torch.inference_mode():
            for span in spans:
                tokens = torch.from_numpy(span.tokens)
                hidden, memory, _ = self.architecture.expected(self.model, tokens, memory if span.position else None)
                nats -= float(self.model.log_probs(hidden, torch.from_numpy(span.targets)).sum(dtype=torch.float64))
        return nats

    def first_rows(self) -> list[NamedRows]:
        """Return the rows of each memory at the start of a document."""
        return self._project(self.model.first_memory(1))

    def read(
        self, span: Span, memory: Any, whole: bool, buckets: Buckets = (), exact: Answer | None = None
    ) -> tuple[Answer, Any]:
        """Run a span after `memory`; return the results, and the memory after it.

        Args:
            memory: of the span before; not used for a span that begins a document.
            whole: whether to return all rows of the memories.
            buckets: ids that replace the model's own; empty: it chooses them.
            exact: the answer of the model in float64, if it is known.
        """
        import torch

        memory = _first_memory(self.model, span) if span.position == 0 else memory
        if self._answer is not None and self._is_asked_again(span, memory, buckets):
            return self._answer
        with torch.inference_mode():
            tokens = torch.from_numpy(span.tokens)
            hidden, after, trace = self.architecture.expected(self.model, tokens, memory, buckets)
        answer = Answer(
            self._reduce(hidden, span, exact),
            self.first_rows() if span.position == 0 else [],
            self._project(after, newest=span.tokens.shape[1]),
            self._project(after) if whole else None,
            trace,
            exact,
        )
        self._question, self._answer = (span, memory, buckets), (answer, after)
        return self._answer

    def _is_asked_again(self, span: Span, memory: Any, buckets: Buckets) -> bool:
        assert self._question is not None
        last_span, last_memory, last_buckets = self._question
        return (
            span is last_span
            and memory is last_memory
            and all(
                one is None or (other is not None and bool((one == other).all()))
                for one, other in zip(buckets, last_buckets, strict=True)
            )
        )

    def _project(self, memory: Any, newest: int | None = None) -> list[NamedRows]:
        """Return the memory in the form of the graphs', all rows of it or the newest."""
        import torch

        if self.evaluation.full_document:  # nothing is carried
            return []
        with torch.inference_mode():
            return [
                (name, rows[0].numpy())
                for name, rows in self.architecture.project_memory(self.model, memory, newest=newest)
            ]

    def _reduce(self, hidden: Tensor, span: Span, exact: Answer | None) -> Expected:
        """Reduce distributions, a few positions at a time; all at once may be larger than the model.

        Args:
            hidden: (1, S, D), what the model returned for the span.
        """
        import torch

        n_token = self.model.config.n_token
        own, entropy, best_ids, best_log_probs, ranks = [], [], [], [], []
        with torch.inference_mode():
            targets = torch.from_numpy(span.targets)[0]
            for places in torch.arange(hidden.shape[1]).split(max(1, LARGEST_TABLE // n_token)):
                log_probs = self.model.all_log_probs(hidden[:, places])[0]  # (n, n_token)
                target = log_probs.gather(1, targets[places, None])  # (n, 1)
                own.append(target[:, 0])
                if exact is not None:
                    error = (target[:, 0] - torch.from_numpy(exact.expected.log_prob)[places]).abs()
                    relative = float((error / target[:, 0].abs().clamp(1, MOST_NATS)).max())
                    self.slack = max(self.slack, 2 * OWN_ERRORS * relative)
                # Both the target and the token that it is compared with may differ within tolerance.
                slack = self.slack * target.abs().clamp(1, MOST_NATS)
                better = [(log_probs > target + slack).sum(dim=1) + 1, (log_probs >= target - slack).sum(dim=1)]
                ranks.append(torch.stack(better))
                entropy.append(-(log_probs.exp() * log_probs.clamp(min=-MOST_NATS)).sum(dim=1))
                best = log_probs.topk(min(BEST, n_token), dim=1)
                best_ids.append(best.indices)
                best_log_probs.append(best.values)
        return Expected(
            span.tokens,
            span.targets,
            torch.cat(own).numpy(),
            torch.cat(entropy).numpy(),
            torch.cat(best_ids).numpy(),
            torch.cat(best_log_probs).numpy(),
            torch.cat(ranks, dim=1).numpy(),
            log_probs[-1].numpy().copy(),
        )


def _first_memory(model: Any, span: Span) -> Any:
    """Return the memory with which a trained model begins the document of a span; None: the model makes it."""
    import torch

    if span.source is None:
        return None
    with torch.inference_mode():
        return model.encode(torch.from_numpy(span.source[None]))


def _check_architecture(model: Engine, eager: Any) -> None:
    """Raise ParityError if model and bundle have different architectures."""
    from xltraining.architectures import architecture_of

    name = getattr(eager, "ARCHITECTURE", None) or architecture_of(eager.config)
    if name != model.bundle.architecture:
        raise ParityError(
            f"{model.folder}: the bundle holds a {model.bundle.architecture} model, the checkpoint a {name} model.",
            hint="Give the checkpoint that the bundle was converted from.",
        )


def check_sizes(model: Engine, eager: Any) -> None:
    """Raise ParityError, with all differences, if the trained model and the bundle have different sizes."""
    _check_architecture(model, eager)
    bundled, trained = model.bundle.config, eager.config.to_dict()
    problems = [
        f"{name} is {_text(bundled.get(name))} in the bundle, {_text(trained.get(name))} in the trained model"
        for name in architecture_of_name(model.bundle.architecture).sizes or bundled
        if bundled.get(name) != trained.get(name)
    ]
    if problems:
        raise ParityError(f"{'; '.join(problems)}.", hint="Give the checkpoint that the bundle was converted from.")


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
