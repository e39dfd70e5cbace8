"""The conformance kit covers the format, passes in Python, and notices differences."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from conformance.compare import Comparison
from conformance.refusals import PLACES
from conformance.run import main, run_case
from conformance.small_bundles import WITHIN
from tests.helpers.paths import ROOT
from xlruntime import errors, load
from xlruntime.bundle import read_bundle
from xlruntime.evaluation import EvaluationRules, FirstMemory, Ring, Setting
from xlruntime.spec import Bundle, FileDigest, Graph, Layout, Memory, Tensor, Tokenizer

pytestmark = pytest.mark.native

FOR_PEOPLE = {"architecture", "config", "precision", "provenance"}  # a runtime does nothing with them
# Errors of other things than bundles, states and their use.
ELSEWHERE = {
    "ProviderError",
    "ArgumentError",
    "StepTimeoutError",
    "VocabularyError",
    "XlruntimeError",
    "RepairableError",
}


def actions(kit: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield all actions of a kit, each with its case."""
    for name in json.loads((kit / "kit.json").read_text("utf-8"))["cases"]:
        case = json.loads((kit / "cases" / f"{name}.json").read_text("utf-8"))
        for action in case["actions"]:
            yield case, action


def values(kit: Path) -> dict[tuple[type, str], set[str]]:
    """Return the values that each field of a manifest has in bundles that open."""
    found: dict[tuple[type, str], set[str]] = {}

    def add(value: Any) -> None:
        if dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                inner = getattr(value, field.name)
                found.setdefault((type(value), field.name), set()).add(repr(inner))
                add(inner)
        elif isinstance(value, dict | tuple):
            for inner in value.values() if isinstance(value, dict) else value:
                add(inner)

    for folder in (kit / "bundles").iterdir():
        add(read_bundle(folder))
    return found


def test_every_field_has_two_values_or_a_refusal(kit: Path) -> None:
    """Test that each field with a default occurs with another value.

    Other formats are refused instead, and bundles with an encoder are for Python alone.
    """
    found = values(kit)
    assert {kind for kind, _ in found} == set(PLACES)
    same = {
        f"{kind.__name__}.{field.name}"
        for kind in PLACES
        for field in dataclasses.fields(kind)
        if field.default is not dataclasses.MISSING and found[kind, field.name] == {repr(field.default)}
    }
    assert same == {"Graph.format", "Bundle.format_version", "Bundle.encoder"}
    assert {"damaged/torchscript.json", "damaged/newer.json", "damaged/older.json"} <= set(replaced(kit))


def replaced(kit: Path) -> list[str]:
    return [path for _, action in actions(kit) for path in action.get("files", {}).values() if path]


def test_every_choice_occurs(kit: Path) -> None:
    found = values(kit)
    for kind, name, choice in (
        (Memory, "layout", Layout),
        (EvaluationRules, "first_memory", FirstMemory),
        (Tokenizer, "kind", Tokenizer.__dataclass_fields__["kind"].type),
        (Setting, "type", Setting.__dataclass_fields__["type"].type),
    ):
        wanted = set(re.findall(r'"([\w-]+)"', choice)) if isinstance(choice, str) else set(get_args(choice))
        assert {repr(value) for value in wanted} <= found[kind, name]


@pytest.mark.parametrize("kind", [Bundle, EvaluationRules, Setting, Ring, Tokenizer, Memory, Graph, Tensor, FileDigest])
def test_every_field_is_refused_with_another_type(kind: type, kit: Path) -> None:
    refused = {action["files"]["bundle.json"] for _, action in actions(kit) if "error" in action and "files" in action
               and "bundle.json" in action["files"]}  # fmt: skip
    for field in dataclasses.fields(kind):
        assert f"damaged/{kind.__name__}_{field.name}_type.json" in refused


def test_every_purpose_is_scored_or_run(kit: Path) -> None:
    graphs = {graph for _, action in actions(kit) for graph in action.get("expect", {}).get("graphs", ())}
    assert graphs == {"score", "score_few", "generate", "detail", "positions"}


def test_every_rule_of_refusals_and_every_error_has_a_case(kit: Path) -> None:
    page = (ROOT / "docs/bundle_format.md").read_text("utf-8")
    section = page.partition("## What a runtime refuses")[2].partition("\n## ")[0]
    rules = {int(number) for number in re.findall(r"^(\d+)\. ", section, re.MULTILINE)}
    assert rules <= {case.get("rule") for case, _ in actions(kit)}
    classes = {action["error"]["class"] for _, action in actions(kit) if "error" in action}
    assert classes == set(errors.__all__) - ELSEWHERE


def test_every_action_is_described(kit: Path) -> None:
    page = (ROOT / "conformance/README.md").read_text("utf-8")
    used = {action["do"] for _, action in actions(kit)}
    assert used == set(
        re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]+) \|", page.partition("| `do` |")[2], re.M)))
    )


def test_python_passes(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(kit), "--within", "1e-4"])
    assert ended.value.code == 0, capsys.readouterr().out


def test_other_numbers_and_missing_refusals_are_found(kit: Path, tmp_path: Path) -> None:
    for part in ("bundles", "states", "damaged"):
        (tmp_path / part).symlink_to(kit / part)
    (tmp_path / "cases").mkdir()
    case = json.loads((kit / "cases/stream_reformer_band.json").read_text("utf-8"))
    case["actions"][5]["expect"]["log_probs"][0] += 0.01
    case["actions"][2]["expect"]["index"] = [7]
    case["actions"][1]["error"] = {"class": "OptionError", "says": "it"}
    (tmp_path / "cases/changed.json").write_text(json.dumps(case), "utf-8")
    problems = run_case(tmp_path, "changed", 1e-4).problems
    assert [problem.partition(": ")[2].split()[0] for problem in problems] == ["nothing", "index", "log_probs"]


@pytest.mark.parametrize("raised", [ImportError("no tokenizers"), AssertionError("it")])
def test_a_case_that_cannot_open_is_one_failed_case(
    raised: Exception, kit: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(folder: Path, **options: Any) -> None:
        raise raised

    monkeypatch.setattr("conformance.player.load", refuse)
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
    for part in ("bundles", "states", "damaged"):
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
        used = model.kernels_used("score")
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
