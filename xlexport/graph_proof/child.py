"""Run a proof in a process of its own: bounded memory, time and output, no inherited files, a folder of its own.

This bounds what a graph can use up. It is no sandbox: native code of ONNX Runtime runs as the user.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import IO, Any

from xlexport import errors as own_errors
from xlexport.callbacks import Progress, no_progress
from xlexport.errors import GraphError
from xlexport.graph_proof.options import GraphOptions
from xlexport.graph_proof.report import GraphReport
from xlruntime import errors as runtime_errors
from xlruntime.errors import HintedError
from xlruntime.limits import Limits, parse_json

__all__ = ["main", "prove"]

KEPT = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH")  # environment of the child
MOST_RESULT = 1 << 24  # bytes that the child may write
MARK = 12  # bytes at the beginning of its output: steps that were walked
PAUSE = 0.05  # seconds between two looks at the child
GRACE = 5.0  # seconds after which the child ends itself, if nobody ended it


def prove(graph: Path, other: str | None, options: GraphOptions, progress: Progress = no_progress) -> GraphReport:
    """Return the report of a graph, made in another process.

    Raises:
        GraphError: a file or the graph is wrong, or it needs more memory or time than `options` allow.
        XlexportError, XlruntimeError: another error of the proof.
    """
    if not hasattr(os, "killpg"):
        raise GraphError(f"{graph}: Windows has no limits for a process that runs it.", hint="Use Linux, or WSL.")
    request = pickle.dumps((graph, other, options, Path.cwd()))
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    if "PYTHONPATH" in environment:  # its folders may be relative to this one
        environment["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, environment["PYTHONPATH"].split(os.pathsep)))
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        environment |= {"HOME": folder, "TMPDIR": folder, "PYTHONSAFEPATH": "1", "ORT_DISABLE_TELEMETRY": "1"}
        process = subprocess.Popen(
            [sys.executable, "-m", "xlexport.graph_proof.child"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.DEVNULL,
            close_fds=True,
            start_new_session=True,
        )
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(request)
            status = _wait(process, output, options, progress)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(MARK)
        content = output.read(MOST_RESULT)
    if status in (None, -signal.SIGALRM):
        what = f"{graph}: not finished after {options.seconds:g} s."
        raise GraphError(what, hint="Take fewer --steps, or more time: --set seconds=N.")
    return _result(graph, content, status, options)


def _wait(process: subprocess.Popen[bytes], output: IO[bytes], options: GraphOptions, progress: Progress) -> int | None:
    """Return the exit status of the child; None if its time is over."""
    until, shown = time.monotonic() + options.seconds, 0
    while time.monotonic() < until:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(PAUSE)
        mark = os.pread(output.fileno(), MARK, 0)
        if mark.strip().isdigit() and (steps := int(mark)) > shown:
            progress(steps, options.steps)
            shown = steps
    return None


def _result(graph: Path, content: bytes, status: int | None, options: GraphOptions) -> GraphReport:
    """Return the report in the child's output, or raise the error that it holds."""
    ended = f"{graph}: its process ended with status {status}"
    hint = "Allow more memory: --set memory=N."
    if not content:
        raise GraphError(f"{ended}, as it does if memory runs out.", hint=hint)
    budget = Limits(bytes=64 * MOST_RESULT).budget(str(graph), GraphError)
    try:
        values = parse_json(content, budget)
        if "report" in values:
            return GraphReport.from_dict(values["report"])
        kind, message, advice = (values[name] for name in ("type", "message", "hint"))
    except (KeyError, TypeError) as error:
        raise GraphError(f"{ended} and left no report.", hint=hint) from error
    if kind == "MemoryError":
        raise GraphError(f"{graph}: needs more than {options.memory:,} bytes of memory.", hint=hint)
    found = getattr(own_errors, kind, None) or getattr(runtime_errors, kind, None)
    if isinstance(found, type) and issubclass(found, HintedError):
        message, advice = (text and text.replace(f"{os.getcwd()}{os.sep}", "") for text in (message, advice))
        raise found(message, hint=advice)
    raise GraphError(f"{graph}: {kind}: {message}", hint="This is our fault: please report it with the graph.")


def main() -> None:
    """Read a request from standard input, and write the marks of the walk and the result to standard output."""
    graph, other, options, folder = pickle.load(sys.stdin.buffer)
    output = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no part of the result
    os.write(output, b" " * MARK)
    result = _proved(graph, other, options, folder, output)
    os.lseek(output, MARK, os.SEEK_SET)
    with os.fdopen(output, "wb") as file:
        file.write(json.dumps(result).encode())


def _limit(options: GraphOptions) -> None:
    """Bound the memory, output and time of this process; it ends if nobody else ends it."""
    import resource

    for kind, most in (
        (resource.RLIMIT_AS, options.memory),
        (resource.RLIMIT_FSIZE, MOST_RESULT),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (limit, limit))
    signal.setitimer(signal.ITIMER_REAL, options.seconds + GRACE)


def _proved(graph: Path, other: str | None, options: GraphOptions, folder: Path, output: int) -> dict[str, Any]:
    """Return the report or the error as plain values."""

    def progress(done: int, total: int) -> None:
        os.pwrite(output, b"%*d" % (MARK, done), 0)

    try:
        _limit(options)
        from xlexport.graph_proof.run import run_proof  # imports onnx and ONNX Runtime, within the limits

        return {"report": run_proof(folder / graph, other, options, folder, progress).to_dict()}
    except HintedError as error:
        return {"type": type(error).__name__, "message": error.message, "hint": error.hint}
    except MemoryError:
        return {"type": "MemoryError", "message": "", "hint": None}
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{error} ({Path(place.filename).name}:{place.lineno})"
        return {"type": type(error).__name__, "message": text, "hint": None}


if __name__ == "__main__":
    main()
