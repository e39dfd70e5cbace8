"""Run the tests with the marker `cuda`, which skip without a GPU. With a GPU, a skipped test counts as failed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.sides import ROOT
from tests.gpu.parts import PartError, Record, Settings

__all__ = ["judge", "run_skipped_tests"]

# A library may warn about a driver or a package of this machine, which must not fail a test.
PYTEST = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-W", "default", "-p", "no:cacheprovider"]


def run_skipped_tests(settings: Settings, record: Record) -> None:
    """Run the tests; on a CPU only check that pytest finds them.

    Raises:
        PartError: a test failed or was skipped, or no test was found.
    """
    if not settings.on_cuda:
        found = subprocess.run(
            [*PYTEST, "--collect-only", "-n0"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
        )
        count = sum("::" in line for line in found.stdout.splitlines())
        record({"collected": count})
        if found.returncode or not count:
            raise PartError(f"pytest collected {count} tests and ended with status {found.returncode}")
        return
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "results.xml")
        done = subprocess.run([*PYTEST, "-n4", f"--junitxml={file}"], cwd=ROOT, stdout=sys.stderr, check=False)
        if not file.exists():
            raise PartError(f"pytest ended with status {done.returncode} and no results")
        judge(file.read_text("utf-8"), record)


def judge(results: str, record: Record) -> None:
    """Count the results in a JUnit file.

    Raises:
        PartError: tests did not pass; the message names them.
    """
    bad = []
    cases = list(ElementTree.fromstring(results).iter("testcase"))
    for case in cases:
        verdicts = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        if verdicts:
            bad.append(f"{case.get('name')} ({verdicts[0]})")
    record({"tests": len(cases), "not_passed": bad})
    if not cases:
        raise PartError("pytest ran no test")
    if bad:
        shown = ", ".join(bad[:5]) + (", …" if len(bad) > 5 else "")
        raise PartError(f"{len(bad)} of {len(cases)} tests did not pass: {shown}")
