"""The architectures that are trained here: which name, configuration and model belong together."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from xltraining.errors import ConfigError
from xltraining.messages import shown
from xltraining.reformer import Reformer
from xltraining.reformer_config import ReformerConfig
from xltraining.transformer_xl import TransformerXL, tied_names
from xltraining.transformer_xl_config import TransformerXLConfig

__all__ = ["ARCHITECTURES", "Model", "ModelConfig", "architecture_of", "config_from", "new_model", "shared_names"]

ModelConfig: TypeAlias = TransformerXLConfig | ReformerConfig
Model: TypeAlias = TransformerXL | Reformer

ARCHITECTURES: dict[str, type[TransformerXLConfig] | type[ReformerConfig]] = {
    "transformer_xl": TransformerXLConfig,
    "reformer": ReformerConfig,
}


def architecture_of(config: ModelConfig) -> str:
    """The name of the architecture that a configuration is of."""
    return "reformer" if isinstance(config, ReformerConfig) else "transformer_xl"


def config_from(architecture: object, values: Mapping[str, Any]) -> ModelConfig:
    """The configuration of an architecture from plain values.

    Raises:
        ConfigError: there is no such architecture, or the values do not do; lists all of them.
    """
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise ConfigError(f"architecture must be one of {', '.join(ARCHITECTURES)}, found {shown(architecture)}")
    return ARCHITECTURES[architecture].from_dict(values)


def new_model(config: ModelConfig) -> Model:
    """A model with fresh weights, drawn from torch's random state."""
    return TransformerXL(config) if isinstance(config, TransformerXLConfig) else Reformer(config)


def shared_names(config: ModelConfig) -> dict[str, str]:
    """Tensors that are another one under a second name: that name to the one that owns the tensor."""
    return tied_names(config) if isinstance(config, TransformerXLConfig) else {}
