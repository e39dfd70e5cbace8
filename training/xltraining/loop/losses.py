"""The loss of an update: over all positions of a segment or its later half, with or without intermediate layers."""

from typing import Any

from torch import Tensor

from xltraining.errors import ConfigError
from xltraining.language_model import LanguageModel
from xltraining.training_config import TrainingConfig
from xltraining.transformer_xl import TransformerXL

__all__ = ["check_loss", "first_intermediate", "update_loss"]


def first_intermediate(config: TrainingConfig, n_layer: int, step: int) -> int | None:
    """Return the lowest layer (from 1) whose intermediate loss counts in an update (from 0), or None if none does.

    Layer l of n counts during the first l / 2n of the run, so after half of it only the last layer does (Al-Rfou et al.
    2018, arXiv:1808.04444, section 3.2).
    """
    if not config.auxiliary:
        return None
    counting = [layer for layer in range(1, n_layer) if step * 2 * n_layer < config.steps * layer]
    return min(counting, default=None)


def update_loss(
    model: LanguageModel,
    tokens: Tensor,
    targets: Tensor,
    memory: Any,
    half: bool = False,
    intermediate: int | None = None,
) -> tuple[Tensor, Tensor, Any]:
    """Run one segment.

    Args:
        tokens, targets: (B,S) int64; targets of -100 do not count.
        memory: memory of the segment before it, or None.
        half: count only the later half of the positions (section 4.2 of Dai et al. 2019): S // 2 of them are left out.
        intermediate: lowest layer (from 1) that also predicts, through the same output layer; None: only the last.

    Returns:
        The loss to minimise, which is the sum over all predicting layers; the loss of the last layer alone, without
        gradient; the new memory.
    """
    first = tokens.shape[1] // 2 if half else 0
    targets = targets[:, first:]
    if intermediate is None:
        hidden, memory = model(tokens, memory)
        loss = model.loss(hidden[:, first:], targets)
        return loss, loss.detach(), memory
    assert isinstance(model, TransformerXL)
    outputs, memory = model.forward_layers(tokens, memory)
    *lower, last = (model.dropout(output)[:, first:] for output in outputs[intermediate - 1 :])
    own = model.loss(last, targets)
    total = own
    for hidden in lower:
        total = total + model.loss(hidden, targets)
    return total, own.detach(), memory


def check_loss(model: LanguageModel, config: TrainingConfig) -> None:
    """Check that a model can be trained with the loss that the settings choose.

    Raises:
        ConfigError: it cannot.
    """
    if config.auxiliary and not isinstance(model, TransformerXL):
        raise ConfigError(f"auxiliary losses are for Transformer-XL, found {type(model).__name__}.")
