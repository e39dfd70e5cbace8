"""The table of trainable architectures: the name, configuration and model of each.

No other module of this package names an architecture. Configurations need no torch; models are imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from xltraining.config_fields import ModelConfig
from xltraining.encoder_decoder.config import EncoderDecoderConfig
from xltraining.errors import ConfigError
from xltraining.messages import shown
from xltraining.recurrent.config import LSTMConfig, MambaConfig
from xltraining.reformer.config import ReformerConfig
from xltraining.transformer_xl.config import TransformerXLConfig

if TYPE_CHECKING:
    from xltraining.language_model import LanguageModel
    from xltraining.layers.swapping import LayerStore

__all__ = [
    "FIRST",
    "architecture_names",
    "architecture_of",
    "config_class",
    "config_from",
    "model_class",
    "new_model",
    "shared_names",
]

FIRST = "transformer_xl"  # the architecture of checkpoints of versions 1 and 2, which do not name one


def _model(package: str, name: str) -> Callable[[], type[LanguageModel]]:
    return lambda: cast("type[LanguageModel]", getattr(import_module(f"xltraining.{package}.model"), name))


_ARCHITECTURES: dict[str, tuple[type[ModelConfig], Callable[[], type[LanguageModel]]]] = {
    FIRST: (TransformerXLConfig, _model(FIRST, "TransformerXL")),
    "reformer": (ReformerConfig, _model("reformer", "Reformer")),
    "encoder_decoder": (EncoderDecoderConfig, _model("encoder_decoder", "EncoderDecoder")),
    "lstm": (LSTMConfig, _model("recurrent", "LSTM")),
    "mamba": (MambaConfig, _model("recurrent", "Mamba")),
}


def architecture_names() -> list[str]:
    """Return the names of all architectures, in the order of the table."""
    return list(_ARCHITECTURES)


def architecture_of(config: object) -> str:
    """Return the name of the architecture that a configuration belongs to.

    Raises:
        ConfigError: its class is not in the table.
    """
    for name, (kind, _) in _ARCHITECTURES.items():
        if type(config) is kind:
            return name
    names = ", ".join(kind.__name__ for kind, _ in _ARCHITECTURES.values())
    raise ConfigError(f"configuration {type(config).__name__} is of no known architecture, expected one of {names}.")


def config_from(architecture: object, values: Mapping[str, Any]) -> ModelConfig:
    """Make the configuration of an architecture from plain values.

    Raises:
        ConfigError: the architecture is unknown, or values are invalid. The message lists all of them.
    """
    return config_class(architecture).from_dict(values)


def config_class(architecture: object) -> type[ModelConfig]:
    """Return the class of an architecture's configurations.

    Raises:
        ConfigError: the architecture is unknown.
    """
    if not isinstance(architecture, str) or architecture not in _ARCHITECTURES:
        raise ConfigError(f"architecture must be one of {', '.join(_ARCHITECTURES)}, found {shown(architecture)}.")
    return _ARCHITECTURES[architecture][0]


def model_class(config: ModelConfig) -> type[LanguageModel]:
    """Return the class of the models that a configuration describes."""
    return _ARCHITECTURES[architecture_of(config)][1]()


def new_model(config: ModelConfig, store: LayerStore | None = None) -> LanguageModel:
    """Make a model with fresh weights, drawn from torch's random state.

    Args:
        store: takes each layer as soon as it is made, so that no other one is in memory.

    Raises:
        ConfigError: a store was given, but the architecture has none.
    """
    model = model_class(config)
    if store is None:
        return model(config)
    if not model.SWAPS:
        raise ConfigError(f"swap_layers needs a Reformer, found a {config.NAME}.")
    return cast(Any, model)(config, store)


def shared_names(config: ModelConfig) -> dict[str, str]:
    """Return the second names of tied tensors, each with the name that owns the tensor."""
    return model_class(config).tied_names(config)
