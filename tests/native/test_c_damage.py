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

from tests.helpers.c_base import fuzz_program
from tests.helpers.c_library import SANITIZED, build_c_runtime
from tests.helpers.paths import GOLDEN, ROOT
from tests.native.test_c_graph_gate import GRAPHS, MADE
from tests.native.test_c_json import VALUES
from tests.native.test_c_tokenizers import RAW, VOCABULARIES
from xlruntime.state_file import write_state

pytestmark = pytest.mark.native

COMMANDED = ("graph_gate", "json", "manifest", "state", "tokenizers")  # tests that drive base_commands.cc
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


def test_many_inputs_of_a_fuzzer_under_sanitizers(tmp_path: Path) -> None:
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    first_inputs(inputs)
    done = subprocess.run(
        [fuzz_program(SANITIZERS), inputs, "30000", "1"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    found, given, places = (int(word) for word in done.stdout.split() if word.isdigit())
    assert found > given > 60 and places > 1000


def test_all_commands_under_sanitizers() -> None:
    sanitizers = "address,undefined"
    build_c_runtime(sanitizers, ("base_commands",))
    tests = [Path(__file__).with_name(f"test_c_{name}.py") for name in COMMANDED]
    environment = os.environ | {"C_BASE_SANITIZE": sanitizers, **SANITIZED[sanitizers]}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "native", *map(str, tests)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
