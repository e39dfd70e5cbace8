"""`xlexport inspect` of bundles; `tests/checkpoints/test_inspect_checkpoints.py` has checkpoints."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from tests.helpers.invoking import Invoke
from tests.helpers.manifests import edit_manifest
from xlruntime.bundle_files import read_bundle


def test_inspect_shows_what_is_in_a_bundle(bundle: Path, invoke: Invoke) -> None:
    def table(*options: str) -> dict[str, str]:
        lines = invoke("inspect", bundle, *options).succeeded().out.splitlines()
        return dict(re.split(r"  +", line, maxsplit=1) for line in lines)

    rows = table()
    assert rows["architecture"] == "transformer_xl"
    assert rows["segment, memory, clamp"] == "8, 20, -1"
    assert rows["tokenizer"] == "bytes, vocabulary 256"
    # 2 layers of keys and values for 28 slots of 2 heads of 8 numbers of 4 bytes: 7 kB
    assert rows["memory of a stream"] == "0.0 MB in 4 tensors"
    assert rows["graphs"] == "score, generate, detail, positions (onnx)"
    assert not {"graph score", "weights.data", "fingerprint"} & rows.keys()
    rows = table("--verbose")
    assert rows["graph score"] == "log_prob (batch, segment) float32"
    assert rows["weights.data"].startswith(f"{(bundle / 'weights.data').stat().st_size:,} bytes, SHA-256 ")
    manifest = read_bundle(bundle)
    assert (rows["digest"], rows["fingerprint"]) == (manifest.digest, manifest.fingerprint)


def test_inspect_shows_size_and_verification(bundle: Path, invoke: Invoke, tmp_path: Path) -> None:
    """Check the parameters, and the figures of parity.json with the settings that they are for."""
    manifest, figures = read_bundle(bundle), json.loads((bundle / "parity.json").read_text("utf-8"))
    folder = tmp_path / "bundle"
    shutil.copytree(bundle, folder)

    def rows() -> dict[str, str]:
        lines = invoke("inspect", folder).succeeded().out.splitlines()
        return dict(re.split(r"  +", line, maxsplit=1) for line in lines)

    weights = manifest.files["weights.data"].size
    shown = rows()
    assert shown["parameters"] == f"{manifest.provenance['parameters']:,}"
    assert shown["size"].endswith(f"MB in {len(manifest.files)} files, {weights / 1e6:,.1f} MB of it weights")
    assert shown["verified"].startswith(f"yes, on {figures['tokens']:,} tokens")
    assert shown["bundle minus model"].startswith(f"{figures['max_abs_log_prob_diff']:.2e} nats at most, ")
    assert "note" not in shown
    edit_manifest(folder, lambda fields: fields["provenance"].pop("parameters"))
    assert rows()["parameters"] == "not recorded"
    edit_manifest(folder, lambda fields: fields["settings"]["mem_len"].update(value=30))
    assert rows()["verified"].startswith(f"yes, with other settings, on {figures['tokens']:,} tokens")
    (folder / "parity.json").write_text('{"passed": true}', "utf-8")
    assert "parity.json are not what xlexport writes" in invoke("inspect", folder).err
    (folder / "parity.json").unlink()
    assert rows()["verified"] == "unknown: parity.json is not there"


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
        assert re.search(rf"^verified +yes, on [\d,]+ tokens of {re.escape(text)}$", rows, re.M)
