"""The trial as Markdown, for BENCHMARKS.md: the table of speed, and the outcome of each part."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tests.gpu.parts import Outcome
from tests.gpu.speed import BUNDLE, CAPTURED, COMPILED, EAGER, side_name

__all__ = ["markdown"]

HEAD = ("segment / memory", "batch", "bundle, ms", "tokens/s", "with CUDA graphs", "PyTorch eager", "`torch.compile`")


def markdown(outcomes: Sequence[Outcome], device: str, tiny: bool) -> str:
    """Return both tables; the first line of a rehearsal says that it is one."""
    by_name = {outcome.name: outcome for outcome in outcomes}
    machine = by_name["machine"].figures if "machine" in by_name else {}
    lines = []
    if device == "cpu" or tiny:
        lines += [f"**A rehearsal{' in tiny sizes' if tiny else ''} on {device}: no figures of a GPU.**", ""]
    lines += [_machine_line(machine, device), ""]
    if "speed" in by_name:
        lines += _speed(by_name["speed"].figures.get("shapes", {}))
    lines += ["| part | result | seconds |", "|---|---|---|"]
    for outcome in outcomes:
        reason = f": {outcome.reason}" if outcome.reason else ""
        lines.append(f"| {outcome.name} | {outcome.status}{reason.replace('|', '/')} | {outcome.seconds:.0f} |")
    return "\n".join(lines) + "\n"


def _machine_line(machine: Mapping[str, Any], device: str) -> str:
    versions, cuda = machine.get("versions", {}), machine.get("cuda_versions", {})
    known = {
        "device": machine.get("driver") or machine.get("gpu") or machine.get("cpu"),
        "PyTorch": versions.get("torch"),
        "ONNX Runtime": versions.get("onnxruntime") or versions.get("onnxruntime-gpu"),
        "CUDA": cuda.get("torch"),
        "date": str(machine.get("date", ""))[:10],
    }
    return "; ".join([device, *(f"{name} {value}" for name, value in known.items() if value)])


def _speed(shapes: Mapping[str, Any]) -> list[str]:
    """Return a table of the medians of all steps in milliseconds, with ratios to the bundle in brackets."""
    lines = []
    for figures in shapes.values():
        sides = figures.get("sides")
        if not sides:
            continue
        lines += [f"**{figures['title']}**", "", f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD)]
        batches = sorted({int(re.findall(r"\d+$", name)[0]) for name in sides})
        for batch_size in batches:
            rows = {side: sides.get(side_name(side, batch_size)) for side in (BUNDLE, CAPTURED, EAGER, COMPILED)}
            own = rows[BUNDLE]
            cells = [f"{figures['segment_len']} / {figures['mem_len']:,}", str(batch_size)]
            cells += [f"{own['median'] * 1e3:.2f}", f"{own['tokens'] / own['median']:,.0f}"] if own else ["", ""]
            cells += [_cell(rows[side], own) for side in (CAPTURED, EAGER, COMPILED)]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return lines


def _cell(row: Mapping[str, Any] | None, own: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    ratio = f" ({row['median'] / own['median']:.2f} ×)" if own else ""
    return f"{row['median'] * 1e3:.2f}{ratio}"
