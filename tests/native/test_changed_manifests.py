"""The three runtimes judge changed manifests alike, but for the rules that only Python names."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conformance.actions import MANIFEST, Case, Files, opening, refused
from tests.conformance.changed_manifests import TAKEN, changed_manifests, python_verdict, reader
from tests.conformance.graphs import bundle_of, graphs_of_other_outputs
from tests.conformance.refusals import BASE, PYTHON_ALONE, RICH
from tests.helpers.c_library import SANITIZED, build_c_runtime, find_onnxruntime
from tests.helpers.manifests import edit_manifest
from tests.helpers.paths import ROOT, golden_bundle
from tests.reliability.mutate import start
from tests.web_site.javascript import build, needs_node

RUNTIMES = [pytest.param("c"), pytest.param("js", marks=needs_node)]
ALONE = re.compile("|".join(f"(?:{said})" for _, said in PYTHON_ALONE.values()))


@pytest.mark.native
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_only_python_names_its_rules(runtime: str) -> None:
    with reader(runtime) as ask:
        for name, (change, said) in PYTHON_ALONE.items():
            manifest = json.loads((golden_bundle(BASE) / MANIFEST).read_text("utf-8"))
            change(manifest)
            text = json.dumps(manifest)
            assert re.search(said, python_verdict(text)), name
            assert ask(text) == TAKEN, name


@pytest.mark.native
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_steps_of_bundles_that_only_python_refuses_end_as_the_format_says(runtime: str, tmp_path: Path) -> None:
    if runtime == "js":
        build()
    with start(runtime) as process:  # C under sanitizers
        assert process.stdin is not None and process.stdout is not None
        for name, (change, _) in PYTHON_ALONE.items():
            folder = Path(shutil.copytree(golden_bundle(BASE), tmp_path / name))
            edit_manifest(folder, change)
            print(f"{folder}\t", file=process.stdin, flush=True)
            answer = process.stdout.readline()
            assert answer.split(" ")[0] in ("ok", "option", "bundle_graph"), (name, answer)
    assert process.returncode == 0


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("every", [pytest.param(20, marks=pytest.mark.native), pytest.param(1, marks=pytest.mark.long)])
def test_changed_manifests_are_judged_alike(every: int, runtime: str) -> None:
    different, taken = [], 0
    with reader(runtime) as ask:
        for kind, text in changed_manifests(every):
            own, other = python_verdict(text), ask(text)
            taken += own == TAKEN
            if (own == TAKEN) != (other == TAKEN) and not (other == TAKEN and _is_alone(own)):
                different.append(f"{kind}\n    Python: {own}\n    {runtime}: {other}")
    assert different == [], "\n".join(different[:20])
    assert taken * every > 1000


@pytest.mark.native
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_outputs_that_a_step_cannot_use_are_refused_when_it_runs(runtime: str, tmp_path: Path) -> None:
    shutil.copytree(golden_bundle(RICH), tmp_path / "bundles" / RICH)
    files, actions = Files(tmp_path), list[Case]()
    for number, (kind, graphs, outputs, action) in enumerate(graphs_of_other_outputs()):
        manifest = bundle_of(graphs, {"score": ["log_prob"], kind: []})
        manifest["graphs"][kind]["outputs"] = outputs
        assert ALONE.search(python_verdict(json.dumps(manifest)))
        contents = {f"{name}.onnx": files.add(f"{number}.{name}.onnx", raw) for name, raw in graphs.items()}
        opened = opening(RICH, {**contents, **files.manifest(str(number), manifest)})
        actions += [{**opened, "expect": {}}, refused(action, "bundle_graph")]
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases/outputs.json").write_text(json.dumps({"name": "outputs", "actions": actions}), "utf-8")
    (tmp_path / "kit.json").write_text(json.dumps({"cases": ["outputs"]}), "utf-8")
    command: list[str | Path] = ["node", "runtime/js/conformance/run.mjs", tmp_path]
    if runtime == "c":
        program = build_c_runtime("", ("xlconformance",)) / "xlconformance"
        command = [program, tmp_path, "--onnxruntime", find_onnxruntime()]
    else:
        build()
    environment = os.environ | SANITIZED["address,undefined"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _is_alone(said: str) -> bool:
    """Return whether all problems of a message break rules that only Python names."""
    return all(map(ALONE.search, said.split("; ")))
