"""Bits per byte of a text, walked with carried memory."""

import math
from typing import Any

import torch
from torch import Tensor

from xltraining.errors import DataError
from xltraining.language_model import LanguageModel

__all__ = ["evaluate"]


@torch.no_grad()
def evaluate(model: LanguageModel, text: Tensor, segment_len: int, batch_size: int = 1) -> float:
    """Return bits per byte of a text (N,) uint8, read with carried memory as `batch_size` streams of equal length.

    The first byte of each stream is not scored, nor is a remainder of fewer than `batch_size` bytes. At the model's
    last position, a stream continues as a new document. The model is in evaluation mode during the call.

    Raises:
        DataError: the text has fewer than two bytes for each stream.
    """
    rows = text[: len(text) // batch_size * batch_size].view(batch_size, -1)  # (B,N/B)
    rows = rows.to(next(model.parameters()).device).long()
    scored = rows.shape[1] - 1
    if scored < 1:
        raise DataError(f"the text has {len(text)} bytes, but {batch_size} streams need at least 2 bytes each.")
    limit = model.config.position_limit or scored
    was_training = model.training
    model.eval()
    nats, start = 0.0, 0
    memory: Any = None
    while start < scored:
        end = min(start + segment_len, scored, (start // limit + 1) * limit)
        hidden, memory = model(rows[:, start:end], model.memory_before(memory, end - start))
        nats -= model.log_probs(hidden, rows[:, start + 1 : end + 1]).double().sum().item()
        start = end
    model.train(was_training)
    return nats / math.log(2) / (batch_size * scored)
