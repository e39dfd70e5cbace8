"""The conformance kit covers the format, passes in Python, and notices differences."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.bundles import WITHIN
from tests.conformance.refusals import OBJECTS
from tests.conformance.run import Comparison, main, run_case
from tests.helpers.paths import ROOT
from xlruntime import load
from xlruntime.bundle_files import read_bundle

pytestmark = pytest.mark.native

# Codes of other things than bundles, states and their use.
ELSEWHERE = {
    "argument",
    "busy",
    "file",
    "internal",
    "memory",
    "provider",
    "runtime",
    "stopped",
    "timeout",
}


def actions(kit: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield all actions of a kit, each with its case."""
    for name in json.loads((kit / "kit.json").read_text("utf-8"))["cases"]:
        case = json.loads((kit / "cases" / f"{name}.json").read_text("utf-8"))
        for action in case["actions"]:
            yield case, action


def test_every_object_of_the_format_has_its_refusals(kit: Path) -> None:
    """Test that the tables of the page name no field of which the kit has no refusal."""
    page = (ROOT / "docs/bundle_format.md").read_text("utf-8").partition("## Digests")[0]
    tables = re.findall(r"\| field[^|]* \| value \|\n\|---\|---\|\n((?:\|.*\n)+)", page)
    fields = {
        name for table in tables for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    refused = {Path(action["files"]["bundle.json"]).name.split(".")[0] for _, action in actions(kit)
               if "error" in action and action.get("files", {}).get("bundle.json")}  # fmt: skip
    for damage in ("missing", "type"):
        assert fields <= {name.removesuffix(f"_{damage}").partition("_")[2] for name in refused}
    assert {f"{kind}_unknown" for kind in OBJECTS} <= refused


def test_every_code_has_a_case(kit: Path) -> None:
    table = (ROOT / "docs/bundle_format.md").read_text("utf-8").partition("| code | when |")[2].partition("\n\n")[0]
    codes = set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))
    assert {action["error"]["code"] for _, action in actions(kit) if "error" in action} == codes - ELSEWHERE


def test_python_passes(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(kit), "--within", "1e-4"])
    assert ended.value.code == 0, capsys.readouterr().out


def test_other_numbers_and_missing_refusals_are_found(kit: Path, tmp_path: Path) -> None:
    for part in ("bundles", "states", "files"):
        (tmp_path / part).symlink_to(kit / part)
    (tmp_path / "cases").mkdir()
    case = json.loads((kit / "cases/stream_reformer_band.json").read_text("utf-8"))
    case["actions"][5]["expect"]["log_probs"][0] += 0.01
    case["actions"][2]["expect"]["index"] = [7]
    case["actions"][1]["error"] = {"code": "option"}
    (tmp_path / "cases/changed.json").write_text(json.dumps(case), "utf-8")
    problems = run_case(tmp_path, "changed", 1e-4).problems
    assert [problem.partition(": ")[2].split()[0] for problem in problems] == ["nothing", "index", "log_probs"]


@pytest.mark.parametrize("raised", [ImportError("no tokenizers"), AssertionError("it")])
def test_a_case_that_cannot_open_is_one_failed_case(
    raised: Exception, kit: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(folder: Path, **options: Any) -> None:
        raise raised

    monkeypatch.setattr("tests.conformance.player.load", refuse)
    with pytest.raises(SystemExit) as ended:
        main([str(kit), "--only", "text_byte_pairs", "--ops", "none"])
    assert ended.value.code == 1
    first, problem, runtime, kernels, last = capsys.readouterr().out.splitlines()
    assert first == "failed  text_byte_pairs  0.0e+00"
    assert problem == f"    text_byte_pairs, action 0 (open): {type(raised).__name__}: {raised}"
    assert runtime.startswith("runtime: Python 3.")
    assert kernels == "kernels: none"
    assert last == "0 of 1 cases passed; largest difference 0.0e+00, with low precision 0.0e+00"


def test_bounds_of_low_precision_show_a_shorter_window(kit: Path, tmp_path: Path) -> None:
    """Test that a case allows what it says, and not what another memory gives."""
    for part in ("bundles", "states", "files"):
        (tmp_path / part).symlink_to(kit / part)
    (tmp_path / "cases").mkdir()
    for name, bounds in WITHIN.items():
        case = json.loads((kit / f"cases/scores_{name}.json").read_text("utf-8"))
        assert case["within"] == bounds
        opened, action = case["actions"][0], case["actions"][3]
        action["expect"] = {"log_probs": action["expect"]["log_probs"]}
        nearly = copy.deepcopy(action)
        nearly["expect"]["log_probs"][0] += 0.9 * bounds["nats"]
        mem_len = read_bundle(kit / "bundles" / name).settings.values["mem_len"]
        shorter = {**action, "settings": {"mem_len": mem_len - 1}}
        (tmp_path / "cases/changed.json").write_text(
            json.dumps({**case, "actions": [opened, nearly, action, shorter]}), "utf-8"
        )
        found = run_case(tmp_path, "changed", 1e-4)
        assert [problem.partition(":")[0] for problem in found.problems] == ["changed, action 3 (score)"], name
        assert found.low_precision


def test_small_bundles_run_with_kernels(kit: Path, kernel_library: Path) -> None:
    for name, operators in (
        ("small_transformer_xl", {"RelativeAttention"}),
        ("small_int8_memories", {"RelativeAttentionInt8"}),
        ("small_reformer", {"LocalAttention", "LSHAttention"}),
    ):
        model = load(kit / "bundles" / name, ops=kernel_library)
        used = model.kernels_used(model.main_graph("score"))
        assert operators <= set(re.findall(r"\w+", used)), used


def test_comparison_allows_equally_likely_tokens_to_change_places() -> None:
    wanted = {"top_ids": [[1, 2, 3]], "top_log_probs": [[-1.0, -1.00001, -2.0]]}
    for ids, problems in (([1, 2, 3], 0), ([2, 1, 3], 0), ([3, 1, 2], 1), ([1, 2, 9], 0), ([9, 2, 3], 1)):
        compared = Comparison(1e-4)
        compared.add(wanted, {**wanted, "top_ids": [ids]}, "it")
        assert len(compared.problems) == problems, ids


@pytest.mark.parametrize("numbers", [[float("nan"), -2.0], [-1.0, float("nan")]])
def test_comparison_notices_what_is_not_a_number(numbers: list[float]) -> None:
    compared = Comparison(1e-4)
    compared.add({"log_probs": [-1.0, -2.0]}, {"log_probs": numbers}, "it")
    assert compared.problems
