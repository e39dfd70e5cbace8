"""Check everything that needs a GPU, in less than ten minutes.

    python -m tests.gpu --json gpu.json --markdown gpu.md
    python -m tests.gpu --part speed --folder kept      one part; bundles are kept for the next time
    python -m tests.gpu --device cpu --tiny             a rehearsal

Every part runs in a separate process with a time limit. If one fails, it is reported and the others continue. On a CPU
the same code runs without time limits. Parts that only a GPU can pass are then `skipped: needs CUDA`. The exit
status is 0 if no part failed and at least one passed, else 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.gpu.bundles import make_bundles
from tests.gpu.checks import (
    USABLE,
    captured_against_plain,
    describe_machine,
    float16_against_float32,
    many_segments_in_place,
    run_skipped_tests,
    strictly_placed,
)
from tests.gpu.parts import Outcome, Part, Settings, run_apart
from tests.gpu.reformers import score_reformers
from tests.gpu.speed import BUNDLE, CAPTURED, COMPILED, EAGER, measure_speed, side_name
from xlexport import atomic_output
from xlexport.errors import XlexportError
from xlruntime import OptionError
from xlruntime.devices import parse_device

TOTAL_SECONDS = 595  # for all parts; the last part gets the remaining time
PARTS = {
    part.name: part
    for part in (
        Part("machine", "GPU, driver and libraries; PyTorch and ONNX Runtime in one process", 30, describe_machine),
        Part("reformers", "Reformers of all rules against a CPU, and their time", 60, score_reformers),
        Part("bundles", "checkpoints and bundles for the other parts", 220, make_bundles),
        Part("tests", "all tests that a missing GPU skips", 100, run_skipped_tests, needs_cuda=True),
        Part("in_place", "rings written in place over many segments, memory flat", 80, many_segments_in_place),
        Part("placement", "strict_device", 30, strictly_placed, needs_cuda=True),
        Part("capture", "CUDA graphs against plain runs", 30, captured_against_plain, needs_cuda=True),
        Part("float16", "float16 against float32, in bits", 30, float16_against_float32),
        Part("speed", "the bundle, PyTorch eager and torch.compile", 75, measure_speed),
    )
}
# Parts that always run first, because the tables of speed name the machine.
NEEDED = {"speed": ("machine", "bundles"), **{name: ("bundles",) for name in ("placement", "capture", "float16")}}

HEAD = ("segment / memory", "batch", "bundle, ms", "tokens/s", "with CUDA graphs", "PyTorch eager", "`torch.compile`")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested parts and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", action="append", choices=list(PARTS), help="run only this part; may be repeated")
    parser.add_argument("--device", default="cuda:0", help="cuda, cuda:N, or cpu for a rehearsal (default: cuda:0)")
    parser.add_argument("--tiny", action="store_true", help="use small sizes, to try the program")
    parser.add_argument("--folder", type=Path, help="folder in which checkpoints and bundles are kept and reused")
    parser.add_argument("--json", type=Path, dest="file", help="file for all figures")
    parser.add_argument("--markdown", type=Path, help="file for the tables")
    options = parser.parse_args(arguments)
    try:
        device = str(parse_device(options.device))
        for path in (options.file, options.markdown):
            if path is not None:
                atomic_output.check_file(path, force=True)
    except (OptionError, XlexportError) as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch)).resolve()
        settings = Settings(device, options.tiny, str(folder))
        outcomes = try_parts(chosen_parts(options.part), settings, options.file)
    tables = markdown(outcomes, device, options.tiny)
    print(tables, end="")
    if options.markdown is not None:
        _write(options.markdown, tables)
    return 0 if succeeded(outcomes) else 1


def chosen_parts(names: Sequence[str] | None) -> list[str]:
    """Return the parts to run, in order, each after the parts that it needs."""
    asked = set(names or PARTS)
    asked |= {needed for name in asked for needed in NEEDED.get(name, ())}
    return [name for name in PARTS if name in asked]


def try_parts(names: Sequence[str], settings: Settings, file: Path | None) -> list[Outcome]:
    """Run the parts one after another; after each part, `file` holds all figures so far."""
    started, outcomes = time.monotonic(), list[Outcome]()
    for name in names:
        part = PARTS[name]
        left = TOTAL_SECONDS - (time.monotonic() - started)
        print(f"{name}: {part.title}", file=sys.stderr, flush=True)
        if reason := _cannot_run(outcomes, left if settings.on_cuda else None):
            outcome = Outcome(name, "failed", reason=reason)
        else:
            most = left if name == names[-1] else min(part.seconds, left)
            outcome = run_apart(part, settings, most if settings.on_cuda else None)
        outcomes.append(outcome)
        print(outcome, file=sys.stderr, flush=True)
        if file is not None:
            content: dict[str, Any] = {"device": settings.device, "tiny": settings.tiny}
            _write(file, json.dumps({**content, "parts": [each.to_dict() for each in outcomes]}, indent=1) + "\n")
    return outcomes


def _cannot_run(before: Sequence[Outcome], left: float | None) -> str:
    """Return why starting another part is useless, or an empty string."""
    if left is not None and left < 1:
        return "no time was left"
    if any(outcome.figures.get(USABLE) is False for outcome in before):
        return "ONNX Runtime cannot use the device"
    return ""


def succeeded(outcomes: Sequence[Outcome]) -> bool:
    """Return whether no part failed and at least one was not skipped."""
    statuses = {outcome.status for outcome in outcomes}
    return "failed" not in statuses and "passed" in statuses


def _write(path: Path, content: str) -> None:
    with atomic_output.file(path) as new:
        new.write_text(content, "utf-8")


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


if __name__ == "__main__":
    sys.exit(main())
