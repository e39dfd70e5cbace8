"""Continue the training of a checkpoint of any format: its configuration, its weights and its vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xlexport.checkpoints import SourceCheckpoint
from xlexport.errors import CheckpointError
from xlexport.model_description import model_description
from xlexport.model_names import load_source
from xlexport.tokenizer_choice import choose_tokenizer
from xlruntime.messages import listed
from xltraining.architectures import architecture_names, architecture_of, config_from
from xltraining.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from xltraining.config_fields import ModelConfig
    from xltraining.data.token_shards import PreparedData

__all__ = ["InitialModel", "read_initial"]

BYTES = 256  # tokens of a text that is read as bytes


@dataclass(frozen=True)
class InitialModel:
    """A trained model whose training goes on.

    Attributes:
        name: the name that the user gave.
        weights: its state dict, float32.
        free: fields of the configuration that may change, because the weights do not depend on them.
    """

    name: str
    source: SourceCheckpoint
    config: ModelConfig
    weights: Mapping[str, Tensor]
    free: frozenset[str]

    @property
    def architecture(self) -> str:
        """Its name in `xltraining.architectures`."""
        return architecture_of(self.config)

    def changed(self, changes: Mapping[str, Any]) -> ModelConfig:
        """Return the configuration with changes of its free fields.

        Raises:
            CheckpointError: the checkpoint lacks a setting, and the changes do not have it.
            ConfigError: the values contradict each other.
        """
        fields = model_description(self.architecture).evaluation_fields
        if missing := [fields[need] for need in self.source.needs if fields[need] not in changes]:
            raise CheckpointError(
                f"{self.name}: does not hold {listed(missing)}.", hint="Give these settings of its training."
            )
        return config_from(self.architecture, {**self.config.to_dict(), **changes})

    def check_vocabulary(self, data: PreparedData | None) -> None:
        """Check that tokens of the training data mean what they mean in the checkpoint.

        A checkpoint that does not say what its tokens are is only compared by their number.

        Args:
            data: prepared data; None: texts, read as bytes.

        Raises:
            CheckpointError: they mean something else.
        """
        n_token, data_tokens = self.config.n_token, BYTES if data is None else data.n_token
        if n_token != data_tokens:
            raise self._unfit(f"{n_token:,} tokens, but the training data has {data_tokens:,}")
        if self.source.tokenizer not in (None, "none"):
            own = choose_tokenizer(self.source).content
            if own != (None if data is None else data.tokenizer_file()):
                raise self._unfit(f"a vocabulary of {n_token:,} tokens, but the training data has another one")

    def _unfit(self, what: str) -> CheckpointError:
        advice = "Prepare the texts with its vocabulary: xlexport prepare --tokenizer FILE."
        return CheckpointError(f"{self.name}: {what}.", hint=advice)


def read_initial(name: str) -> InitialModel:
    """Read the checkpoint that a name means, as `convert` does.

    Raises:
        CheckpointError: it is damaged, or of a model that `train` does not train.
    """
    source = load_source(name)
    model = source.build_model()
    model = getattr(model, "module", model)  # an LSTM or Mamba of ours is inside a recurrent model
    try:
        architecture = architecture_of(getattr(model, "config", None))
    except ConfigError as error:
        raise CheckpointError(
            f"{name}: of the architecture {source.architecture}, which `train` does not train.",
            hint=f"Give a checkpoint of one of these: {', '.join(architecture_names())}.",
        ) from error
    free = frozenset({*model_description(architecture).evaluation_fields.values(), "dropout", "dropatt"})
    return InitialModel(name, source, model.config, model.state_dict(), free)
