"""`quantize` and `convert --dtype`: their output, commands on the result, and refusals in one line."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from tests.helpers.invoking import Finished, Invoke
from xlruntime.bundle_files import read_bundle

PRODUCTS = ["layers.0.qkv", "layers.0.output", "layers.0.inner", "layers.0.outer"]
PRODUCTS += [*(name.replace("0", "1") for name in PRODUCTS), "head.clusters.0"]
# A model of random weights, drawn large, loses more than a trained one.
UNLISTED = ("bundle.json", "bundle.json.sha256", "README.md", "parity.json", "quantization.json")
FEW = ("--set=tokens=2048", "--set=max_delta_bits=0.5", "--threads", "1")


@pytest.fixture(scope="module")
def int8(bundle: Path, call: Invoke, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """Return a bundle that the command made; tests must not change it."""
    folder = tmp_path_factory.mktemp("int8") / "tiny.int8"
    return folder, call("quantize", bundle, "-o", folder, *FEW).succeeded()


@pytest.mark.full
def test_report_for_people(int8: tuple[Path, Finished]) -> None:
    folder, done = int8
    rows = done.table
    assert rows["quantized"] == "9 of 9 weight matrices to int8"
    assert rows["measured on"].startswith("2,048 tokens of the topics of Python ")
    assert rows["measured on"].endswith("; give --text for yours")
    assert rows["bits per token"].endswith("(≤ 0.5)")
    assert re.match(r" *[\d,]+ tokens/s, float32 [\d,]+ \((\d+\.\d\d times as fast|not compared: .*)\)$", rows["speed"])
    assert done.err.splitlines()[-1] == f"wrote {folder}"


@pytest.mark.full
def test_json_is_the_manifest(bundle: Path, invoke: Invoke, tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = ("--dtype", "weight-int8", "--set=keep_float=layers.1.*", "--json", *FEW)
    found = invoke("quantize", bundle, "-o", output, *arguments).succeeded().object
    assert found.pop("bundle") == str(output)
    speed = found.pop("speed")
    assert speed.keys() == {"before", "after", "disturbance"} and min(speed["before"], speed["after"]) > 0
    assert found == read_bundle(output).provenance["quantization"]
    assert list(found["kept"]) == PRODUCTS[4:8]


@pytest.mark.full
def test_inspect_shows_precision_and_what_was_kept(bundle: Path, invoke: Invoke, tmp_path: Path) -> None:
    output = tmp_path / "out"
    invoke("quantize", bundle, "-o", output, "--dtype", "int8", "--set=keep_float=head*", *FEW).succeeded()
    shown = " ".join(invoke("inspect", output).succeeded().out.split())
    assert "quantized 8 of 9 weight matrices to int8 float32: head.clusters.0 asked for" in shown
    assert "precision int8 its author says verified, in float32 before quantization, on " in shown


@pytest.mark.release
def test_commands_run_on_a_quantized_bundle(
    int8: tuple[Path, Finished], bundle: Path, checkpoint: Path, prose: Path, invoke: Invoke
) -> None:
    folder, _ = int8
    found, exact = (invoke("score", path, prose, "--json").succeeded().object for path in (folder, bundle))
    assert 0 < abs(found["bits_per_token"] - exact["bits_per_token"]) < 0.5
    assert len(invoke("generate", folder, "It was", "-n", "5", "--seed", "1", "--json").succeeded().object["ids"]) == 5
    verified = invoke("verify", folder, checkpoint, "--segments", "8", "--json")
    limit = verified.object["tolerance"]["delta_bits_per_token"]
    assert limit == pytest.approx(math.sqrt(1000 / 64))  # 1.0 for a longer text
    assert verified.object["tolerance"]["log_prob"] > 0.1
    assert invoke("bench", folder, "--set=rounds=1", "--set=repeats=1", "--json").succeeded().object["dtype"] == "int8"


@pytest.mark.full
def test_text_is_measured_on_and_named(bundle: Path, invoke: Invoke, tmp_path: Path) -> None:
    texts = [tmp_path / "one.txt", tmp_path / "two.txt"]
    for path in texts:
        path.write_bytes(b"It was the best of times, it was the worst of times.\n" * 30)
    arguments = [part for path in texts for part in ("--text", path)]
    found = invoke("quantize", bundle, "-o", tmp_path / "out", "--dtype", "int8", *arguments, "--json", *FEW)
    assert [text["name"] for text in found.succeeded().object["text"]] == ["one.txt", "two.txt"]


@pytest.mark.release
def test_convert_verifies_in_float32_and_then_quantizes(
    reuse_export: None, checkpoint: Path, invoke: Invoke, tmp_path: Path
) -> None:
    options = ("--dtype", "int8", "--set=max_delta_bits=0.5", "--segments", "3", "--threads", "1", "--json")
    found = invoke("convert", checkpoint, "-o", tmp_path / "out", *options).succeeded().object
    assert found["max_abs_log_prob_diff"] <= 1e-4  # of the float32 graphs
    bundle = read_bundle(tmp_path / "out")
    assert found["quantization"] == bundle.provenance["quantization"]
    assert bundle.precision == "int8"
    assert json.loads((tmp_path / "out" / "parity.json").read_text())["passed"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([*bundle.files, *UNLISTED])
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.release
def test_nothing_is_left_where_the_cost_is_too_high(
    reuse_export: None, bundle: Path, checkpoint: Path, invoke: Invoke, tmp_path: Path
) -> None:
    options = ("--dtype", "weight-int4", "--set=max_delta_bits=1e-9", "--threads", "1")
    converted = invoke("convert", checkpoint, "-o", tmp_path / "out", *options, "--segments", "3")
    quantized = invoke("quantize", bundle, "-o", tmp_path / "out", *options, "--set=tokens=2048")
    for done in (converted, quantized):
        assert (done.code, done.out) == (1, "")
        line = done.err.splitlines()[-1]
        assert line.startswith("Error: quantized, the bundle gives ") and "still" in line
        assert any(name in line for name in PRODUCTS)
    assert not list(tmp_path.iterdir())


def test_convert_refuses_before_any_work(checkpoint: Path, invoke: Invoke, tmp_path: Path) -> None:
    for options, what in (
        (("--dtype", "int8", "--tokenizer", "none"), "takes token ids"),
        (("--dtype", "int8", "--set=memory_dtype=float16"), "which does not go with dtype int8"),
    ):
        assert what in invoke("convert", checkpoint, "-o", tmp_path / "out", *options).error
    assert not list(tmp_path.iterdir())
