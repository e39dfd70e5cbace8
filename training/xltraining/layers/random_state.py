"""States of the random number generators, so that a block that runs twice draws the same numbers."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["RandomState"]


class RandomState:
    """State of the generators at one moment, on the CPU and on the tensors' own device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cpu = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore this state in the block; afterwards the current random numbers continue."""
        with torch.random.fork_rng([self.device] if self.cuda is not None else []):
            torch.set_rng_state(self.cpu)
            if self.cuda is not None:
                torch.cuda.set_rng_state(self.cuda, self.device)
            yield
