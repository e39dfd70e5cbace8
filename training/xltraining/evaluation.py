"""Bits per byte of a text, walked with carried memory."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from xltraining.errors import DataError
from xltraining.language_model import LanguageModel

__all__ = ["Progress", "evaluate", "evaluation_mode", "no_progress"]

Progress = Callable[[int, int], None]
"""Called with the number of targets that an evaluation has scored, and the number of all; it may raise to end it."""


def no_progress(done: int, total: int) -> None:
    """Take the progress of an evaluation that nobody watches."""


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[torch.device]:
    """Keep a model in evaluation mode and without gradients in the block; yield its device."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield next(model.parameters()).device
    finally:
        model.train(was_training)


def evaluate(
    model: LanguageModel, text: Tensor, segment_len: int, batch_size: int = 1, progress: Progress = no_progress
) -> float:
    """Return bits per byte of a text (N,) uint8, read with carried memory as `batch_size` streams of equal length.

    The first byte of each stream is not scored, nor is a remainder of fewer than `batch_size` bytes. At the model's
    last position, a stream continues as a new document. The model is in evaluation mode during the call.

    Args:
        progress: called after each segment.

    Raises:
        DataError: the text has fewer than two bytes for each stream.
    """
    rows = text[: len(text) // batch_size * batch_size].view(batch_size, -1)  # (B,N/B)
    scored = rows.shape[1] - 1
    if scored < 1:
        raise DataError(f"the text has {len(text)} bytes, but {batch_size} streams need at least 2 bytes each.")
    limit = model.config.position_limit or scored
    nats, start = 0.0, 0
    memory: Any = None
    with evaluation_mode(model) as device:
        rows = rows.to(device).long()
        while start < scored:
            end = min(start + segment_len, scored, (start // limit + 1) * limit)
            hidden, memory = model(rows[:, start:end], model.memory_before(memory, end - start))
            nats -= model.log_probs(hidden, rows[:, start + 1 : end + 1]).double().sum().item()
            start = end
            progress(batch_size * start, batch_size * scored)
    return nats / math.log(2) / (batch_size * scored)
