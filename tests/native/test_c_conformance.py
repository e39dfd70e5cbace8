"""The C library passes the conformance kit, and its runner notices differences."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.run import run_case
from tests.helpers.c_library import SANITIZED, build_c_runtime, find_onnxruntime

pytestmark = pytest.mark.native

LAST = re.compile(r"(\d+) of (\d+) cases passed; largest difference (\d\.\de[+-]\d\d), with low precision .+")
LIBRARIES = {  # kinds of tokenizers that C lacks
    **dict.fromkeys(("gpt4o", "llama", "llama3", "metaspace", "other_pattern", "roberta"), "tokenizer.json"),
    **dict.fromkeys(("sentencepiece_bpe", "sentencepiece_unigram"), "SentencePiece"),
    "word_pieces": "tokenizer.json",
}
LEFT_OUT = [
    "not tried: text_byte_pairs (this runtime has no tokenizer.json)",
    "not tried: text_sentence_pieces (this runtime has no SentencePiece)",
    *(f"not tried: growing_text_{kind} (this runtime has no {library})" for kind, library in LIBRARIES.items()),
    "not given: a seed below 0, graphs, max_tokens below 0, settings that are 0, unknown or no numbers, top_k of 0, "
    "unknown_tokens",
]


def run(kit: Path, *options: str | Path, sanitizers: str = "") -> tuple[int, list[str]]:
    """Return the exit status and the lines of the runner."""
    program = build_c_runtime(sanitizers, ("xlconformance",)) / "xlconformance"
    command = [program, kit, "--onnxruntime", find_onnxruntime(), *options]
    environment = {**os.environ, **SANITIZED.get(sanitizers, {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=540, env=environment)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_c_passes(kit: Path, tmp_path: Path) -> None:
    status, lines = run(kit, "--keep", tmp_path)
    assert status == 0, "\n".join(lines)
    assert [line for line in lines if line.startswith("not ")] == LEFT_OUT
    assert lines[-3].startswith("runtime: C, ONNX Runtime 1.") and lines[-2] != "kernels: none"
    count = len(json.loads((kit / "kit.json").read_text("utf-8"))["cases"]) - len(LEFT_OUT) + 1
    found = LAST.fullmatch(lines[-1])
    assert found is not None
    assert found.group(1) == found.group(2) == str(count)
    for name in ("state_two_rings", "state_pre_lnorm_same_length_zeros"):  # Python goes on with states of C
        assert run_case(kit, name, 1e-4, tmp_path).problems == []


def test_states_of_the_kit_continue_as_if_uninterrupted(kit: Path) -> None:
    cases = [json.loads(file.read_text("utf-8")) for file in (kit / "cases").glob("state_*.json")]
    assert len(cases) >= 25
    for case in cases:
        actions = itertools.takewhile(lambda one: one["do"] != "reset", case["actions"])
        scores = {one["stream"]: one["expect"]["log_probs"] for one in actions if one["do"] == "feed"}
        assert scores["a"] == scores["own"] == scores["other"], case["name"]


@pytest.mark.parametrize("what", ["scores_", "stream_", "state_", "generate_", "text_"])
def test_c_has_the_bits_of_python(what: str, kit: Path) -> None:
    """Allow a rounding of totals, which are sums in float64. Scores are float32, so they must be equal.

    Texts that grow are read in segments whose lengths need not be Python's, so their scores may be rounded otherwise.
    """
    status, lines = run(kit, "--no-kernels", "--only", what, "--within", "1e-6" if what == "text_" else "1e-14")
    assert status == 0, "\n".join(lines)
    assert "kernels: none" in lines


def test_sanitizers_find_nothing(kit: Path) -> None:
    status, lines = run(kit, sanitizers="address,undefined")
    assert status == 0, "\n".join(lines)


def changed_kit(kit: Path, folder: Path, case: dict[str, Any]) -> Path:
    """Return a kit of one case, with the bundles of another kit."""
    for part in ("bundles", "states", "files"):
        (folder / part).symlink_to(kit / part)
    (folder / "cases").mkdir()
    (folder / "cases" / "changed.json").write_text(json.dumps(case), "utf-8")
    (folder / "kit.json").write_text(json.dumps({"cases": ["changed"]}), "utf-8")
    return folder


def test_other_numbers_and_missing_refusals_are_found(kit: Path, tmp_path: Path) -> None:
    case = json.loads((kit / "cases/stream_reformer_band.json").read_text("utf-8"))
    actions = case["actions"]
    actions[5]["expect"]["log_probs"][0] += 0.01
    actions[2]["expect"]["index"] = [7]
    actions[1]["error"] = {"code": "option"}
    actions.append({"do": "stream", "as": "z", "capacity": -1, "error": {"code": "text"}})
    actions.append({"do": "feed", "stream": "missing", "piece": {"ids": [1]}, "expect": {}})
    actions.append({"do": "open", "bundle": "is not reached"})
    status, lines = run(changed_kit(kit, tmp_path, case))
    assert status == 1
    assert lines[0].startswith("failed  changed  1.0e-02")
    problems = [line.strip().partition(": ")[2].split(" ")[0] for line in lines if line.startswith("    ")]
    assert problems == ["nothing", "index", "log_probs", "option:", "exception:"]
    assert lines[-1].startswith("0 of 1 cases passed; largest difference 1.0e-02")


def test_a_case_of_low_precision_has_bounds_of_its_own(kit: Path, tmp_path: Path) -> None:
    case = json.loads((kit / "cases/scores_reformer_band.json").read_text("utf-8"))
    case["actions"][3]["expect"]["log_probs"][0] += 0.01
    case["actions"][3]["expect"]["totals"]["nats"] *= 1.005
    case["within"] = {"nats": 0.02, "totals": 0.01}
    folder = changed_kit(kit, tmp_path, case)
    status, lines = run(folder)
    assert status == 0
    assert lines[-1] == "1 of 1 cases passed; largest difference 0.0e+00, with low precision 1.0e-02"
    case["within"] = {"nats": 0.02, "totals": 0.001}
    (folder / "cases" / "changed.json").write_text(json.dumps(case), "utf-8")
    assert run(folder)[0] == 1
    assert run(folder, "--within", "0.03")[0] == 0
