"""The interface of an architecture, with defaults that suit a plain recurrent model.

A subclass must define `name`, `title`, `evaluation` and `build_step`. It must also define `project_memory`, unless the
graphs carry the eager model's memory unchanged. Everything else has a default: no options, no positions.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from xlexport.errors import ExportError
from xlexport.families.step import FixedSizes, Step
from xltraining.config_fields import Option

if TYPE_CHECKING:
    from torch import Tensor

    from xlexport.families.describe import ModelDescription
    from xlexport.families.workload import Workload
    from xlruntime.bundle import Encoder
    from xlruntime.evaluation import EvaluationRules, EvaluationSettings
    from xlruntime.memory import Memory
    from xltraining.reformer import LSHTrace

__all__ = ["Architecture", "tensors_in_float64"]


def tensors_in_float64(model: Any) -> dict[int, Any]:
    """Return a memo for `copy.deepcopy`, with which a model's copy is in float64, and never in float32."""
    from torch.nn import Parameter

    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            exact = tensor.double()
            memo[id(tensor)] = Parameter(exact, tensor.requires_grad) if isinstance(tensor, Parameter) else exact
    return memo


class Architecture(ABC):
    """All code and constants that depend on one architecture.

    `config` is always the plain mapping of hyper-parameters that checkpoints and bundles hold. `model` is the trained
    model in PyTorch, whose interface is `xltraining.language_model.LanguageModel`.

    Attributes:
        name: the identifier in checkpoints and bundles.
        title: the name that people read.
        gives_buckets: whether the model must copy the graphs' hash buckets, which rounding can flip.
        sizes: fields of the configuration in which a bundle and its trained model agree; empty: all.
        evaluation_options: settings that users of a bundle may choose, in addition to `segment_len` and `mem_len`.
        conversion_options: choices of a conversion, in addition to these settings.
        converted_fields: fields of the configuration that a conversion may change.
        further_lengths: lengths of segments that a conversion compares in addition to the bundle's own.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    gives_buckets: ClassVar[bool] = False
    sizes: ClassVar[Sequence[str]] = ()
    evaluation_options: ClassVar[Sequence[Option]] = ()
    conversion_options: ClassVar[Sequence[Option]] = ()
    converted_fields: ClassVar[Sequence[str]] = ()
    further_lengths: ClassVar[Sequence[int]] = ()

    # What `inspect` and `bench` say of a model

    def title_of(self, config: Mapping[str, Any]) -> str:
        """Return the name that people read of the model with this configuration."""
        return self.title

    def description(self) -> ModelDescription:
        """Return what people read about a model."""
        from xlexport.families.describe import ModelDescription

        return ModelDescription()

    def workload(self) -> Workload:
        """Return what a step computes and reads."""
        from xlexport.families.workload import Workload

        return Workload()

    # Conversion

    def encoder(self, config: Mapping[str, Any]) -> Encoder | None:
        """Return what the manifest declares of the encoder; None if the model reads documents, not pairs of texts."""
        return None

    @abstractmethod
    def evaluation(self, config: Mapping[str, Any]) -> EvaluationRules:
        """Return the default rules of evaluation, which the user may change."""

    def check(self, model: Any, special: Collection[int]) -> Any:
        """Check a trained model before its export; return its `Horizon`, or None if its documents have no end.

        Args:
            special: ids that the tokenizer gives a role.

        Raises:
            ExportError: the model breaks a rule of its architecture.
        """
        return None

    @abstractmethod
    def build_step(self, model: Any) -> Step:
        """Return the step module of a trained model, with at least the purposes `score`, `generate` and `detail`."""

    def build_fixed_step(self, model: Any, fixed: FixedSizes) -> Step:
        """Return the step module of a trained model whose axes are all fixed, and whose memories are no rings.

        No shape in its graphs depends on values of inputs, and none has a loop over data.

        Raises:
            ExportError: the model cannot be computed so.
        """
        raise ExportError(f"--fixed is not possible for a {self.title}.", hint="Leave --fixed out.")

    def available(self, config: Mapping[str, Any], choices: Mapping[str, Any]) -> Collection[str]:
        """Return the names of the options that this model has; `convert` rejects all others.

        By default these are the settings of its evaluation, and all conversion options of the architecture.
        """
        return {
            "segment_len",
            *self.evaluation(config).settings,
            *(option.name for option in self.conversion_options),
        }

    def kind(self, config: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
        """Return the kind of a model with its article, such as "a Reformer", for messages."""
        return f"{'an' if self.title[0] in 'AEIOUaeiou' else 'a'} {self.title}"

    def choose(
        self, config: Mapping[str, Any], choices: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Return the configuration of the bundle under the user's choices, and notes about them for the user."""
        return config, ()

    def configured(self, model: Any, config: Mapping[str, Any], evaluation: EvaluationSettings | None = None) -> Any:
        """Return a trained model under a bundle's configuration, and under these settings; weights are shared."""
        return model

    # Verification

    def expected(
        self, model: Any, tokens: Tensor, memory: Any, buckets: Sequence[Tensor | None] = ()
    ) -> tuple[Tensor, Any, Sequence[LSHTrace]]:
        """Run a trained model on a segment.

        Args:
            tokens: (1, S) int64.
            memory: of the segment before; None begins a document.
            buckets: of `buckets`, which the model uses instead of its own.

        Returns:
            Hidden states (1, S, D), the memory after the segment, and the record of each layer's LSH attention.
        """
        hidden, memory = model(tokens, memory)
        return hidden, memory, ()

    def possible_ids(self, model: Any) -> npt.NDArray[np.int64]:
        """Return the ids that a trained model does not call impossible; by default all."""
        return np.arange(model.config.n_token)

    def buckets(
        self, model: Any, memory: Memory, outputs: Mapping[str, npt.NDArray[Any]], S: int
    ) -> Sequence[Tensor | None]:
        """Return the bucket ids that a graph chose for the last S tokens, if the architecture `gives_buckets`.

        Args:
            memory: of the graph after the step, and its other `outputs`.

        Returns:
            Ids (1, H, R, S) int64 for each layer with LSH attention, None for each other layer.
        """
        return ()

    def in_float64(self, model: Any) -> Any | None:
        """Return a copy of a trained model in float64; None if it cannot compute in it, so rounding is not judged."""
        return copy.deepcopy(model, tensors_in_float64(model))

    def project_memory(self, model: Any, memory: Any, newest: int | None = None) -> Iterable[tuple[str, Tensor]]:
        """Return an eager model's memory in the form of the graphs: name of the input, and rows by age or the state.

        The default expects that the memory already is a mapping of those names.

        Args:
            newest: how many of the newest rows are enough; None: all are needed.
        """
        rows: Mapping[str, Tensor] = memory
        return rows.items()
