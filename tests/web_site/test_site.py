"""Sites: what is in them, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.manifests import edit_manifest
from tests.helpers.paths import BAND, CHUNK, EMPTY, golden_bundle
from tests.report.report_pages import check_safety
from xlexport.errors import MissingDependencyError, OutputExistsError, OutputFolderError
from xlexport.page.assemble import ceilings
from xlexport.web import javascript as javascript_module
from xlexport.web import site as site_module
from xlexport.web.javascript import find_packages
from xlexport.web.site import POLICY, SITE_FILE, write_site
from xlruntime.bundle_files import read_bundle
from xlruntime.errors import BundleError

BUNDLE = golden_bundle(EMPTY)


def about_of(site: Path) -> dict[str, Any]:
    (found,) = re.findall(
        r'<script type="application/json" id="about">(.*?)</script>', (site / "index.html").read_text("utf-8")
    )
    return json.loads(found)


def test_site_has_bundle_runtime_worker_and_page(npm: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    sizes = write_site(BUNDLE, site, runtime=npm)
    assert sorted(sizes) == ["bundle", "index.html", "onnxruntime", SITE_FILE, "worker", "xlruntime"]
    assert sum(sizes.values()) == sum(file.stat().st_size for file in site.rglob("*") if file.is_file())
    assert read_bundle(site / "bundle") == read_bundle(BUNDLE)
    names = {file.relative_to(site).as_posix() for file in site.rglob("*") if file.is_file()}
    for name in ("xlruntime/tokenizers/plain.js", "onnxruntime/ort.wasm.min.mjs", "worker/worker.js"):
        assert name in names
    assert not [name for name in names if name.endswith((".ts", ".map", ".py"))]
    assert json.loads((site / SITE_FILE).read_text("utf-8"))["packages"] == {
        "xlruntime": "0.2.0",
        "onnxruntime-web": "1.24.1",
    }
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_page_knows_the_bundle_and_loads_only_its_own_files(npm: Path, tmp_path: Path) -> None:
    write_site(BUNDLE, tmp_path / "site", runtime=npm, title="</script><b>&")
    about = about_of(tmp_path / "site")
    assert about["title"] == "</script><b>&"
    assert (about["offsets"], about["hasBytes"], about["unit"], about["top"]) == ("bytes", True, "byte", 5)
    assert about["ceiling"] == ceilings(256)
    sentence = "Transformer-XL, 2 layers of 16, vocabulary of 256, float32; segments of 8, memory 12."
    assert (about["sides"], about["notes"]) == ([["", sentence]], [])
    check_safety((tmp_path / "site/index.html").read_text("utf-8"), "</script><b>&", ("<b>&",), POLICY)


@pytest.mark.parametrize(("name", "graphs"), [(BAND, "generate"), (CHUNK, "detail")])
def test_bundle_without_tokenizer_takes_ids(name: str, graphs: str, npm: Path, tmp_path: Path) -> None:
    write_site(golden_bundle(name), tmp_path / "site", runtime=npm)
    about = about_of(tmp_path / "site")
    assert (about["offsets"], about["hasBytes"], about["unit"]) == ("ids", False, "token")
    assert graphs in about["graphs"]


def test_existing_output(npm: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/letter.txt").touch()
    for force in (False, True):
        with pytest.raises(OutputExistsError, match="kept: exists and is not a site, so it is never replaced"):
            write_site(BUNDLE, tmp_path / "kept", runtime=npm, force=force)
    write_site(BUNDLE, tmp_path / "site", runtime=npm)
    (tmp_path / "site/old").touch()
    with pytest.raises(OutputExistsError, match="site: a site is there already"):
        write_site(BUNDLE, tmp_path / "site", runtime=npm)
    write_site(BUNDLE, tmp_path / "site", runtime=npm, force=True)
    assert not (tmp_path / "site/old").exists()
    with pytest.raises(OutputFolderError):
        write_site(BUNDLE, tmp_path / "absent/site", runtime=npm)


def test_broken_bundles_leave_nothing(npm: Path, tmp_path: Path) -> None:
    for name, break_it, message in (
        ("flipped", lambda file: file.write_bytes(file.read_bytes()[:-1] + b"\x07"), "score.onnx was changed"),
        ("missing", lambda file: file.unlink(), "score.onnx is missing"),
    ):
        bundle = tmp_path / name
        shutil.copytree(BUNDLE, bundle)
        break_it(bundle / "score.onnx")
        with pytest.raises(BundleError, match=message):
            write_site(bundle, tmp_path / "site", runtime=npm)
    newer = tmp_path / "newer"
    shutil.copytree(BUNDLE, newer)
    edit_manifest(newer, lambda manifest: manifest.update(format=99))
    with pytest.raises(BundleError, match="99"):
        write_site(newer, tmp_path / "site", runtime=npm)
    assert not [file for file in tmp_path.iterdir() if "site" in file.name]


def test_bundles_that_no_browser_runs(npm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = read_bundle(BUNDLE)
    graphs = {name: dataclasses.replace(graph, format="torchscript") for name, graph in bundle.graphs.items()}
    tokenizer = dataclasses.replace(bundle.tokenizer, kind="sentencepiece", file="spiece.model")
    for other, message in (
        (dataclasses.replace(bundle, graphs=graphs), "its graphs are torchscript, which browsers cannot run"),
        (dataclasses.replace(bundle, tokenizer=tokenizer), "has a SentencePiece tokenizer"),
    ):
        monkeypatch.setattr(site_module, "read_bundle", lambda folder, other=other: other)
        with pytest.raises(BundleError, match=message):
            write_site(BUNDLE, tmp_path / "site", runtime=npm)
    assert not (tmp_path / "site").exists()


def test_bundle_that_is_replaced_meanwhile(npm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        site_module, "read_bundle", lambda folder: read_bundle(BUNDLE if folder == BUNDLE else golden_bundle(BAND))
    )
    with pytest.raises(BundleError, match="was replaced while it was copied"):
        write_site(BUNDLE, tmp_path / "site", runtime=npm)
    assert not (tmp_path / "site").exists()


def test_packages_are_found_in_several_ways(npm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("xlruntime", "onnxruntime-web", "@huggingface/tokenizers")
    found = find_packages(names, npm)
    assert [package.name for package in found] == [*names]
    assert found == find_packages(names, npm / "node_modules")
    monkeypatch.setattr(javascript_module, "CHECKOUT", npm)
    assert find_packages(names) == found
    monkeypatch.setattr(javascript_module, "CHECKOUT", npm / "none")
    with pytest.raises(MissingDependencyError, match=r"the JavaScript of the page is not installed\. Install it, in a"):
        find_packages(names)
    (npm / "xlexport_web").mkdir()
    (npm / "node_modules").rename(npm / "xlexport_web/node_modules")
    (npm / "xlexport_web/__init__.py").touch()
    monkeypatch.syspath_prepend(npm)
    assert [(package.name, package.files[0].is_file()) for package in find_packages(names)] == [
        (name, True) for name in names
    ]
    (npm / "xlexport_web/node_modules").rename(npm / "node_modules")
    (npm / "node_modules/xlruntime/node_modules").mkdir()
    for name in ("onnxruntime-web", "@huggingface"):
        (npm / "node_modules/xlruntime/node_modules" / name).symlink_to(npm / "node_modules" / name)
    assert [package.name for package in find_packages(names, npm / "node_modules/xlruntime")] == [*names]


def test_packages_that_are_missing_or_too_old(npm: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    names = ("xlruntime", "onnxruntime-web")
    with pytest.raises(MissingDependencyError, match="xlruntime is missing; onnxruntime-web is missing") as caught:
        find_packages(names, empty)
    assert str(caught.value.hint).endswith("pip install ./runtime/js, and leave out --runtime.")
    ort = npm / "node_modules/onnxruntime-web"
    (ort / "package.json").write_text('{"name": "onnxruntime-web", "version": "1.9.0"}')
    (npm / "node_modules/xlruntime/dist/browser.js").unlink()
    with pytest.raises(MissingDependencyError) as caught:
        find_packages(names, npm)
    assert "dist has no browser.js" in str(caught.value)
    assert "onnxruntime-web has version 1.9.0, at least 1.24.1 is needed" in str(caught.value)
    (ort / "package.json").write_text("{")
    with pytest.raises(MissingDependencyError, match=r"package\.json"):
        find_packages(names, npm)
