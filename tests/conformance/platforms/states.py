"""States that one platform saves and another one continues, in every direction."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from . import rows
from .runners import Attempt, Outcome, Runner, play
from .workshop import Workshop

__all__ = ["crossings"]

CASES = "state_"


def crossings(workshop: Workshop) -> list[Attempt]:
    """Return an attempt for each ordered pair of platforms."""
    places = {
        "Python on this machine": Runner(
            rows.HOST, "Python", "", lambda: rows.python_program([sys.executable], "none")
        ),
        "Python on aarch64": Runner(rows.ARM, "Python", "", lambda: rows.aarch64_python(workshop, "none")),
        "Node on Windows": Runner(rows.WINDOWS, "Node", "", partial(rows.windows_node, workshop, rows.NODES[0])),
        "C on Windows": Runner(rows.WINDOWS, "C", "", partial(rows.windows_c, workshop)),
    }
    saved: dict[str, Outcome] = {}
    lock = threading.Lock()

    def cross(source: str, target: Runner) -> Outcome:
        folder = workshop.built / "states" / source
        with lock:
            if source not in saved:
                saved[source] = _save(places[source], workshop.kit, folder)
        if not saved[source].passed:
            return saved[source]
        return play(target, workshop.kit, CASES, ("--states", folder))

    return [
        Attempt(f"state of {source}, continued by {target}", target, "", partial(cross, source, runner))
        for source, (target, runner) in itertools.product(places, places.items())
        if source != target
    ]


def _save(runner: Runner, kit: Callable[[], Path], folder: Path) -> Outcome:
    """Save the states of all streams of the kit to a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outcome = play(runner, kit, CASES, ("--keep", folder))
    cases = [json.loads(file.read_text("utf-8")) for file in (kit() / "cases").glob(f"{CASES}*.json")]
    expected = {action["keep"] for case in cases for action in case["actions"] if "keep" in action}
    if outcome.passed and not expected <= {file.stem for file in folder.iterdir()}:
        return Outcome(False, "not all states were saved")  # those of the kit would take their place
    return outcome
