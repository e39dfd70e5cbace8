"""`--device` and `strict_device` reach the sessions, and `inspect` shows where nodes run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xlruntime
from xlexport.commands.inspect import placement_rows

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def test_inspect_shows_where_the_nodes_of_each_graph_run(bundle: Path, invoke: Callable[..., Any]) -> None:
    shown = invoke("inspect", bundle, "--device", "cpu").succeeded().out.splitlines()
    plain = invoke("inspect", bundle).succeeded().out.splitlines()
    rows = [line.split() for line in shown if line.startswith("nodes of ")]
    kernels = [line.split() for line in shown if line.startswith("kernels of ")]
    assert [row[2] for row in kernels] == [row[2] for row in rows]
    assert [(row[2], row[4:]) for row in rows] == [
        (purpose, ["on", CPU]) for purpose in ("score", "generate", "detail", "positions")
    ]
    assert {" ".join(line.split()) for line in shown} - {" ".join(line.split()) for line in plain} == {
        " ".join(row) for row in (*rows, *kernels)
    }
    found = invoke("inspect", bundle, "--device", "cpu", "--json").succeeded().object["placement"]
    assert [f"{sum(found[row[2]][CPU].values()):,}" for row in rows] == [row[3] for row in rows]
    assert "placement" not in invoke("inspect", bundle, "--json").succeeded().object


def test_operators_are_listed_where_nodes_run_in_two_places() -> None:
    placement = {"score": {CUDA: {"MatMul": 1200, "Add": 3}, CPU: {"Shape": 2}}}
    assert placement_rows(placement, {"score": "none"}) == [
        ("nodes of score", f"1,203 on {CUDA}: MatMul 1200, Add 3"),
        ("nodes of score", f"2 on {CPU}: Shape 2"),
        ("kernels of score", "none"),
    ]


def test_inspect_runs_no_checkpoint(checkpoint: Path, invoke: Callable[..., Any]) -> None:
    shown = invoke("inspect", checkpoint, "--device", "cpu")
    assert (shown.code, shown.out) == (2, "")
    assert "--device is for bundles" in shown.err


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("command", ["verify", "score", "evaluate", "generate", "bench"])
def test_strict_device_reaches_the_runtime(
    command: str,
    strict: bool,
    bundle: Path,
    checkpoint: Path,
    prose: Path,
    invoke: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def load(folder: Path, **options: Any) -> None:
        asked.append(options)
        raise xlruntime.ProviderError("device cuda:1: asked for.")

    monkeypatch.setattr(xlruntime, "load", load)
    monkeypatch.setattr("xlexport.bench.load", load)
    others: dict[str, list[Path | str]] = {"verify": [checkpoint], "bench": [], "generate": ["text"]}
    second = others.get(command, [prose])
    line = [command, bundle, *second, "--device", "cuda:1", "--threads", "2", "--set=ops=none"]
    line += [*(["--set=strict_device=true"] if strict else [])]
    assert invoke(*line).error == "Error: device cuda:1: asked for."
    assert asked == [{"device": "cuda:1", "ops": "none", "strict_device": strict, "cuda_graphs": False, "threads": 2}]
