"""Feed damaged input to everything that reads files, and count the results.

    python -m tests.reliability.fuzz                      all targets, as RELIABILITY.md has it
    python -m tests.reliability.fuzz bundle --cases 500   one of them
    python -m tests.reliability.fuzz bundle --first 77 --cases 1 --show   one case, with its message

Cases run in a separate process. If a case ends the process, works for more than a minute or takes a gigabyte, it is
reported and counted, and the next process continues after it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.helpers.paths import ROOT
from tests.reliability.judging import Outcome, Target

__all__ = ["TARGETS", "Campaign", "run_campaign"]

TARGETS = {  # name: module, class, cases of the campaign
    "bundle": ("bundle_targets", "BundleBytes", 10_000),
    "manifest": ("bundle_targets", "ManifestFields", 6000),
    "resealed": ("bundle_targets", "ResealedFiles", 4000),
    "state": ("state_targets", "StateBytes", 5000),
    "state-fields": ("state_targets", "StateFields", 5000),
    "checkpoint": ("checkpoint_targets", "Checkpoints", 6000),
    "input": ("input_targets", "Inputs", 4000),
    "tokenizer": ("tokenizer_targets", "Tokenizers", 5000),
    "request": ("request_targets", "Requests", 100_000),
}
WORK_SECONDS = 60  # of the processor's time for one case; most take milliseconds
SILENT_SECONDS = 900  # without any output, as if waiting forever
DATA_BYTES = 3 << 30  # limit of a process, including libraries
CASE_MEGABYTES = 512  # that one case may take in addition to the cases before it
SHOWN = 8  # bugs of each kind that are printed


@dataclass
class Campaign:
    """The results of the cases of one target."""

    target: str
    cases: int = 0
    seconds: float = 0.0
    megabytes: float = 0.0  # the largest of all processes
    kinds: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)  # by class
    bugs: list[str] = field(default_factory=list)

    def count(self, number: int, outcome: Outcome) -> None:
        self.cases += 1
        self.kinds[outcome.kind] += 1
        if outcome.kind == "refused":
            self.refusals[outcome.said.partition(":")[0]] += 1
        if outcome.is_bug or outcome.kind in ("ended", "hung", "memory"):
            self.bugs.append(f"{self.target} {number}: {outcome.kind}: {outcome.said}")

    def __str__(self) -> str:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.kinds.most_common())
        errors = ", ".join(f"{count:,} {name}" for name, count in self.refusals.most_common())
        return (
            f"{self.target:13} {self.cases:6,} cases: {kinds} ({errors}); "
            f"{self.seconds:,.0f} s, at most {self.megabytes:,.0f} MB"
        )


def make_target(name: str, folder: Path) -> Target:
    module, kind, _ = TARGETS[name]
    made: Target = getattr(importlib.import_module(f"reliability.{module}"), kind)(folder)
    return made


def run_campaign(name: str, first: int, cases: int, show: bool = False) -> Campaign:
    """Run cases `first` … `first + cases - 1` of a target; a new process continues after one that ended."""
    campaign = Campaign(name)
    start, following = time.monotonic(), first
    while following < first + cases:
        begun = following
        for report in _worker(name, following, first + cases):
            outcome = Outcome(report["kind"], report["said"])
            campaign.megabytes = max(campaign.megabytes, report["megabytes"])
            campaign.count(report["number"], outcome)
            if show:
                print(f"{report['number']}: {outcome.kind}: {outcome.said}", flush=True)
            following = report["number"] + 1
        if following == begun:
            raise RuntimeError(f"{name}: a process ended before its first case, {begun}")
    campaign.seconds = time.monotonic() - start
    return campaign


def _worker(name: str, first: int, last: int) -> Iterator[dict[str, Any]]:
    """Yield the reports of one process; if it ended early, the last report says how."""
    command = [sys.executable, "-m", "tests.reliability.fuzz", name, "--worker", "--first", str(first)]
    scratch = tempfile.TemporaryDirectory(prefix="fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    with scratch as folder, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*command, "--cases", str(last - first), "--folder", folder],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert process.stdout is not None
        begun: int | None = None
        silent = False
        while True:
            if not select.select([process.stdout], [], [], SILENT_SECONDS)[0]:
                silent = True
                process.kill()
            line = process.stdout.readline()
            if not line.endswith(b"\n"):
                break
            report = json.loads(line)
            begun = report.get("begun")
            if begun is None:
                yield report
        status = process.wait()
        errors.seek(0)
        said = errors.read().decode("utf-8", "replace").strip()[-600:]
        if begun is not None:  # but never finished
            kind = "hung" if silent or status == -signal.SIGXCPU else "ended"
            yield {"number": begun, "kind": kind, "said": f"exit status {status}; {said}", "megabytes": 0.0}
        elif status:
            raise RuntimeError(f"{name}: {said}")


def work(name: str, first: int, cases: int, folder: Path) -> None:
    """Run the cases in this separate process, and print a line of JSON before and after each."""
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries is not a report
    target = make_target(name, folder)
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    for number in range(first, first + cases):
        before = _megabytes()
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + WORK_SECONDS, resource.RLIM_INFINITY))
        print(json.dumps({"begun": number}), file=reports, flush=True)
        outcome = target.case(number)
        after = _megabytes()
        if after - before > CASE_MEGABYTES:
            outcome = Outcome("memory", f"{after - before:,.0f} MB; {outcome.kind}: {outcome.said}")
        report = {"number": number, "kind": outcome.kind, "said": outcome.said[:2500], "megabytes": after}
        print(json.dumps(report), file=reports, flush=True)


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--cases", type=int, help="of each target")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--show", action="store_true", help="print the message of every case")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if unknown := set(chosen.targets) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}")
    if chosen.worker:
        work(chosen.targets[0], chosen.first, chosen.cases, chosen.folder)
        return
    total, bugs = 0, 0
    for name in chosen.targets or TARGETS:
        campaign = run_campaign(name, chosen.first, chosen.cases or TARGETS[name][2], chosen.show)
        print(campaign, flush=True)
        total, bugs = total + campaign.cases, bugs + len(campaign.bugs)
        for bug in campaign.bugs[:SHOWN]:
            print(f"  {bug}", flush=True)
        if len(campaign.bugs) > SHOWN:
            print(f"  and {len(campaign.bugs) - SHOWN:,} more", flush=True)
    print(f"{total:,} cases, {bugs:,} bugs")
    sys.exit(1 if bugs else 0)


if __name__ == "__main__":
    main()
