"""Open mutated manifests and saved streams, with digests that fit, in a runtime; feed tokens to those that open.

    python -m tests.reliability.mutate python|c|js --count 10000        C under address and undefined sanitizers

A mutant may open and give finite scores, or say that some were not finite, or be refused with one of our codes in one
short line. Anything else is a finding: another error, a process that ends, no answer after a minute, or more than 3 GB.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy.typing as npt

from tests.conformance.actions import MANIFEST, manifest_files
from tests.helpers.c_library import SANITIZED, build_c_runtime, find_onnxruntime
from tests.helpers.paths import BAND, EMPTY, ROOT, ZEROS, golden_bundle
from tests.reliability.target import LONGEST_MESSAGE
from xlruntime import NonFiniteScoreWarning, XlruntimeError, errors, load
from xlruntime.state import KIND, VERSION, read_state, write_state

# Rows of these take 150 bytes or more, so that a wild number of them is more than any machine has.
BUNDLES = (EMPTY, ZEROS, "shaw_distances") * 5 + (BAND,)  # the last one opens slowly
SECONDS, MEMORY = 60, 3 << 20  # for an answer; kB of a process
CODES = {kind.code for kind in vars(errors).values() if hasattr(kind, "code")} - {"internal"}
# Codes of mutants that the checks of the digest and of the shape refuse.
SHAPE = ("bundle_format", "bundle_damaged", "state_damaged", "state_mismatch")
MARK = "MARK"  # a value in whose place an odd one is written
ODD = (
    *("1.0", "1e0", "-0", "0.5", "1e400", "NaN", "-Infinity", "0", "-1", "2147483647", "2147483648", '""', '"batch"'),
    *("4503599627370496", "9007199254740993", "9223372036854775807", "9223372036854775808", "18446744073709551616"),
    *("true", "null", '"1"', "[]", "{}", "[1]", '{"a":1,"a":2}'),
)
NUMBERS = {"f": (0.0, 1.0, 1e-45, 1e30, 2.8e38, math.nan), "i": (0, -1, 5, 100)}


def mutate(runtime: str, count: int, seed: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Write `count` mutants to `folder`, one after another, and open them; return the results and the findings."""
    results, findings, process = Counter[str](), list[str](), None
    for number, line in enumerate(_mutants(count, random.Random(seed), folder)):
        process = process or start(runtime)
        assert process.stdin is not None and process.stdout is not None
        alarm = threading.Timer(SECONDS, process.kill)
        alarm.start()
        print(line, file=process.stdin, flush=True)
        answer = process.stdout.readline().rstrip("\n")
        alarm.cancel()
        result, _, rest = answer.partition(" ")
        results[result] += 1
        good = math.isfinite(float(rest)) if result == "ok" else result in {"reported", *CODES}
        if not good or not answer.isprintable() or len(answer) > LONGEST_MESSAGE:
            findings.append(f"mutant {number} of seed {seed} ({line}): {answer!a} {process.communicate()[0]}")
            process = None
    if process is not None and ((said := process.communicate()[0]) or process.returncode):
        findings.append(f"status {process.returncode}: {said}")
    if (peak := resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) > MEMORY:
        findings.append(f"{peak:,} kB of memory")
    return results, findings


def past_shape(results: Counter[str]) -> int:
    """Return the number of mutants that got past the checks of digest and shape."""
    return results.total() - sum(results[code] for code in SHAPE)


def start(runtime: str) -> subprocess.Popen[str]:
    """Start a process that opens mutants, a line each. What it says besides its answers is found, too."""
    command = [sys.executable, "-c", "from tests.reliability.mutate import drive; drive()"]
    if runtime == "js":
        command = ["node", "runtime/js/conformance/open_mutants.mjs"]
    elif runtime == "c":
        command = [f"{build_c_runtime('address,undefined', ('open_mutants',))}/open_mutants", str(find_onnxruntime())]
    environment = os.environ | SANITIZED["address,undefined"]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT
    )


def _mutants(count: int, rng: random.Random, folder: Path) -> Iterator[str]:
    """Write mutants, each in the place of the one before, and yield their lines for a driver."""
    seeds, state = {}, folder / "state"
    for name in sorted({*BUNDLES}):
        shutil.copytree(golden_bundle(name), folder / name)
        stream = load(golden_bundle(name), threads=1, ops="none").stream()
        stream.feed([number % 10 for number in range(rng.randrange(1, 60))])
        stream.save(state)
        seeds[name] = read_state(state, KIND, VERSION, "")
    for _ in range(count):
        name = rng.choice(BUNDLES)
        if rng.random() < 0.5:
            manifest = json.loads((golden_bundle(name) / MANIFEST).read_text("utf-8"))
            for file, content in manifest_files(_changed(manifest, rng)).items():
                (folder / name / file).write_bytes(content)
            yield f"{folder / name}\t"
        else:
            _write_state(state, *copy.deepcopy(seeds[name]), rng)
            yield f"{golden_bundle(name)}\t{state}"


def _changed(root: Any, rng: random.Random) -> bytes:
    """Return the text of a JSON document after a change or two, most of them of numbers to near ones."""
    odd = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        for _ in range(5):  # most values are texts
            parent, key, value = _place(root, rng)
            if type(value) is int:
                break
        if type(value) is int and rng.random() < 0.85:
            most = 1 << 30 if isinstance(parent, dict) else (1 << 31) - 1  # of lengths, and of axes
            parent[key] = rng.choice((value + 1, abs(value - 1), 2 * value, rng.randrange(1, 70), most))
        elif isinstance(value, dict) and rng.random() < 0.5:
            value[rng.choice(("more", *value))] = copy.deepcopy(rng.choice([MARK, *value.values()]))
        else:
            parent[key] = MARK
            odd.append(rng.choice(ODD))
    text = json.dumps(root)
    for token in odd:
        text = text.replace(f'"{MARK}"', token, 1)
    return text.encode()


def _place(root: Any, rng: random.Random) -> tuple[Any, Any, Any]:
    """Return a container, a key in it, and its value. Each level is as likely as the next: shallow places are few."""
    parent, key, value = root, None, root
    while isinstance(value, dict | list) and value and (key is None or rng.random() < 0.97):
        parent = value
        key = rng.choice([*parent] if isinstance(parent, dict) else range(len(parent)))
        value = parent[key]
    return parent, key, value


def _write_state(
    file: Path, metadata: dict[str, str], tensors: dict[str, npt.NDArray[Any]], rng: random.Random
) -> None:
    """Write a saved stream after a change or two of its texts and numbers, and perhaps some of its header."""
    for _ in range(rng.choice((1, 1, 1, 2))):
        if rng.random() < 0.3:
            name = rng.choice([*metadata])
            near = [int(metadata[name]) + step for step in (-1, 1, 7, 1 << 40) if metadata[name].isdecimal()]
            metadata[name] = rng.choice((*map(str, near), rng.choice(ODD).strip('"')))
        else:
            numbers = tensors[rng.choice([*tensors])].reshape(-1)
            begin = rng.randrange(numbers.size)
            numbers[begin : begin + rng.choice((1, 8, numbers.size))] = rng.choice(NUMBERS[numbers.dtype.kind])
    write_state(file, metadata, tensors)
    if rng.random() < 0.1:
        raw = file.read_bytes()
        size = int.from_bytes(raw[:8], "little") + 8
        header = _changed(json.loads(raw[8:size]), rng)
        file.write_bytes(len(header).to_bytes(8, "little") + header + raw[size:])


def drive() -> None:
    """Answer lines of mutants, as the drivers of the other runtimes do."""
    warnings.simplefilter("error", NonFiniteScoreWarning)
    for line in sys.stdin:
        bundle, state = line.rstrip("\n").split("\t")
        try:
            model = load(bundle, threads=1, ops="none")
            stream = model.restore(state) if state else model.stream()
            answer = f"ok {-math.fsum(stream.feed([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]).log_probs)}"
        except NonFiniteScoreWarning:
            answer = "reported"
        except XlruntimeError as error:
            answer = f"{error.code} {error}"
        print(answer, flush=True)


def main() -> None:
    """Mutate for the runtime of the command line; the exit code is 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runtime", choices=("python", "c", "js"))
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results, findings = mutate(given.runtime, given.count, given.seed, Path(folder))
    print(*findings, f"{given.runtime}: {results.total():,} mutants, {len(findings)} findings", sep="\n")
    print(f"{past_shape(results):,} past digest and shape:", *(f"{name} {n:,}" for name, n in results.most_common()))
    sys.exit(bool(findings))


if __name__ == "__main__":
    main()
