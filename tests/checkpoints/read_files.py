"""Read every file of a folder in a separate process, and print the outcome of each: one JSON object a line.

A guard notes every action that runs, imports or changes something meanwhile. It is Python's audit hook, which sees
actions, not the names under which they are called. The last line shows what the guard notes when something is run.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch  # noqa: F401 -- before the guard: the readers import it when they need it

from xlexport.checkpoints import safe_pickle
from xlexport.errors import CheckpointError
from xlexport.formats import load

READERS = (safe_pickle.read, load)
LOOKS = ("open", "os.listdir", "os.scandir", "glob.", "pathlib.", "mmap.", "builtins.id", "sys._getframe", "gc.")
LARGE = 100_000  # bytes of a file whose reading may take memory

noted: list[str] = []


def guard(event: str, arguments: tuple[Any, ...]) -> None:
    writes = event == "open" and arguments[1] not in ("r", "rb", None)
    if writes or not event.startswith(LOOKS):
        noted.append(f"{event} {arguments!r}"[:200])


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def read(path: Path) -> None:
    """Read a file with each reader, and print the outcome, the seconds of work and the megabytes."""
    before = megabytes()
    for reader in READERS:
        noted.clear()
        start = time.process_time()
        try:
            outcome, message = type(reader(path)).__name__, ""
        except Exception as error:  # the test checks the kind of the error
            outcome, message = type(error).__name__, str(error)
        seconds = time.process_time() - start
        print(
            json.dumps(
                {
                    "file": path.name,
                    "reader": reader.__name__,
                    "outcome": outcome,
                    "message": message,
                    "seconds": seconds,
                    "megabytes": megabytes() - before - path.stat().st_size / 2**20,
                    "noted": list(noted),
                }
            ),
            flush=True,
        )


def main(folder: Path) -> None:
    files = sorted(folder.iterdir())
    for path in files[:20]:  # late imports happen here, before the guard
        for reader in READERS:
            with contextlib.suppress(CheckpointError):
                reader(path)
    sys.addaudithook(guard)
    for path in files:
        if path.stat().st_size > LARGE:
            read_in_a_child(path)
        else:
            read(path)
    noted.clear()
    compile("1", "nothing", "eval")
    print(json.dumps({"guard": noted}))


def read_in_a_child(path: Path) -> None:
    """Read a file in a child process: the memory of one file would hide that of the next."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    read(path)
    os._exit(0)


main(Path(sys.argv[1]))
