"""The parts of the C runtime that read files of strangers, with inputs of a fuzzer under sanitizers."""

from __future__ import annotations

import random
import struct
import subprocess
from pathlib import Path

import pytest

from tests.helpers.c_base import fuzz_program
from tests.helpers.paths import GOLDEN
from tests.helpers.tokenizer_kinds import LIBRARIES
from tests.helpers.tokenizer_kinds import VOCABULARIES as MORE_VOCABULARIES
from tests.native.test_c_tokenizers import PIECES, RAW, VOCABULARIES, WRONG
from xlexport.byte_pair_file import byte_pair_file
from xlruntime import load

pytestmark = pytest.mark.native

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
LONGEST = 60_000  # bytes of an input to begin with
MANIFEST, GRAPH, TENSORS, VOCABULARY, BYTE_PAIRS = (bytes([kind]) for kind in range(5))


def first_inputs(folder: Path) -> None:
    """Write an input for each reader that fuzz_base.cc has."""
    bundles = sorted(GOLDEN.glob("*/bundle"))
    inputs = [MANIFEST + (bundle / "bundle.json").read_bytes() for bundle in bundles]
    inputs += [GRAPH + path.read_bytes() for bundle in bundles for path in bundle.glob("*.onnx")]
    inputs += [TENSORS + path.read_bytes() for bundle in bundles for path in bundle.glob("*.safetensors")]
    stream = load(GOLDEN / "two_rings" / "bundle").stream()
    stream.feed([1, 2, 3])
    stream.save(folder / "state")
    inputs.append(TENSORS + (folder / "state").read_bytes())
    rng = random.Random(17)
    texts = [b"\0" + b"".join(rng.choices(RAW + WRONG, k=30)) for _ in VOCABULARIES]
    pairs = zip(VOCABULARIES, texts, strict=True)
    inputs += [VOCABULARY + vocabulary.to_json().encode() + text for vocabulary, text in pairs]
    text = "".join(PIECES).encode()
    inputs += [VOCABULARY + make().to_json().encode() + b"\0" + text for make in MORE_VOCABULARIES.values()]
    for kind in ("gpt2", "neox"):
        file = byte_pair_file(LIBRARIES[kind]().to_str().encode()) or b""
        inputs.append(BYTE_PAIRS + struct.pack("<H", len(file)) + file + text)
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
    assert found > given > 40 and places > 1000
