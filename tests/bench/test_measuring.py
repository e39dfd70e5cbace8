"""Whether a measurement was disturbed, and the sides of the benchmarks: processes, differences, table."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import sides
from benchmarks.sides import Ready, Side, SideError, Turn, print_table, run_once
from xlexport.bench import measuring
from xlexport.bench.measuring import Clock, compared, disturbance, waited


def clock_of(*medians: float, waiting: float = 0.0) -> Clock:
    """Return a clock with a round of three runs around each median, whose threads waited this share of the time."""
    rounds = [[median, 0.9 * median, 1.2 * median] for median in medians]
    return Clock(rounds, waited=waiting * sum(map(sum, rounds)))


def test_quiet_times_are_compared() -> None:
    """Allow what a quiet machine shows: some waiting, a few percent between rounds, and one slow round of many."""
    ours, theirs = clock_of(1.0, 1.04, 0.98, waiting=0.01), clock_of(1.7, 1.72, 1.69, waiting=0.005)
    assert disturbance(ours) is None
    assert compared("1.7x", ours, theirs) == "1.7x"
    assert disturbance(clock_of(1, 1, 1, 1, 1, 1, 9)) is None
    assert disturbance(clock_of(1.0)) is None


def test_no_further_round_begins_when_patience_has_ended() -> None:
    rounds: list[str] = []
    measuring.take_turns([lambda: rounds.append("a"), lambda: rounds.append("b")], 3, patience=0.0)
    assert rounds == ["a", "b"]


def test_times_without_a_core_are_not_compared() -> None:
    """Refuse if only one of the sides waited, the first or the second."""
    quiet, waiting = clock_of(1, 1, 1), clock_of(35, 35, 35, waiting=0.451)
    for clocks in ((waiting,), (quiet, waiting), (waiting, quiet)):
        assert (disturbance(*clocks) or "").startswith("threads waited 0.45 s for a core in each second; stop other")
    assert compared("35x", quiet, waiting).startswith("not compared: threads waited 0.45 s")


def test_rounds_that_disagree_are_not_compared() -> None:
    steady, slower = clock_of(1, 1, 1), clock_of(2, 2.2, 2.8)
    assert (disturbance(slower) or "").startswith("rounds disagree by 18%; stop other")  # 2.5 to 2.1, of 2.2
    assert (disturbance(steady, slower) or "").startswith("rounds disagree by 18%")
    # A round that is slow for both sides has the same ratio.
    assert disturbance(clock_of(1, 1.1, 1.4), slower) is None


def test_more_rounds_may_disagree_more() -> None:
    """Judge the uncertainty of a median, which the number of rounds reduces."""
    rounds = (1.0, 1.06, 1.12, 1.18)
    assert disturbance(clock_of(*rounds)) is not None and disturbance(clock_of(*4 * rounds)) is None


def test_a_clock_counts_waiting_of_its_own_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the pause before a round, in which threads of another side come to rest."""
    now = 1000.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def reading() -> float:
        return now + next(readings)

    readings = iter([5.0, 5.5, 20.0, 20.25, 31.0, 30.0, 40.0, 41.0])
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(measuring, "waited", reading)
    here, elsewhere = Clock(), Clock(elsewhere=True)
    for clock in (here, here, here, elsewhere):  # in the third round a thread ended, whose time is no longer counted
        clock.round(lambda: None, 2)
    assert here.waited == pytest.approx(0.75) and elsewhere.waited == 0
    assert now == pytest.approx(1000 + 4 * measuring.PAUSE)
    assert [len(runs) for runs in here.rounds] == [2, 2, 2]


def test_waiting_that_linux_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sum all threads, and add the mean of what a hypervisor took from a core."""
    for thread, fields in ((1, "7 1500000000 3"), (2, "9 500000000 4")):
        folder = tmp_path / "self/task" / str(thread)
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(fields + "\n")
    (tmp_path / "self/task/3").mkdir()  # its thread ended
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "stat").write_text(f"cpu  1 2 3 4 5 6 7 {6 * ticks} 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert waited(tmp_path) == 2.0 + 1.5


def test_waiting_elsewhere_is_time_without_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: 100.0)
    monkeypatch.setattr(time, "process_time", lambda: 40.0)
    assert waited(tmp_path) == 60.0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs processes pinned to a core")
def test_a_busy_program_on_the_same_core_is_noticed() -> None:
    """Share a core with a busy loop of another process."""
    cores = os.sched_getaffinity(0)
    program = f"import os; os.sched_setaffinity(0, {{{min(cores)}}}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            os.sched_setaffinity(0, {min(cores)})
            clock = Clock()
            clock.round(lambda: _work(0.1), 3)
        finally:
            os.sched_setaffinity(0, cores)
            other.kill()
    assert "for a core in each second" in (disturbance(clock) or "")


def _work(seconds: float) -> None:
    """Use this much processor time."""
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


# Sides of the benchmarks.


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


@pytest.mark.full
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
