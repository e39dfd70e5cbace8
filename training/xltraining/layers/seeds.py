"""Seeds of random numbers that depend on several numbers."""

import hashlib

import torch

__all__ = ["generator_of", "mixed_seed"]


def mixed_seed(*numbers: int) -> int:
    """Return a seed that depends on all numbers; torch's generator on the CPU uses only the lowest 32 bits of one."""
    return int.from_bytes(hashlib.sha256(" ".join(map(str, numbers)).encode()).digest()[:4], "little")


def generator_of(*numbers: int) -> torch.Generator:
    """Return a generator on the CPU whose seed depends on all numbers."""
    return torch.Generator().manual_seed(mixed_seed(*numbers))
