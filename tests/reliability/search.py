"""Search for inputs that harm the readers, guided by the branches that each input reaches (atheris, libFuzzer).

    python -m tests.reliability.search                             a minute, shared by all targets
    python -m tests.reliability.search --seconds 3600 pickle manifest
    python -m tests.reliability.search pickle -- -seed=1           further options of libFuzzer: -help=1 lists them
    python -m tests.reliability.search pickle --read FILE          one input and its result; needs no atheris

An input may give a result or an error of ours. Anything else ends the search of its target, and the input is kept in
the folder `findings`: another error, a message that a terminal cannot show, more than 2 seconds of processor time, more
than 256 MB, a process that ends, or no result after 30 seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import io
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Mapping
from pathlib import Path

from tests.reliability.target import InputFile, Target, judge

NEEDED = (
    "atheris is not installed: pip install atheris. It has wheels for CPython 3.11 to 3.13 on Linux, x86-64. "
    "On other systems, read the kept inputs with: pytest -m full tests/reliability/test_readers.py"
)
PACKAGES = ["xlexport", "xlruntime", "xltraining"]  # the search follows the branches of these, not of libraries
MODULE = "tests.reliability.targets"
FINDINGS = Path("findings")
FLAGS = ("-timeout=30", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0")
DATA_BYTES = 3 << 30  # limit of a process, including libraries


def main() -> None:
    """Search each target in a process of its own, one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="names of targets (all)")
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds for all targets together (60)")
    parser.add_argument("--read", type=Path, metavar="FILE", help="read one input")
    arguments = sys.argv[1:]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, flags = parser.parse_args(arguments[:end]), arguments[end + 1 :]
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # threads would not survive in the forked processes
    counted: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if options.read is None:
        if importlib.util.find_spec("atheris") is None:
            sys.exit(NEEDED)
        import atheris

        counted = atheris.instrument_imports(include=PACKAGES)
    with counted, contextlib.redirect_stderr(io.StringIO()):
        targets: Mapping[str, type[Target]] = importlib.import_module(MODULE).TARGETS
    if unknown := {*options.targets} - {*targets}:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(targets)}")
    names = options.targets or [*targets]
    if options.read is not None:
        for name in names:
            print(f"{name}: {read(targets[name], options.read)}")
        return
    FINDINGS.mkdir(exist_ok=True)
    harmed = [name for name in names if search(name, targets[name], options.seconds / len(names), flags)]
    print(f"{len(names)} targets, findings in {len(harmed)}" + "".join(f"\n  {name}" for name in harmed))
    sys.exit(bool(harmed))


def read(target: type[Target], file: Path) -> str:
    """Read one input, and return what became of it."""
    with tempfile.TemporaryDirectory() as folder:
        return "refused" if judge(target(Path(folder)), file.read_bytes()) else "read"


def search(name: str, kind: type[Target], seconds: float, flags: list[str]) -> int:
    """Search a target in a process of its own, and return its status: 0 if nothing was found."""
    print(f"{name}: {seconds:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        process = os.fork()
        if process == 0:
            try:
                _search(name, kind, Path(folder), seconds, flags)
            except BaseException:
                traceback.print_exc()
            os._exit(70)
        status, last = os.waitpid(process, 0)[1], Path(folder) / "last"
        if status and last.exists():
            raw = last.read_bytes()
            finding = FINDINGS / f"{name}-{hashlib.sha1(raw).hexdigest()[:12]}"
            finding.write_bytes(raw)
            print(f"harmful: python -m tests.reliability.search {name} --read {finding}", flush=True)
        return status


def _search(name: str, kind: type[Target], folder: Path, seconds: float, flags: list[str]) -> None:
    """Let libFuzzer give inputs to a target until the time is over, and end the process."""
    import atheris

    from tests.reliability.targets import corpus

    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    for part in ("scratch", "inputs"):
        (folder / part).mkdir()
    with atheris.instrument_imports(include=PACKAGES):  # some readers import more when they are first called
        target = kind(folder / "scratch")
        inputs = [*target.seeds(), *corpus(name).values()]
        with contextlib.suppress(*target.errors):
            target.read(inputs[0])  # loads libraries, which later inputs do not pay for
    for number, raw in enumerate(inputs):
        (folder / "inputs" / str(number)).write_bytes(raw)
    words = ['"' + "".join(rf"\x{byte:02x}" for byte in word) + '"' for word in target.words]
    (folder / "words").write_text("\n".join(["# words", *words]) + "\n")
    own = [f"-max_total_time={max(1, round(seconds))}", f"-max_len={target.longest}", f"-dict={folder / 'words'}",
           f"-artifact_prefix={folder}/", *FLAGS]  # fmt: skip
    last = InputFile(folder / "last")

    def read_one(raw: bytes) -> None:
        last.write(raw)  # it stays if the process ends in any way
        judge(target, raw)

    atheris.Setup(["search", *own, *flags, str(folder / "inputs")], read_one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
