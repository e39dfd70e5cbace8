"""Sides of the benchmarks: their processes, their differences, and their table."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import pytest

from benchmarks import sides
from benchmarks.sides import Ready, Side, SideError, Turn, print_table, run_once
from xlexport.bench.measuring import Clock


def counting(start: int) -> Ready:
    """Return a side whose scores count its steps."""
    steps = iter(range(start, 1000))
    return Ready(lambda: np.array([next(steps)]), {"pid": os.getpid(), "variable": os.environ.get("OF_A_SIDE")})


def ending() -> Ready:
    sys.exit(3)


def test_a_side_runs_warm_in_a_process_of_its_own() -> None:
    side = Side(counting, 10, environment={"OF_A_SIDE": "x"})
    try:
        assert side.facts["pid"] != os.getpid() and side.facts["variable"] == "x"
        assert "OF_A_SIDE" not in os.environ
        assert side.measure(2).scores.tolist() == [12.0, 13.0]  # two steps came before
        turn = side.measure(3)
        assert turn.scores.tolist() == [14.0, 15.0, 16.0]
        assert [len(runs) for runs in turn.clock.rounds] == [2, 3] and turn.peak_rss_mb > 1
    finally:
        side.close()


def test_a_side_that_ends_is_an_error() -> None:
    with pytest.raises(SideError, match="side ending ended with status 3"):
        Side(ending)
    assert run_once(os.path.basename, "a/b") == "b"


def figures_of(**turns: tuple[list[float], list[float], dict[str, Any]]) -> dict[str, Any]:
    """Return figures of sides with these medians of rounds, scores and facts, at 100 GFLOP/s."""
    peaks = [{"sgemm_onnxruntime": 100.0, "sgemm_torch": 50.0, "memory_gb_per_s": 10.0}]
    measured = {
        name: Turn(Clock([[median] for median in medians]), 1.0, np.array(scores))
        for name, (medians, scores, _) in turns.items()
    }
    facts = {name: fact for name, (_, _, fact) in turns.items()}
    rows = sides._figures_of_sides(measured, facts, peaks)
    machine = {"load_average": 0.0}
    return {"peaks": peaks, "machine": machine, "threads": 1, "load_average_after": 0.0, "sides": rows}


def test_table_compares_tokens_with_the_first_side(capsys: pytest.CaptureFixture[str]) -> None:
    steady = {"tokens": 10}
    figures = figures_of(
        ours=([0.2, 0.2], [-1.0, -2.0], {**steady, "flops": 10**10}),
        theirs=([0.4, 0.4], [-1.0, -2.5], {"tokens": 5}),
        disturbed=([0.1, 0.9], [-1.0], steady),
        another=([0.1, 0.1], [-7.0], {**steady, "model": "another"}),
    )
    ours, theirs = figures["sides"]["ours"], figures["sides"]["theirs"]
    assert (ours["floor"], theirs["max_abs_log_prob_diff"], theirs["mean_log_prob_diff"]) == (0.1, 0.5, -0.25)
    assert "max_abs_log_prob_diff" not in figures["sides"]["disturbed"]  # it scored other tokens
    print_table("a title", figures)
    title, _, header, *lines = capsys.readouterr().out.splitlines()
    assert title == "a title" and header.split()[:3] == ["side", "best", "ms"]
    rows = {line.split()[0]: line for line in lines[:4]}
    assert list(rows) == ["ours", "theirs", "disturbed", "another"]
    assert " 4.00  " in rows["theirs"] and " 4.00 to 4.00 " in rows["theirs"]  # twice the time for half the tokens
    assert " - " in rows["disturbed"] and "1.00" not in rows["another"]
    assert any(line.startswith("  disturbed not compared: rounds disagree") for line in lines[4:])
    assert any(line.startswith("  theirs differs by more than rounding") for line in lines[4:])
