"""`xlexport inspect` of bundles, and where their nodes run; tests/formats has checkpoints."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import xlruntime
from tests.helpers.invoking import Invoke
from tests.helpers.manifests import edit_manifest
from xlexport.bench.operator_profile import OperatorTime
from xlexport.bench.report import profile_lines
from xlexport.commands.inspect import placement_rows
from xlruntime.bundle_files import read_bundle


def test_inspect_shows_what_is_in_a_bundle(bundle: Path, invoke: Invoke) -> None:
    rows = invoke("inspect", bundle).succeeded().table
    assert rows["architecture"] == "transformer_xl"
    assert rows["segment, memory, clamp"] == "8, 20, -1"
    assert rows["tokenizer"] == "bytes, vocabulary 256"
    # 2 layers of keys and values for 28 slots of 2 heads of 8 numbers of 4 bytes
    assert rows["memory of a stream"] == "7.2 kB in 4 tensors"
    assert rows["graphs"] == "score, generate, detail, positions (onnx)"
    assert not {"graph score", "weights.data", "fingerprint"} & rows.keys()
    rows = invoke("inspect", bundle, "--verbose").succeeded().table
    assert rows["graph score"] == "log_prob (batch, segment) float32"
    assert rows["weights.data"].startswith(f"{(bundle / 'weights.data').stat().st_size:,} bytes, SHA-256 ")
    manifest = read_bundle(bundle)
    assert (rows["digest"], rows["fingerprint"]) == (manifest.digest, manifest.fingerprint)


def test_inspect_shows_size_and_verification(bundle: Path, invoke: Invoke, tmp_path: Path) -> None:
    """Check the parameters, and the figures of parity.json with the settings that they are for."""
    manifest, figures = read_bundle(bundle), json.loads((bundle / "parity.json").read_text("utf-8"))
    folder = tmp_path / "bundle"
    shutil.copytree(bundle, folder)

    weights = manifest.files["weights.data"].size
    shown = invoke("inspect", folder).succeeded().table
    assert shown["parameters"] == f"{manifest.provenance['parameters']:,}"
    assert shown["size"].endswith(f"MB in {len(manifest.files)} files, {weights / 1e6:,.1f} MB of it weights")
    assert shown["graphs checked"].startswith("detail.onnx, generate.onnx, positions.onnx, score.onnx: ")
    on = f"on {figures['tokens']:,} tokens"
    assert re.search(rf"^its author says +verified, {on}", invoke("inspect", folder).out, re.M)
    difference = f"bundle minus model: {figures['max_abs_log_prob_diff']:.2e} nats at most, "
    assert shown["its author says"].startswith(difference)
    assert not {"note", "licence", "training data", "held-out text"} & shown.keys()
    edit_manifest(folder, lambda fields: fields["provenance"].pop("parameters"))
    edit_manifest(folder, lambda fields: fields["provenance"].update(licence="CC0", held_out_bits_per_token=2))
    shown = invoke("inspect", folder).table
    assert shown["parameters"] == "not recorded"
    assert (shown["licence"], shown["held-out text"]) == ("CC0", "2.0000 bits per token, by its training")
    edit_manifest(folder, lambda fields: fields["settings"]["mem_len"].update(value=30))
    assert f" verified, with other settings, {on}" in invoke("inspect", folder).out
    (folder / "parity.json").write_text('{"passed": true}', "utf-8")
    assert "parity.json are not what xlexport writes" in invoke("inspect", folder).err
    (folder / "parity.json").unlink()
    assert invoke("inspect", folder).table["its author says"] == "nothing of a verification: parity.json is not there"


@pytest.mark.release
def test_convert_and_inspect_name_the_text_of_the_verification(
    reuse_export: None, checkpoint: Path, prose: Path, invoke: Invoke, tmp_path: Path
) -> None:
    few = ("--segments", "3", "--threads", "1")
    shown = invoke("convert", checkpoint, "-o", tmp_path / "default", *few).succeeded()
    said = re.search(
        r"^verified on +(the topics of Python .*'s language reference); give --text for yours$", shown.out, re.M
    )
    assert said is not None
    shown = invoke("convert", checkpoint, "-o", tmp_path / "own", "--text", prose, *few).succeeded()
    assert re.search(rf"^verified on +{re.escape(str(prose))}$", shown.out, re.M)
    for name, text in (("default", said[1]), ("own", str(prose))):
        rows = invoke("inspect", tmp_path / name).succeeded().out
        assert re.search(rf"^its author says +verified, on [\d,]+ tokens of {re.escape(text)}$", rows, re.M)


# Where nodes run.


CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def test_inspect_shows_where_the_nodes_of_each_graph_run(bundle: Path, invoke: Callable[..., Any]) -> None:
    shown = invoke("inspect", bundle, "--device", "cpu").succeeded().out.splitlines()
    plain = invoke("inspect", bundle).succeeded().out.splitlines()
    rows = [line.split() for line in shown if line.startswith("nodes of ")]
    kernels = [line.split() for line in shown if line.startswith("kernels of ")]
    assert [row[2] for row in kernels] == [row[2] for row in rows]
    assert [(row[2], row[4:]) for row in rows] == [
        (purpose, ["on", CPU]) for purpose in ("score", "generate", "detail", "positions")
    ]
    assert {" ".join(line.split()) for line in shown} - {" ".join(line.split()) for line in plain} == {
        " ".join(row) for row in (["device", "cpu"], *rows, *kernels)
    }
    found = invoke("inspect", bundle, "--device", "cpu", "--json").succeeded().object["placement"]
    assert [f"{sum(found[row[2]][CPU].values()):,}" for row in rows] == [row[3] for row in rows]
    assert "placement" not in invoke("inspect", bundle, "--json").succeeded().object


def test_operators_are_listed_where_nodes_run_in_two_places() -> None:
    placement = {"score": {CUDA: {"MatMul": 1200, "Add": 3}, CPU: {"Shape": 2}}}
    assert placement_rows(placement, {"score": "none"}) == [
        ("nodes of score", f"1,203 on {CUDA}: MatMul 1200, Add 3"),
        ("nodes of score", f"2 on {CPU}: Shape 2"),
        ("kernels of score", "none"),
    ]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("command", ["verify", "score", "evaluate", "generate", "bench"])
def test_strict_device_reaches_the_runtime(
    command: str,
    strict: bool,
    bundle: Path,
    checkpoint: Path,
    prose: Path,
    invoke: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def load(folder: Path, **options: Any) -> None:
        asked.append(options)
        raise xlruntime.ProviderError("device cuda:1: asked for.")

    monkeypatch.setattr(xlruntime, "load", load)
    monkeypatch.setattr("xlexport.bench.load", load)
    others: dict[str, list[Path | str]] = {"verify": [checkpoint], "bench": [], "generate": ["text"]}
    second = others.get(command, [prose])
    line = [command, bundle, *second, "--device", "cuda:1", "--threads", "2", "--set=ops=none"]
    line += [*(["--set=strict_device=true"] if strict else [])]
    assert invoke(*line).error == "Error: device cuda:1: asked for."
    place: dict[str, Any] = {"device": "cuda:1", "provider": None, "provider_options": None}
    if command != "bench":
        place |= {"check": "off" if command == "verify" else "once", "step_timeout": None}
    assert asked == [{**place, "ops": "none", "strict_device": strict, "cuda_graphs": False, "threads": 2}]


def test_profile_names_providers_where_not_all_of_it_runs_on_the_cpu() -> None:
    between = OperatorTime("(between operators)", "", 0.5, 25, 0)
    on_cpu, on_cuda = (OperatorTime("MatMul", provider, 1.5, 75, 3) for provider in (CPU, CUDA))
    assert profile_lines([on_cpu, between])[1].split() == ["MatMul", "1.500", "75.0%", "3"]
    header, line, _ = profile_lines([on_cuda, between])
    assert header.split()[-1] == "provider"
    assert line.split() == ["MatMul", "1.500", "75.0%", "3", CUDA]


def test_inspect_runs_no_checkpoint(checkpoint: Path, invoke: Callable[..., Any]) -> None:
    shown = invoke("inspect", checkpoint, "--device", "cpu")
    assert (shown.code, shown.out) == (2, "")
    assert "--device is for bundles, but PATH is none. Leave it out." in shown.err


def test_operators_of_a_bundle(bundle: Path, invoke: Callable[..., Any]) -> None:
    (standard, *others) = invoke("inspect", bundle, "--operators").out.splitlines()
    assert standard.startswith("ai.onnx;20;") and {"MatMul", "Softmax"} <= {*standard.split(";")[2].split(",")}
    assert all(line.startswith("com.microsoft;1;") for line in others)


def test_provider_and_its_options_reach_the_runtime(bundle: Path, invoke: Callable[..., Any]) -> None:
    absent = invoke("inspect", bundle, "--set=provider=NoneExecutionProvider", "--set=provider_options=depth=2,a=b,c")
    assert "device NoneExecutionProvider(depth=2,a=b,c): onnxruntime " in absent.error and "(it has " in absent.error
    twice = invoke("inspect", bundle, "--device", "cuda", "--set", "provider=NoneExecutionProvider")
    assert "--device and --set provider exclude each other" in twice.err
    assert "Add --device" in invoke("inspect", bundle, "--set", "provider_options=depth=2").err
    assert "'depth' has no value" in invoke("inspect", bundle, "--set", "provider_options=depth").err
    for flag, name in (("--provider", "provider"), ("--provider-option", "provider_options")):
        assert f"It is a setting: --set {name}=VALUE." in invoke("inspect", bundle, flag, "x").err


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("bundle", "--config n_token=3 --trust", "--config and --trust are for checkpoints, but PATH is a bundle."),
        ("bundle", "--set checkpoint_format=trax", "--set checkpoint_format is for checkpoints, but PATH is a bundle."),
        ("bundle", "--weights x.safetensors", "--weights is for checkpoints, but PATH is a bundle. Leave it out."),
        ("bundle", "--operators --json --set ops=none", "--json and --set ops are not for --operators, which prints"),
        ("bundle", "--json --verbose", "--verbose is for the table; --json always shows everything. Leave it out."),
        ("bundle", "--operators --set provider=Foo", "--set provider is not for --operators, which prints"),
        ("checkpoint", "--operators --verbose", "--operators and --verbose are for bundles, but PATH is none."),
        ("checkpoint", "--set ops=none", "--set ops is for bundles that run. Add --device."),
    ],
)
def test_options_without_effect_are_refused(
    kind: str, options: str, message: str, invoke: Callable[..., Any], request: pytest.FixtureRequest
) -> None:
    shown = invoke("inspect", request.getfixturevalue(kind), *options.split())
    assert (shown.code, shown.out) == (2, "") and message in " ".join(shown.err.split())


def test_inspect_describes_prepared_data(prose: Path, tmp_path: Path, invoke: Invoke) -> None:
    data = tmp_path / "data"
    invoke("prepare", prose, "-o", data, "--unit", "bytes").succeeded()
    size = prose.stat().st_size
    assert invoke("inspect", data, "--json").succeeded().object["train"]["tokens"] == size
    rows = invoke("inspect", data).succeeded().table
    assert rows == {
        **{"unit": "byte", "vocabulary": "256", "tokenizer": "bytes"},
        "train": f"{size:,} tokens in 1 document, {size:,} bytes",
    }
