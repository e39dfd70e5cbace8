"""Text as bytes, cut into contiguous parallel streams."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from xltraining.errors import DataError

__all__ = ["ByteStreams", "check_length", "read_bytes"]


def read_bytes(files: Sequence[Path]) -> Tensor:
    """Return the bytes of all files, one after the other, as a uint8 tensor (N,).

    Raises:
        DataError: files are missing, unreadable or empty. The message lists all of them.
    """
    parts, problems = [], []
    for file in files:
        try:
            part = Path(file).read_bytes()
        except OSError as error:
            problems.append(f"{file}: {error.strerror}")
            continue
        if not part:
            problems.append(f"{file}: the file is empty")
        parts.append(part)
    if problems:
        raise DataError(
            f"cannot read the text: {'; '.join(problems)}.", hint="Name readable text files that are not empty."
        )
    return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8) if parts else torch.empty(0).byte()


def check_length(text: str, count: int, unit: str, batch_size: int, segment_len: int) -> None:
    """Refuse a text, which messages call `text`, of too few units to give each stream a segment of its own.

    Raises:
        DataError: it is too short.
    """
    needed = batch_size * (segment_len + 1)
    if count < needed:
        raise DataError(
            f"{text} is too short: {count:,} {unit}, and {batch_size} streams with segments of {segment_len} need at "
            f"least {needed:,}.",
            hint="Give more text, or a smaller batch size or segment length.",
        )


class ByteStreams:
    """Batches whose rows walk one text in parallel, segment by segment, so that memory carries from batch to batch.

    The text is a ring, and the seed decides where it starts. Row b begins b/B of the way round, and never jumps. After
    the rows have covered the text together, each continues at its neighbour's start, mostly with other segment borders.
    A batch depends only on its number, so a checkpoint needs to save only that number.
    """

    def __init__(self, text: Tensor, batch_size: int, segment_len: int, seed: int) -> None:
        """Walk `text` (N,) uint8.

        Raises:
            DataError: the text is too short to give each row a segment of its own.
        """
        check_length("the training text", len(text), "bytes", batch_size, segment_len)
        self.text, self.segment_len = text, segment_len
        generator = torch.Generator().manual_seed(seed)
        start = int(torch.randint(len(text), (1,), generator=generator))
        self._starts = start + torch.arange(batch_size)[:, None] * (len(text) // batch_size)  # (B,1)
        self._reach = torch.arange(segment_len + 1)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return tokens and targets of a step (from 0), both (B,S) int64; targets are the tokens one byte later."""
        rows = self.text[(self._starts + step * self.segment_len + self._reach) % len(self.text)].long()  # (B,S+1)
        return rows[:, :-1], rows[:, 1:]
