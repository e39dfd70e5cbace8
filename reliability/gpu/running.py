"""Run a part in a separate process, so that a crash or an endless kernel affects only that part."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.sides import ROOT
from reliability.gpu.parts import NEEDS_CUDA, Outcome, Part, Settings

__all__ = ["run_apart", "run_here"]

FIGURES, ERROR = "figures.json", "error.txt"
GRACE = 5.0  # seconds between asking a process to end and killing it


def run_apart(part: Part, settings: Settings, seconds: float | None) -> Outcome:
    """Run a part in a separate process, and end it with all its children after `seconds` (None: never)."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        process = subprocess.Popen(
            [sys.executable, "-m", "reliability.gpu.running", part.name, json.dumps(asdict(settings)), scratch],
            cwd=ROOT,
            stdout=2,  # standard error, because only the tables go to standard output
            start_new_session=True,  # so that its children can be ended with it
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            reason = f"not done after {seconds:.0f} s"
        else:
            reason = _reason(folder, status)
        finally:
            _end_all(process)
        return _outcome(part, settings, time.monotonic() - started, reason, _figures(folder))


def run_here(part: Part, settings: Settings) -> Outcome:
    """Run a part in this process."""
    started = time.monotonic()
    figures: dict[str, Any] = {}
    reason = _run(part, settings, figures)
    return _outcome(part, settings, time.monotonic() - started, reason, figures)


def _run(part: Part, settings: Settings, figures: dict[str, Any], file: Path | None = None) -> str:
    """Run a part and return why it failed, or an empty string; figures are stored immediately."""

    def record(found: Mapping[str, Any]) -> None:
        figures.update(found)
        if file is not None:
            file.with_suffix(".new").write_text(json.dumps(figures))
            file.with_suffix(".new").replace(file)

    try:
        part.run(settings, record)
    except Exception as error:  # errors of any kind: the other parts continue
        traceback.print_exc()
        return _one_line(error)
    return ""


def _outcome(part: Part, settings: Settings, seconds: float, reason: str, figures: dict[str, Any]) -> Outcome:
    if reason:
        return Outcome(part.name, "failed", seconds, reason, figures)
    if part.needs_cuda and not settings.on_cuda:
        return Outcome(part.name, "skipped", seconds, NEEDS_CUDA, figures)
    return Outcome(part.name, "passed", seconds, "", figures)


def _reason(folder: Path, status: int) -> str:
    """Return why an ended process failed, or an empty string."""
    if (folder / ERROR).exists():
        return (folder / ERROR).read_text("utf-8")
    if status < 0:
        return f"its process ended by {signal.Signals(-status).name}"
    return f"its process ended with status {status}" if status else ""


def _figures(folder: Path) -> dict[str, Any]:
    file = folder / FIGURES
    return dict(json.loads(file.read_text("utf-8"))) if file.exists() else {}


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """Ask the process and its children to end, then kill them."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return (text if type(error).__name__ == "PartError" else f"{type(error).__name__}: {text}")[:500]


def _serve(name: str, settings: str, scratch: str) -> int:
    from reliability.gpu.register import PARTS

    reason = _run(PARTS[name], Settings(**json.loads(settings)), {}, Path(scratch, FIGURES))
    if reason:
        Path(scratch, ERROR).write_text(reason, "utf-8")
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(_serve(*sys.argv[1:]))
