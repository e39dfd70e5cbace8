"""The processes of a run: a single one, or all that `torchrun` started."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Processes", "joined", "joined_rows", "leave", "split_rows"]


@dataclass(frozen=True)
class Processes:
    """The processes that train one model together, from the view of one of them."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    """Number of this process on its machine, and of its GPU."""

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        if self.count == 1:
            return flag
        value = torch.tensor(int(flag), device=self._device)
        dist.all_reduce(value, dist.ReduceOp.MAX)
        return bool(value.item())

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean of a tensor over the processes."""
        if self.count == 1:
            return value
        total = value.clone()
        dist.all_reduce(total)
        return total / self.count

    def gathered(self, value: Any) -> list[Any]:
        """Return the values of all processes, in the order of their ranks; only the first process gets them."""
        if self.count == 1:
            return [value]
        values: list[Any] | None = [None] * self.count if self.is_first else None
        dist.gather_object(value, values)
        return values or []

    def wait(self) -> None:
        """Return when every process has called this."""
        if self.count > 1:
            dist.barrier()

    @property
    def _device(self) -> torch.device:
        return torch.device("cuda", self.local_rank) if dist.get_backend() == "nccl" else torch.device("cpu")


@contextmanager
def joined(device: str) -> Iterator[Processes]:
    """Join the processes that `torchrun` started, and leave them at the end; without `torchrun` there is one.

    GPUs exchange data by NCCL, CPUs by gloo.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or "RANK" not in os.environ:
        yield Processes()
        return
    processes = Processes(int(os.environ["RANK"]), count, int(os.environ.get("LOCAL_RANK", "0")))
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.set_device(processes.local_rank)
    already = dist.is_initialized()
    if not already:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield processes
    finally:
        if not already:
            dist.destroy_process_group()


def leave(status: int) -> NoReturn:
    """End one of several processes without Python's teardown, after all work is done.

    There, threads of gloo may still release tensors, which aborts the process now and then (pytorch/pytorch#179291).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def split_rows(value: Any, parts: int) -> list[Any]:
    """Return nested plain values for each of `parts` equal groups of rows; tensors (B,…) are cut, others repeated."""
    if isinstance(value, Tensor):
        return list(value.chunk(parts))
    if isinstance(value, dict):
        cut = {name: split_rows(part, parts) for name, part in value.items()}
        return [{name: each[index] for name, each in cut.items()} for index in range(parts)]
    if isinstance(value, list | tuple):
        pieces = [split_rows(part, parts) for part in value]
        return [[each[index] for each in pieces] for index in range(parts)]
    return [value] * parts


def joined_rows(values: list[Any]) -> Any:
    """Return what `split_rows` cuts into these values."""
    first = values[0]
    if isinstance(first, Tensor):
        return torch.cat(values)
    if isinstance(first, dict):
        return {name: joined_rows([value[name] for value in values]) for name in first}
    if isinstance(first, list | tuple):
        return [joined_rows([value[index] for value in values]) for index in range(len(first))]
    return first
