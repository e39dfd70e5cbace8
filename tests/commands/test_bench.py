"""`xlexport bench`: printed figures, sweeps, profiles and plots, and refusals."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.commands.test_plot import is_picture
from tests.helpers.invoking import Invoke
from tests.helpers.paths import GOLDEN
from xlexport import terminal
from xlexport.bench.measuring import Clock
from xlexport.bench.report import BenchReport
from xlexport.bench.sides import GraphSide

XL, BAND, CHUNK = (
    str(GOLDEN / name / "bundle") for name in ("pre_lnorm_same_length_zeros", "reformer_band", "reformer_chunk")
)
INTERRUPTED = "Error: interrupted; no unfinished output was left. Run the command again."
QUICK = ("--set=repeats=2", "--set=rounds=1", "--threads", "1")


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the machine's rates with tiny sizes, because these tests do not need the right rates.

    What other programs do at the same time does not matter to them either.
    """
    monkeypatch.setattr("xlexport.bench.disturbance", lambda *clocks, precision=0.03: None)
    monkeypatch.setattr("xlexport.bench.measuring.PAUSE", 0)
    monkeypatch.setattr("xlexport.bench.measuring.SGEMM_SIZE", 64)
    monkeypatch.setattr("xlexport.bench.measuring.COPY_BYTES", 1 << 16)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of temporary files, in which the command runs."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("against", [False, True])
def test_bench_as_json(against: bool, bundle: Path, checkpoint: Path, invoke: Invoke) -> None:
    options = ("--batch-size", "3", "--mem-len", "9", *QUICK, "--json")
    shown = invoke("bench", bundle, *options, *(("--against", checkpoint) if against else ())).succeeded()
    found = shown.object
    assert found.keys() == {field.name for field in fields(BenchReport)} - {"profile"}
    assert (found["segment_len"], found["mem_len"], found["batch_size"], found["threads"]) == (8, 9, 3, 1)
    assert (found["device"], found["dtype"], found["purpose"]) == ("cpu", "float32", "score")
    # A kernel divides a process's time between user and system by ticks, so either of them may be 0.
    shares = [found[f"{mode}_ms_per_segment"] for mode in ("user", "system")]
    assert min(shares) >= 0 and sum(shares) > 0
    figures = [name for name, value in found.items() if isinstance(value, float) and value not in shares]
    assert all(found[name] > 0 for name in figures)
    assert found["ms_per_segment_p50"] <= found["ms_per_segment_p95"]
    assert found["tokens_per_second"] == pytest.approx(3 * 8 / found["ms_per_segment_p50"] * 1000)
    memory_rate = max(found["copy_gb_per_second"], found["read_gb_per_second"])
    assert found["arithmetic_floor_ms"] == pytest.approx(found["flops_per_segment"] / found["sgemm_gflops"] / 1e6)
    assert found["bytes_floor_ms"] == pytest.approx(found["bytes_per_segment"] / memory_rate / 1e6)
    assert found["floor_ms"] == found[f"{found['floor']}_floor_ms"]
    assert found["floor_ms"] == max(found["arithmetic_floor_ms"], found["bytes_floor_ms"])
    assert found["fraction_of_floor"] == pytest.approx(found["floor_ms"] / found["ms_per_segment_p50"])
    eager = ("eager_tokens_per_second", "speedup", "speedup_best_round")
    if against:
        assert found["speedup"] == pytest.approx(found["tokens_per_second"] / found["eager_tokens_per_second"])
        assert found["speedup_best_round"] == pytest.approx(found["speedup"])  # there is one round
    else:
        assert [found[name] for name in eager] == [None] * 3
    assert shown.err == ""


def test_bench_for_people(invoke: Invoke) -> None:
    shown = invoke("bench", XL, *QUICK).succeeded()
    rows = shown.table
    names = ["step", "on", "kernels", "tokens/s", "ms a step", "processor", "arithmetic", "bytes", "floor", "load"]
    assert list(rows) == [*names, "peak memory"]
    assert rows["step"] == "score, segment 8, memory 12, batch 1"
    assert rows["on"] == "cpu, 1 thread, float32"
    assert "0.0e+00" not in shown.out  # a kernel counts time in ticks, and may count none


@pytest.mark.parametrize(("folder", "memory", "segment"), [(XL, 12, 1), (BAND, 12, 1), (CHUNK, 0, 96)])
def test_generating_token_by_token(folder: str, memory: int, segment: int, invoke: Invoke) -> None:
    """Check that a model that reads whole documents needs a step over the whole document for each token."""
    found = invoke("bench", folder, "--set=purpose=generate", "--batch-size", "2", *QUICK, "--json").succeeded().object
    assert (found["purpose"], found["segment_len"], found["mem_len"]) == ("generate", segment, memory)
    assert found["tokens_per_second"] == pytest.approx(2 / found["ms_per_segment_p50"] * 1000)
    if segment == 1:
        error = invoke("bench", folder, "--set=purpose=generate", "--segment-len", "4", *QUICK).error
        assert "segment_len is 4, but tokens are generated one by one. Leave it out." in error


# Other programs.


def test_disturbed_times_without_ratios(
    bundle: Path, checkpoint: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disturbance(bundle_clock: Clock, eager_clock: Clock, precision: float) -> str:
        return "rounds disagree"

    monkeypatch.setattr("xlexport.bench.disturbance", disturbance)
    command = ("bench", bundle, "--against", checkpoint, *QUICK)
    found = invoke(*command, "--json").succeeded().object
    assert found["disturbance"] == "rounds disagree"
    ratios = ("speedup", "speedup_best_round", "fraction_of_floor", "fraction_of_sgemm")
    assert [found[name] for name in ratios] == [None] * 4
    assert min(found[name] for name in ("tokens_per_second", "eager_tokens_per_second", "gflops", "floor_ms")) > 0
    rows = invoke(*command).succeeded().table
    assert rows["not compared"] == "rounds disagree"
    assert rows["eager"].endswith(" tokens/s") and "%" not in rows["floor"]
    header, *lines = invoke(*command, "--mem-len", "5,9").succeeded().out.splitlines()
    assert header.split()[-2:] == ["to", "eager"]
    assert [line.split()[-6:] for line in lines] == [["-", "-", "not", "compared:", "rounds", "disagree"]] * 2


# Sweeps.


def test_sweep_is_a_table_of_all_combinations(invoke: Invoke) -> None:
    sizes = ("--segment-len", "1,8,8", "--mem-len", "5,12", "--batch-size", "2", "--threads", "2,1")
    header, *lines = invoke("bench", XL, *QUICK[:4], *sizes).succeeded().out.splitlines()
    assert header.split()[:4] == ["threads", "segment", "memory", "batch"]
    assert [line.split()[:4] for line in lines] == [
        [threads, segment, memory, "2"] for threads in "21" for segment in "18" for memory in ("5", "12")
    ]
    assert len({len(line) for line in (header, *lines)}) == 1


def test_sweep_as_json_is_an_object_a_combination(invoke: Invoke) -> None:
    shown = invoke("bench", BAND, *QUICK, "--segment-len", "3,40", "--set=profile=true", "--json").succeeded()
    few, many = shown.objects
    assert (few["segment_len"], many["segment_len"]) == (3, 40)
    assert few["peak_rss_mb"] > 0 and many["peak_rss_mb"] is None  # the peak would include the first measurement
    assert few["load_seconds"] == many["load_seconds"]
    operators = [{entry["operator"] for entry in found["profile"]} for found in (few, many)]
    assert "Loop" not in operators[0] and "Loop" in operators[1]  # there is a graph for few tokens


def test_impossible_combinations_are_refused_together_before_any_is_measured(invoke: Invoke) -> None:
    error = invoke("bench", BAND, *QUICK, "--segment-len", "8,201", "--mem-len", "0,12").error
    assert "mem_len is 0, expected 1 to" in error
    assert "segment_len is 201, but the model reads at most 200 tokens of a document" in error
    assert error.endswith("Nothing was measured.")
    assert "mem_len: not among the settings" in invoke("bench", CHUNK, *QUICK, "--mem-len", "3").error
    assert "n_hashes is 9, expected 1 to 3" in invoke("bench", BAND, *QUICK, "--set=n_hashes=9").error


@pytest.mark.parametrize(
    ("option", "value", "what"),
    [
        ("--segment-len", "", "an empty list; give integers separated by commas."),
        ("--mem-len", ",", "an empty list; give integers separated by commas."),
        ("--batch-size", "8,0", "'8,0' is not a list of integers of at least 1."),
        ("--threads", "1,two", "'1,two' is not a list of integers separated by commas."),
        ("--mem-len", "1.5", "'1.5' is not a list of integers separated by commas."),
    ],
)
def test_lists_that_are_none(option: str, value: str, what: str, invoke: Invoke) -> None:
    shown = invoke("bench", XL, option, value)
    assert (shown.code, shown.out) == (2, "")
    assert what in shown.err


# Profiles.


def test_profile_for_people(invoke: Invoke, scratch: Path) -> None:
    lines = invoke("bench", XL, *QUICK, "--set=profile=true").succeeded().out.splitlines()
    (start,) = [index for index, line in enumerate(lines) if line.split() == ["operator", "ms", "share", "count"]]
    shares = [float(line.rsplit(maxsplit=2)[1].rstrip("%")) for line in lines[start + 1 :]]
    assert sum(shares) == pytest.approx(100, abs=0.05 * len(shares))  # each is rounded to a tenth
    assert shares == sorted(shares, reverse=True)
    assert not list(scratch.iterdir())


@pytest.mark.parametrize("when", ["first", "later"])
def test_profile_that_is_stopped_leaves_no_file(
    when: str, invoke: Invoke, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_in, seen = GraphSide.step_in, []

    def stop(self: GraphSide, session: Any) -> object:
        seen.append([path.name for path in scratch.rglob("*.json")])
        if when == "first" or len(seen) > 2:
            raise KeyboardInterrupt
        return step_in(self, session)

    monkeypatch.setattr(GraphSide, "step_in", stop)
    shown = invoke("bench", XL, *QUICK, "--set=profile=true")
    assert (shown.code, shown.out, shown.err.strip()) == (terminal.INTERRUPTED, "", INTERRUPTED)
    assert len(seen[-1]) == 1  # there was one
    assert not list(scratch.iterdir())


# Plots.


@pytest.mark.parametrize("suffix", [".png", ".svg", ".SVG"])
@pytest.mark.full
def test_plot(suffix: str, invoke: Invoke, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"sweep{suffix}"
    sizes = ("--segment-len", "1,8", "--mem-len", "5,9,12")
    shown = invoke("bench", XL, *QUICK, *sizes, "--plot", path).succeeded()
    assert shown.err == f"wrote {path}\n"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert is_picture(path)


def test_plots_that_are_refused_before_anything_runs(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = ("bench", tmp_path / "no.bundle", "--segment-len", "1,2")
    assert "a plot is a .png or .svg file" in invoke(*several, "--plot", tmp_path / "sweep.gif").error
    assert "one combination is not enough" in invoke(*several[:3], "1,1", "--plot", tmp_path / "sweep.png").error
    monkeypatch.setattr("xlexport.extras.packages_of", lambda extra: ["no-such-package"] if extra == "plot" else [])
    error = invoke(*several, "--plot", tmp_path / "sweep.png").error
    assert "no-such-package not installed, needed here. Install it: pip install no-such-package." in error
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    assert "no such folder to write sweep.png into" in invoke(*several, "--plot", tmp_path / "no" / "sweep.png").error


# Comparison with the eager model.


def test_bench_refuses_the_checkpoint_of_another_shape(
    bundle: Path, make_checkpoint: Callable[..., Path], invoke: Invoke, tmp_path: Path
) -> None:
    other = make_checkpoint(tmp_path / "other.pt", n_layer=1)
    error = invoke("bench", bundle, "--against", other).error
    assert f"was converted from another model than {other}. Give its own checkpoint." in error


@pytest.mark.release
def test_memory_of_a_bench_is_the_bundle_alone(bundle: Path, checkpoint: Path, call: Invoke) -> None:
    """Do not count the memory of the eager model and of PyTorch."""
    options = ("--set=repeats=1", "--set=rounds=1", "--threads", "1", "--json")
    alone = call("bench", bundle, *options).succeeded().object["peak_rss_mb"]
    beside = call("bench", bundle, *options, "--against", checkpoint).succeeded().object["peak_rss_mb"]
    assert beside == pytest.approx(alone, rel=0.2)
