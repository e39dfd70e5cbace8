"""Plant faults in copies of the sources, and see which test finds each: `python -m tests.faults.find [NUMBER…]`.

Sources and tests are those of the commit that is checked out; patches are those of this folder.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"xlexport": ".", "xlruntime": "runtime/python", "xltraining": "training"}
SHOW_SOURCES = "import " + ", ".join(PACKAGES) + "; print(" + ", ".join(f"{name}.__file__" for name in PACKAGES) + ")"
LONGEST = 900  # seconds
KEPT = ("runtime/js/node_modules", ".pytest_cache/exports")  # in no commit; the key of an export covers its code
FAILED = re.compile(r"^(?:FAILED |ERROR |\s*not ok \d+ - )(.+?)(?: - .*)?$", re.MULTILINE)


def find(patch: Path) -> tuple[bool, str]:
    """Return whether a test finds a fault, and a line that says which one after how many seconds."""
    fields = dict(re.findall(r"^(\w+): (.+)$", patch.read_text("utf-8").partition("diff --git")[0], re.MULTILINE))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fault_", ignore_cleanup_errors=True) as folder:
        tree = Path(folder).resolve() / "tree"
        found, outcome = _run_tests(tree, patch, fields["Tests"].split())
    return found, f"{patch.name[:2]}  {fields['Part']}: {outcome} ({time.monotonic() - began:.0f} s)"


def _run_tests(tree: Path, patch: Path, tests: list[str]) -> tuple[bool, str]:
    """Make the tree, plant the fault, and run the tests until one fails."""
    paths = os.pathsep.join(str(tree / folder) for folder in PACKAGES.values())
    archive = _run(ROOT, paths, "git", "archive", "--format=tar", "-o", f"{tree}.tar", "HEAD")
    assert archive.returncode == 0, archive.stderr
    shutil.unpack_archive(f"{tree}.tar", tree, filter="data")
    tree.with_name("shared").symlink_to(ROOT.parent / "shared")  # long texts, which are next to a checkout
    for name in KEPT:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).symlink_to(ROOT / name)
    applied = _run(tree, paths, "git", "apply", "-C1", "--recount", str(patch))
    if applied.returncode:
        return False, f"DOES NOT APPLY: {applied.stderr.strip()}"
    sources = _run(tree, paths, sys.executable, "-c", SHOW_SOURCES)
    if sources.stdout.split() != [str(tree / folder / name / "__init__.py") for name, folder in PACKAGES.items()]:
        return False, f"DID NOT RUN: Python imports other sources: {sources.stdout}{sources.stderr[-400:]}"
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-m", "not native and not long", *tests]
    try:
        done = _run(tree / "runtime/js", paths, *tests) if tests[0] == "npm" else _run(tree, paths, *pytest)
    except subprocess.TimeoutExpired:
        return False, f"NO END after {LONGEST} s"
    output = (done.stdout.strip() or done.stderr.strip()).splitlines() or ["no output"]
    failed = FAILED.search(done.stdout)
    if done.returncode == 1 and failed is not None:
        return True, f"found by {failed[1]}"
    return False, f"{'DID NOT RUN' if done.returncode else 'NOT FOUND'}: {output[-1]}"


def _run(folder: Path, paths: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command whose processes import Python's sources from these paths."""
    chosen = {**os.environ, "PYTHONPATH": paths}
    return subprocess.run(command, check=False, cwd=folder, env=chosen, capture_output=True, text=True, timeout=LONGEST)


def main() -> int:
    """Print a line for each fault; return 1 unless tests found all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*", type=int, help="faults to plant; without numbers all")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
    options = parser.parse_args()
    patches = sorted(Path(__file__).parent.glob("[0-9][0-9]_*.patch"))
    patches = [patch for patch in patches if not options.numbers or int(patch.name[:2]) in options.numbers]
    (ROOT / KEPT[1]).mkdir(parents=True, exist_ok=True)
    count = 0
    with ThreadPoolExecutor(options.jobs) as jobs:
        for found, line in jobs.map(find, patches):
            print(line, flush=True)
            count += found
    print(f"{count} of {len(patches)} faults found")
    return int(count < len(patches))


if __name__ == "__main__":
    sys.exit(main())
