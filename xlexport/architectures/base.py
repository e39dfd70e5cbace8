"""The interface of an architecture, with defaults that suit a plain recurrent model.

A subclass must define `name`, `title`, `evaluation` and `build_step`. It must also define `project_memory`, unless the
graphs carry the eager model's memory unchanged. Everything else has a default: no options, no positions.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from xlexport.architectures.step import Step
from xlexport.errors import ExportError
from xltraining.config_fields import Option

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor
    from torch.utils.hooks import RemovableHandle

    from xlruntime.bundle import Bundle, Encoder
    from xlruntime.evaluation import EvaluationRules, EvaluationSettings
    from xlruntime.memory import Memory
    from xltraining.reformer import LSHTrace

__all__ = ["Architecture", "Row", "stream_memory"]

Row = tuple[str, str]  # name and value, in a table for people


class Architecture(ABC):
    """All code and constants that depend on one architecture.

    `config` is always the plain mapping of hyper-parameters that checkpoints and bundles hold. `model` is the trained
    model in PyTorch, whose interface is `xltraining.language_model.LanguageModel`.

    Attributes:
        name: the identifier in checkpoints and bundles.
        title: the name that people read.
        supports: names of features: `attention-plot`, `torchscript`.
        unsupported: for each feature that is not possible, the reason and the alternative.
        gives_buckets: whether graphs decide by rounding something that the eager model must take from them.
        first_bytes: sizes of vocabularies that a byte tokenizer fits, and the id of byte 0 in each.
        evaluation_options: settings that users of a bundle may choose, besides `segment_len` and `mem_len`.
        conversion_options: choices of a conversion, besides those settings.
        converted_fields: fields of the configuration that a conversion may change.
        evaluation_fields: settings of an evaluation, and the fields of the configuration that hold them.
        fixed_fields: fields that decide how the model is evaluated, but that users cannot choose.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    supports: ClassVar[frozenset[str]] = frozenset()
    unsupported: ClassVar[Mapping[str, tuple[str, str]]] = {}
    gives_buckets: ClassVar[bool] = False
    first_bytes: ClassVar[Mapping[int, int]] = {256: 0}
    evaluation_options: ClassVar[Sequence[Option]] = ()
    conversion_options: ClassVar[Sequence[Option]] = ()
    converted_fields: ClassVar[Sequence[str]] = ()
    evaluation_fields: ClassVar[Mapping[str, str]] = {"segment_len": "tgt_len"}
    fixed_fields: ClassVar[Sequence[str]] = ()

    # EvaluationSettings and conversion

    def encoder(self, config: Mapping[str, Any]) -> Encoder | None:
        """Return what the manifest declares of the encoder; None if the model reads documents, not pairs of texts."""
        return None

    @abstractmethod
    def evaluation(self, config: Mapping[str, Any]) -> EvaluationRules:
        """Return the default rules of evaluation, which the user may change."""

    @abstractmethod
    def build_step(self, model: Any, choices: Mapping[str, Any]) -> Step:
        """Return the step module of a trained model, with at least the purposes `score`, `generate` and `detail`.

        Args:
            choices: the chosen conversion options, by name; None means not chosen.
        """

    def available(self, config: Mapping[str, Any], choices: Mapping[str, Any]) -> Collection[str]:
        """Return the names of the options that this model has; `convert` rejects all others.

        By default these are the settings that the configuration has fields for, and all options of the architecture.
        """
        return {
            *self.evaluation_fields,
            *(option.name for option in (*self.evaluation_options, *self.conversion_options)),
        }

    def kind(self, config: Mapping[str, Any], choices: Mapping[str, Any]) -> str:
        """Return the kind of a model with its article, such as "a Reformer", for messages."""
        return f"{'an' if self.title[0] in 'AEIOU' else 'a'} {self.title}"

    def choose(
        self, config: Mapping[str, Any], choices: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Return the configuration of the bundle under the user's choices, and notes about them for the user."""
        return config, ()

    def as_converted(self, model: Any, config: Mapping[str, Any]) -> Any:
        """Return a trained model changed to this configuration of a bundle; weights are shared."""
        return model

    def under_evaluation(self, model: Any, evaluation: EvaluationSettings) -> Any:
        """Return a trained model under a bundle's settings; weights are shared."""
        return model

    def evaluated_config(self, config: Mapping[str, Any], evaluation: EvaluationSettings) -> Mapping[str, Any]:
        """Return the configuration, updated with the evaluation settings that have a field in it."""
        return config

    def same_model(self, config: Mapping[str, Any], converted: Mapping[str, Any]) -> bool:
        """Return whether the configurations of a checkpoint and a bundle are equal, except `converted_fields`."""
        return dict(config) == dict(converted) | {name: config.get(name) for name in self.converted_fields}

    def register_operators(self) -> None:  # noqa: B027  # most have none
        """Register the PyTorch operators that exported programs of such models use."""

    # Verification

    def comparable_sizes(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values that must be equal so that two models can be compared, by default the configuration."""
        return config

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
        return copy.deepcopy(model).double()

    def project_memory(self, model: Any, memory: Any, newest: int | None = None) -> Iterable[tuple[str, Tensor]]:
        """Return an eager model's memory in the form of the graphs: name of the input, and rows by age or the state.

        The default expects that the memory already is a mapping of those names.

        Args:
            newest: how many of the newest rows are enough; None: all are needed.
        """
        rows: Mapping[str, Tensor] = memory
        return rows.items()

    def observe_attention(self, model: Any, add: Callable[[int, Tensor], None]) -> list[RemovableHandle]:
        """Pass each layer's number and attention weights (H, S, K) to `add`, until the handles are removed.

        Only an architecture that supports `attention-plot` needs it.

        Raises:
            ExportError: the architecture does not define it.
        """
        raise ExportError(
            f"{self.name}: the attention weights of this architecture cannot be observed.",
            hint="Define observe_attention in its Architecture.",
        )

    # What people see

    def summary(self, config: Mapping[str, Any]) -> str:
        """Return the sizes of a model in words, for the README of its bundle."""
        hidden = {*self.evaluation_fields.values(), "n_token", "dropout", "dropatt"}
        return ", ".join(f"{name} {value}" for name, value in config.items() if name not in hidden)

    def describe(self, config: Mapping[str, Any]) -> list[Row]:
        """Return the rows that `inspect` prints about a model's layers, in addition to its configuration."""
        return []

    def bundle_rows(self, bundle: Bundle, folder: Path) -> list[Row]:
        """Return the rows that `inspect` prints about a bundle: its evaluation and its memory."""
        segment = ("segment", f"{bundle.evaluation.segment_len:,}")
        return [*self.describe(bundle.config), segment, ("memory of a stream", stream_memory(bundle))]

    def checkpoint_settings(self, config: Mapping[str, Any], needs: Collection[str]) -> dict[str, Any]:
        """Return the evaluation settings that a checkpoint holds; None for a setting that the user must give."""
        fields = self.evaluation_fields.items()
        held = {name: None if name in needs else config[field] for name, field in fields}
        return {**held, **{name: config[name] for name in self.fixed_fields}}

    def checkpoint_rows(self, config: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Row]:
        """Return further rows of `inspect` for a checkpoint, after its configuration and `checkpoint_settings`."""
        return self.describe(config)


def stream_memory(bundle: Bundle) -> str:
    """Return the size of one stream's memory, in words."""
    import numpy as np

    free = {"batch": 1, **{symbol: bundle.settings.slots(symbol) for symbol in bundle.evaluation.rings}}
    total = sum(
        np.dtype(entry.dtype).itemsize
        * math.prod(axis if isinstance(axis, int) else free[axis] for axis in entry.shape)
        for entry in bundle.memory
    )
    return f"{total / 1e6:,.1f} MB in {len(bundle.memory)} tensors"
