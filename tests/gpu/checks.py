"""What only a GPU can show, a function for each part: machine, tests, rings in place, placement, capture, float16.

On a CPU the same code is rehearsed. Each function records figures, and raises `PartError` if something is wrong.
"""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import psutil

from benchmarks.sides import ROOT, machine
from tests.gpu.bundles import FLOAT16, REFORMERS, TEXT_MODEL, bundle_of, shapes_of
from tests.gpu.parts import PartError, Record, Settings
from tests.helpers.paths import BAND, EMPTY, GOLDEN, golden_bundle
from tests.runtime.in_place import walk_both_ways
from xlexport.quantization.gate import compare, log_probs
from xlexport.sample import sample_text
from xlruntime import Model, load
from xlruntime.cuda_graphs import CapturedSession
from xlruntime.errors import XlruntimeError
from xlruntime.providers import import_onnxruntime

BUNDLE = golden_bundle(EMPTY)
REFORMER = golden_bundle(BAND)
USABLE = "usable"  # a figure: whether ONNX Runtime runs a bundle on the device
MARKER = "pytest.mark.cuda"
# A library may warn about a driver or a package of this machine, which must not fail a test.
PYTEST = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "-W", "default", "-p", "no:cacheprovider"]

SEGMENTS, TINY_SEGMENTS = {BUNDLE: ("", 10_000), REFORMER: ("reformer_", 300)}, 300
ROWS = 2
# A copy of the rings in each segment would cost more than 10 kB, which is 90 MB after the first tenth.
MOST_GROWTH = 16.0
IN_PLACE_WITHIN = {"cpu": 0.0, "cuda": 1e-5}  # as in `tests/runtime/test_cuda.py`: kernels may sum in any order

STEPS, TINY_STEPS = 200, 24
RESTARTS = (7, 9)  # steps before which the memory begins a new document
SPELL = 3  # steps of one memory before the other memory's turn
RESULTS = {"score": "log_prob", "generate": "logits"}
CAPTURED_WITHIN = 1e-4  # graphs of fixed shapes sum in another order, as `convert` allows
CAPTURES = 4  # of a purpose: two memories, whose windows change places

TOKENS, TINY_TOKENS = 20_000, 500
# Bits per token: for float32 only rounding in another order, for float16 the limit of `xlexport quantize`.
MOST_FLOAT32, MOST_FLOAT16 = 1e-4, 0.01


def describe_machine(settings: Settings, record: Record) -> None:
    """Record the versions, then compute a product with PyTorch and a few scores with ONNX Runtime, as the tests do.

    Raises:
        PartError: a library has no CUDA, or both are built for different versions of it.
    """
    record({USABLE: False})
    _score(settings)  # before PyTorch's libraries are loaded, and below after them
    record({USABLE: True})
    import torch

    cuda = {"torch": torch.version.cuda, "onnxruntime": getattr(import_onnxruntime(), "cuda_version", None) or None}
    record({**machine(), "cuda_versions": cuda, "platform": platform.platform()})
    if settings.on_cuda:
        record({"driver": _driver(settings.index)})
        if not torch.cuda.is_available():
            raise PartError(f"PyTorch {torch.__version__} finds no CUDA device; its CUDA version is {cuda['torch']}")
        record({"gpu": torch.cuda.get_device_name(settings.index)})
        if len({version.partition(".")[0] for version in cuda.values() if version}) > 1:
            raise PartError(
                f"PyTorch is built for CUDA {cuda['torch']}, ONNX Runtime for {cuda['onnxruntime']}, but one process "
                "loads one cuDNN. Install a PyTorch for the same CUDA."
            )
    ones = torch.ones(64, 64, device=settings.device)
    if not bool((ones @ ones == 64).all()):
        raise PartError("PyTorch's product of ones is wrong")
    _score(settings)


def _score(settings: Settings) -> None:
    model = load(BUNDLE, device=settings.device)
    scores = model.stream().feed(np.arange(100) % model.bundle.vocab_size).log_probs
    if not np.isfinite(scores).all():
        raise PartError("ONNX Runtime's scores are not finite")


def _driver(index: int) -> str | None:
    """Return the description of the device by nvidia-smi, if that program is installed."""
    query = "name,driver_version,memory.total"
    command = ["nvidia-smi", f"--id={index}", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def run_skipped_tests(settings: Settings, record: Record) -> None:
    """Run the tests with the marker `cuda`, where a skipped one counts as failed; on a CPU only collect them.

    Raises:
        PartError: a test failed or was skipped, or no test was found.
    """
    files = [str(file) for file in sorted((ROOT / "tests").rglob("test_*.py")) if MARKER in file.read_text("utf-8")]
    if not settings.on_cuda:
        command = [*PYTEST, "--collect-only", "-n0", *files]
        collection = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        count = sum("::" in line for line in collection.stdout.splitlines())
        record({"collected": count})
        if collection.returncode or not count:
            raise PartError(f"pytest collected {count} tests and ended with status {collection.returncode}")
        return
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "results.xml")
        done = subprocess.run([*PYTEST, "-n4", f"--junitxml={file}", *files], cwd=ROOT, stdout=sys.stderr, check=False)
        if not file.exists():
            raise PartError(f"pytest ended with status {done.returncode} and no results")
        judge(file.read_text("utf-8"), record)


def judge(results: str, record: Record) -> None:
    """Count the results in a JUnit file.

    Raises:
        PartError: tests did not pass; the message names them.
    """
    cases = list(ElementTree.fromstring(results).iter("testcase"))
    verdicts = [(case.get("name"), child.tag) for case in cases for child in case]
    bad = [f"{name} ({verdict})" for name, verdict in verdicts if verdict in ("failure", "error", "skipped")]
    record({"tests": len(cases), "not_passed": bad})
    if not cases:
        raise PartError("pytest ran no test")
    if bad:
        names = ", ".join(bad[:5]) + (", …" if len(bad) > 5 else "")
        raise PartError(f"{len(bad)} of {len(cases)} tests did not pass: {names}")


def many_segments_in_place(settings: Settings, record: Record) -> None:
    """Step with rings bound in place and as a pure function, and compare both after each segment.

    Raises:
        PartError: memory grew, or a ring's rows were not written by the device.
        AssertionError: results differ, a buffer moved, or a slot changed that does not belong to the segment.
    """
    for folder, (prefix, segments) in SEGMENTS.items():
        _walk_in_place(settings, record, folder, prefix, TINY_SEGMENTS if settings.tiny else segments)


def _walk_in_place(settings: Settings, record: Record, folder: Path, prefix: str, segments: int) -> None:
    """Walk one bundle; its figures have names with the prefix."""
    model = load(folder, device=settings.device, threads=None if settings.on_cuda else 1)
    rings = [entry for entry in model.bundle.memory if entry.layout == "ring"]
    written = model.placement("score").get(model.device.provider, {}).get("ScatterND", 0)
    if written != len(rings):
        raise PartError(f"{written} of {len(rings)} rings are written by {model.device.provider}")
    longest = model.new_memory(model.bundle.settings, ROWS).max_segment
    ids = np.random.default_rng(0).integers(0, model.bundle.vocab_size, (ROWS, segments * longest + 1))
    readings: list[npt.NDArray[np.float64]] = []

    def after(walked: int) -> None:
        if walked % (segments // 10) == 0:
            readings.append(np.array(megabytes(settings)))
            growth = float((readings[-1] - readings[0]).max())
            record({f"{prefix}segments": walked, "rows": ROWS, f"{prefix}growth_mb": growth})

    walk_both_ways(model, ids, IN_PLACE_WITHIN["cuda" if settings.on_cuda else "cpu"], after)
    assert len(readings) == 10
    if (growth := (readings[-1] - readings[0]).max()) > MOST_GROWTH:
        raise PartError(f"memory grew by {growth:.1f} MB after the first tenth of {segments:,} segments")


def megabytes(settings: Settings) -> tuple[float, float]:
    """Return the memory of this process, and what all processes use on the device, if it has memory of its own."""
    gc.collect()
    used = 0.0
    if settings.on_cuda:
        import torch

        free, total = torch.cuda.mem_get_info(settings.index)
        used = (total - free) / 1e6
    return psutil.Process().memory_info().rss / 1e6, used


def strictly_placed(settings: Settings, record: Record) -> None:
    """Open every graph of all bundles with `strict_device`: the device computes everything except sizes of tensors.

    Reformers of the golden bundles are left out: they were written with a `Pad` of integers, which CUDA lacks.

    Raises:
        PartError: a graph was refused; the message names the bundles.
    """
    golden = (path for path in sorted(GOLDEN.glob("*/bundle")) if not path.parent.name.startswith("reformer"))
    bundles = {path.parent.name: path for path in golden}
    names = (*(shape.name for shape in shapes_of(settings)), TEXT_MODEL, *FLOAT16)
    bundles |= {name: bundle_of(settings, name) for name in names}
    elsewhere: dict[str, dict[str, Any]] = {}
    refused: dict[str, str] = {}
    for name, folder in bundles.items():
        try:
            elsewhere[name] = _elsewhere(folder, settings)
        except XlruntimeError as error:
            refused[name] = str(error)
        record({"elsewhere": elsewhere, "refused": refused})
    if refused:
        first = next(iter(refused))
        raise PartError(f"{len(refused)} of {len(bundles)} bundles were refused, first {first}: {refused[first]}")


def _elsewhere(folder: Path, settings: Settings) -> dict[str, Any]:
    """Return the nodes that another provider computes, by graph, provider and operator."""
    model = load(folder, device=settings.device, strict_device=True)
    elsewhere = {}
    for purpose in model.bundle.graphs:
        placed = dict(model.placement(purpose))
        if not placed.pop(model.device.provider, None):
            raise PartError(f"{folder.name}: {purpose} has no node on {model.device.provider}")
        elsewhere[purpose] = placed
        model.release(purpose)
    return elsewhere


def captured_against_plain(settings: Settings, record: Record) -> None:
    """Compare steps that CUDA captured and replays with plain runs of the graphs with free shapes, for each purpose.

    Two memories are stepped in turns, and restart on the way. On a CPU the graphs of fixed shapes run uncaptured.

    Raises:
        PartError: results differ, or the number of captures is wrong.
    """
    for name in (TEXT_MODEL, REFORMERS[0].name):
        plain = load(bundle_of(settings, name), device=settings.device)
        captured = load(bundle_of(settings, name, fixed=True), device=settings.device, cuda_graphs=settings.on_cuda)
        steps = TINY_STEPS if settings.tiny else STEPS
        largest: dict[str, float] = {}
        for purpose in RESULTS:
            walks = [list(_walk(model, purpose, steps)) for model in (captured, plain)]
            largest[purpose] = max(float(np.abs(one - other).max()) for one, other in zip(*walks, strict=True))
            record({f"{name}_largest_difference": largest, "steps": steps})
            if not largest[purpose] <= CAPTURED_WITHIN:
                raise PartError(f"{name}, {purpose}: captured steps differ by {largest[purpose]:.1e} from plain ones")
        if settings.on_cuda:
            sessions = {purpose: cast(CapturedSession, captured.session(purpose)) for purpose in RESULTS}
            captures = {purpose: len(session._captures) for purpose, session in sessions.items()}
            record({"captures": captures})
            if set(captures.values()) != {CAPTURES}:
                raise PartError(f"{name}: expected {CAPTURES} captures of each purpose, found {captures}")


def _walk(model: Model, purpose: str, steps: int) -> Iterator[npt.NDArray[Any]]:
    """Yield the results of all steps; two memories take turns, each on its own text."""
    evaluation = model.evaluation()
    memories = [model.new_memory(evaluation) for _ in range(2)]
    random = np.random.default_rng(0)
    for number in range(steps):
        memory = memories[number // SPELL % 2]
        if number in RESTARTS:
            memory.restart(0)
        tokens, targets = random.integers(0, model.bundle.vocab_size, (2, 1, evaluation.segment_len))
        yield model.step(purpose, memory, tokens, targets)[RESULTS[purpose]]


def float16_against_float32(settings: Settings, record: Record) -> None:
    """Score real text on the CPU in float32, and on the device in float32 and both kinds of float16.

    Raises:
        PartError: a difference in bits per token is too large or not a number.
    """
    reader = load(bundle_of(settings, TEXT_MODEL))  # the Reformers read bytes, too
    ids = reader.tokenizer.encode(sample_text().encode())[: TINY_TOKENS if settings.tiny else TOKENS]

    def on_device(name: str) -> npt.NDArray[np.float32]:
        return log_probs(load(bundle_of(settings, name), device=settings.device), ids)

    here = {source: on_device(source) for source in dict.fromkeys(source for source, _ in FLOAT16.values())}
    compared = [("float32 against a CPU", log_probs(reader, ids), here[TEXT_MODEL], MOST_FLOAT32)]
    compared += [(name, here[source], on_device(name), MOST_FLOAT16) for name, (source, _) in FLOAT16.items()]
    too_far = []
    for name, exact, scores, limit in compared:
        difference = compare(exact, scores)
        record({name: asdict(difference)})
        if not difference.within(limit):
            too_far.append(f"{name}: {difference.delta_bits_per_token:+.5f} bits per token, {limit:g} allowed")
    if too_far:
        raise PartError("; ".join(too_far))
