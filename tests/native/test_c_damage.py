"""The base of the C runtime under sanitizers, and with inputs of a fuzzer."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.c_base import base_program, fuzz_program
from tests.helpers.paths import GOLDEN, ROOT
from tests.native.test_c_graph_gate import GRAPHS, MADE
from tests.native.test_c_json import VALUES
from tests.native.test_c_tokenizers import RAW, VOCABULARIES
from xlruntime.state_file import write_state

pytestmark = pytest.mark.native

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
LONGEST = 60_000  # bytes of an input to begin with
JSON, MANIFEST, GRAPH, STATE, VOCABULARY = (bytes([kind]) for kind in range(5))


def first_inputs(folder: Path) -> None:
    """Write an input for each reader that fuzz_base.cc has."""
    inputs = [JSON + json.dumps(value).encode() for value in VALUES]
    for path in sorted(GOLDEN.glob("*/bundle/bundle.json")):
        manifest = json.loads(path.read_text("utf-8"))
        del manifest["manifest_sha256"]
        inputs.append(MANIFEST + json.dumps(manifest).encode())
    inputs += [GRAPH + made().SerializeToString() for name, made in MADE.items() if name != "very many"]
    inputs += [GRAPH + path.read_bytes() for path in GRAPHS if path.stat().st_size < LONGEST // 5]
    write_state(
        folder / "state", "xlexport stream", 2, {"x": [1.5, "ü", {}]}, {"b": np.ones((2, 3)), "a": np.arange(3)}
    )
    inputs.append(STATE + (folder / "state").read_bytes())
    rng = random.Random(17)
    texts = [b"\0" + b"".join(rng.choices(RAW, k=30)) for _ in VOCABULARIES]
    pairs = zip(VOCABULARIES, texts, strict=True)
    inputs += [VOCABULARY + vocabulary.to_json().encode() + text for vocabulary, text in pairs]
    for number, content in enumerate(inputs):
        if len(content) < LONGEST:
            (folder / f"{number:03}").write_bytes(content)


def fuzz(runs: int, flags: tuple[str, ...], folder: Path) -> str:
    inputs = folder / "inputs"
    inputs.mkdir()
    first_inputs(inputs)
    done = subprocess.run(
        [fuzz_program(flags), inputs, str(runs), "1"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def test_few_inputs_of_a_fuzzer(tmp_path: Path) -> None:
    found, given, places = (int(word) for word in fuzz(3000, (), tmp_path).split() if word.isdigit())
    assert found > given > 60 and places > 1000


def test_many_inputs_of_a_fuzzer_under_sanitizers(tmp_path: Path) -> None:
    fuzz(30_000, SANITIZERS, tmp_path)


def test_all_tests_under_sanitizers() -> None:
    base_program(SANITIZERS)
    tests = sorted(path for path in Path(__file__).parent.glob("test_c_*.py") if path.name != Path(__file__).name)
    environment = os.environ | {"C_BASE_FLAGS": " ".join(SANITIZERS)}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", *map(str, tests)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
