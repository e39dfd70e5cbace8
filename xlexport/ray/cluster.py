"""Score chunks on the machines of a Ray cluster."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import sysconfig
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from xlexport.bundles import open_bundle
from xlexport.children import environment_of_children
from xlexport.errors import WorkerError
from xlexport.extras import require
from xlexport.scoring.backends import ChunkWorker, in_order
from xlexport.scoring.chunks import Chunk, ChunkState, Job, Message
from xlruntime import Device, LoadOptions, Model
from xlruntime.messages import counted, first_line

__all__ = ["Cluster", "device_of", "most_actors", "open_here", "reach"]

MOST_RESTARTS = 3  # of an actor that is killed; a document that kills each of them must not do so for ever
CONNECT_SECONDS = 20
CORE_LOG = "RAY_BACKEND_LOG_LEVEL"


def device_of(runtime: Mapping[str, Any]) -> Device:
    """Return the device that arguments of `open_bundle` name; with memory of its own, each actor gets one GPU."""
    names = {"device", "provider", "provider_options"}
    return LoadOptions(**{name: runtime[name] for name in names & runtime.keys()}).place


def open_here(bundle: str | Path, runtime: Mapping[str, Any]) -> Model:
    """Open a bundle on this machine, which may lack the GPU of the actors."""
    own = {} if device_of(runtime).on_host else {"device": "cpu", "strict_device": False, "cuda_graphs": False}
    return open_bundle(bundle, **{**runtime, **own})


class _Actor(ChunkWorker):
    """A process of the cluster, in which paths mean what they mean here."""

    def __init__(self, job: Job, folder: str) -> None:
        super().__init__(job)
        with contextlib.suppress(OSError):  # not on this machine; absolute paths need no folder
            os.chdir(folder)


@dataclass
class _Worker:
    """An actor, and the answers about its chunk."""

    actor: Any
    answers: Any = None

    def begin(self, chunk: Chunk, state: ChunkState | None) -> None:
        """Send a chunk."""
        self.answers = self.actor.answers.options(num_returns="streaming").remote(chunk, state)

    def receive(self) -> bytes:
        """Return the next answer; if an actor is killed, another one repeats its chunk."""
        import ray

        try:
            return cast(bytes, ray.get(next(self.answers)))
        except (ray.exceptions.RayError, StopIteration) as error:
            raise WorkerError(
                f"the cluster ended the run ({first_line(error)[:300]}).",
                hint="Continue with --resume if there is an output file.",
            ) from error


def _ready(workers: list[_Worker]) -> list[_Worker]:
    import ray

    done, _ = ray.wait([worker.answers for worker in workers])
    return [worker for worker in workers if any(worker.answers is answers for answers in done)]


@dataclass(frozen=True)
class Cluster:
    """The machines of a Ray cluster, as a `Backend`.

    Attributes:
        address: of the cluster, as `ray.init` takes it; None: this machine.
        actors: number of processes that score; None: as many as the CPUs, or the GPUs, allow.

    Raises:
        MissingDependencyError: Ray is not installed. WorkerError: nothing answers at the address.
    """

    address: str | None = None
    actors: int | None = None

    def __post_init__(self) -> None:
        require("ray")
        reach(self.address)

    def messages(self, job: Job, cut: Iterator[Chunk], state: ChunkState | None) -> Generator[Message]:
        """Yield the messages of chunks, as `Backend.messages`.

        States come only between chunks, because an actor that repeats a chunk must give the same answers.
        """
        import ray

        threads, gpus = job.runtime.get("threads") or 1, 0 if device_of(job.runtime).on_host else 1
        started = not ray.is_initialized()
        if started:
            self._start(threads)
        workers: list[_Worker] = []
        try:
            kind = ray.remote(
                num_cpus=threads, num_gpus=gpus, max_restarts=MOST_RESTARTS, max_task_retries=MOST_RESTARTS
            )(_Actor)
            for _ in range(self.actors or most_actors(ray.nodes(), threads, gpus)):
                workers.append(_Worker(kind.remote(job, os.getcwd())))
            yield from in_order(workers, _ready, cut, state)
        finally:
            if started:
                ray.shutdown()
            else:
                for worker in workers:
                    ray.kill(worker.actor)

    def _start(self, threads: int) -> None:
        """Connect to the cluster, or start one here; without the log of Ray's core, since errors come as exceptions.

        Raises:
            WorkerError: the cluster cannot be reached or started.
        """
        import ray

        options: dict[str, Any] = {"address": self.address}
        if self.address is None:
            cpus = max((self.actors or 1) * threads, 0 if self.actors else os.cpu_count() or 1)
            options = {"include_dashboard": False, "num_cpus": cpus}
        try:
            # Ray adds the current folder to the path of its workers, which has that of Python's modules anyway. Its
            # core writes to standard error that it has read the level of its log.
            with (
                contextlib.chdir(sysconfig.get_path("stdlib")),
                environment_of_children(**{CORE_LOG: "fatal"}),
                _no_standard_error(),
            ):
                ray.init(log_to_driver=False, logging_level="ERROR", **options)
        except Exception as error:  # Ray raises ConnectionError, ValueError, RuntimeError, and also Exception itself
            raise WorkerError(
                f"{self.address or 'this machine'}: Ray did not start ({first_line(error)[:300]}).",
                hint="Check the address, and `ray status` there; or leave out the address.",
            ) from error


def reach(address: str | None) -> None:
    """Connect to the address of a cluster, because Ray itself tries for minutes.

    Raises:
        WorkerError: nothing answers there.
    """
    host, mark, port = (address or "").removeprefix("ray://").rpartition(":")
    if not mark or not port.isdigit():  # such as `auto`
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise WorkerError(
            f"{address}: no Ray cluster answers ({first_line(error)}).",
            hint="Check the address, and `ray status` there; or leave out the address.",
        ) from error


@contextlib.contextmanager
def _no_standard_error() -> Iterator[None]:
    """Let nothing of this process, not even libraries in C++, write to standard error."""
    sys.stderr.flush()
    standard_error = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)


def most_actors(nodes: Sequence[Mapping[str, Any]], threads: int, gpus: int) -> int:
    """Return the number of actors for which the machines of a cluster have CPUs and GPUs.

    Raises:
        WorkerError: no machine has enough for one.
    """
    total = 0
    for node in nodes:
        resources = node["Resources"] if node["Alive"] else {}
        fitting = int(resources.get("CPU", 0)) // threads
        total += min(fitting, int(resources.get("GPU", 0))) if gpus else fitting
    if not total:
        needs = f"{counted(threads, 'CPU')}{' and a GPU' if gpus else ''}"
        raise WorkerError(f"no machine of the cluster has {needs}.", hint="Give fewer --threads, or another device.")
    return total
