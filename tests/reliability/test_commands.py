"""Commands refuse folders of strangers in one line, whatever their digests say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest

from tests.helpers.invoking import Invoke, invoke
from tests.helpers.made_graphs import external
from tests.helpers.manifests import edit_manifest, seal
from tests.helpers.paths import EMPTY, golden_bundle
from xlruntime.bundle_files import digest_file

__all__ = ["invoke"]

HOSTILE = "\x1b[2J\r\n\x9b\u2028\u202e\u2066" * 9000


@pytest.mark.parametrize("command", ["inspect", "inspect --json", "configure --mem-len 3 -o OUT", "web -o OUT"])
def test_graph_of_a_stranger_is_refused(command: str, invoke: Invoke, tmp_path: Path) -> None:
    stranger = shutil.copytree(golden_bundle(EMPTY), tmp_path / "bundle")
    graph = onnx.load(stranger / "detail.onnx", load_external_data=False)
    graph.graph.node.append(onnx.helper.make_node("EPContext", [], ["x"], domain="com.microsoft"))
    graph.graph.initializer.append(external("y", "../../../../etc/passwd", 9))
    (stranger / "detail.onnx").write_bytes(graph.SerializeToString())
    digest = vars(digest_file(stranger / "detail.onnx"))
    edit_manifest(stranger, lambda manifest: manifest["files"].update({"detail.onnx": digest}))
    name, *options = command.replace("OUT", str(tmp_path / "out")).split()
    error = invoke(name, stranger, *options).error
    assert "detail.onnx: it holds operators that xlexport does not write (com.microsoft.EPContext)" in error
    assert "its weights lie in ../../../../etc/passwd" in error and not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", [HOSTILE, 10**4000, {HOSTILE: HOSTILE}, [HOSTILE[:999]] * 600, [1, [None]]], ids=type)
@pytest.mark.full
def test_inspect_prints_bounded_lines_or_one_error(value: object, invoke: Invoke, tmp_path: Path) -> None:
    stranger = shutil.copytree(golden_bundle(EMPTY), tmp_path / "bundle")
    before = (stranger / "bundle.json").read_text()
    provenance = ("provenance.notes", "provenance.sources", "provenance.versions")
    for part in (*provenance, "model.config", "graphs.score.inputs.tokens.ring"):
        manifest = place = json.loads(before)
        *outer, last = part.split(".")
        for name in outer:
            place = place[name]
        place[last] = value
        seal(stranger, json.dumps(manifest).encode())
        for options in ([], ["--json"], ["--verbose"]):
            shown = invoke("inspect", stranger, *options)
            assert all(line.isprintable() and len(line) < 2000 for line in shown.err.split("\n"))
            assert shown.out.replace("\n", "").isprintable() and shown.code == int(not shown.out)
            assert options == ["--json"] or len(shown.out) < 30_000
