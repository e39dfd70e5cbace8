"""`xlexport configure`: a copy of a bundle with other settings."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.invoking import Invoke
from tests.helpers.manifests import edit_manifest, seal
from tests.helpers.paths import GOLDEN
from xlexport.format4 import UNGROUPED
from xlruntime import load
from xlruntime.bundle_files import digest_file, read_bundle
from xlruntime.errors import BundleFormatError
from xlruntime.known_answers import ANSWERS_FILE

BAND = GOLDEN / "reformer_band"


def test_copy_scores_as_the_bundle_does_with_these_settings(
    bundle: Path, prose: Path, invoke: Invoke, tmp_path: Path
) -> None:
    chosen = ("--segment-len", "5", "--mem-len", "11", "--set=clamp_len=7", "--set=same_length=true")
    invoke("configure", bundle, "-o", tmp_path / "other", *chosen).succeeded()
    before, after = read_bundle(bundle), read_bundle(tmp_path / "other")
    values: dict[str, Any] = {"segment_len": 5, "restart": False, "mem_len": 11, "clamp_len": 7, "same_length": True}
    assert after.settings.to_dict() == values
    changed = {name for name, digest in after.files.items() if before.files[name] != digest}
    assert (after.fingerprint, changed) == (before.fingerprint, {ANSWERS_FILE})
    assert load(tmp_path / "other").check().passed
    assert after.digest != before.digest
    totals = [next(load(path).score([prose], **kept)) for path, kept in ((bundle, values), (tmp_path / "other", {}))]
    assert totals[0].nats == totals[1].nats


def test_readme_has_the_new_settings_and_parity_those_that_were_verified(
    bundle: Path, invoke: Invoke, tmp_path: Path
) -> None:
    invoke("configure", bundle, "-o", tmp_path / "other", "--mem-len", "30").succeeded()
    readme = (bundle / "README.md").read_text("utf-8")
    assert "mem_len 20" in readme
    assert (tmp_path / "other/README.md").read_text("utf-8") == readme.replace("mem_len 20", "mem_len 30")
    assert json.loads((tmp_path / "other/parity.json").read_text("utf-8"))["settings"]["mem_len"] == 20
    shown = invoke("inspect", tmp_path / "other").succeeded().out
    assert " verified, with other settings, on " in shown


def test_descriptions_may_be_missing(own_bundle: Path, invoke: Invoke, tmp_path: Path) -> None:
    for name in ("README.md", "parity.json"):
        (own_bundle / name).unlink()
    invoke("configure", own_bundle, "-o", own_bundle, "--force", "--mem-len", "30").succeeded()
    assert load(own_bundle).bundle.settings["mem_len"] == 30


def test_graphs_must_reproduce_the_answers_before_they_give_new_ones(
    own_bundle: Path, refuse: Callable[..., str], tmp_path: Path
) -> None:
    text = (own_bundle / ANSWERS_FILE).read_text("utf-8")
    answers = json.loads(text)
    answers["log_probs"][7] += 0.01
    (own_bundle / ANSWERS_FILE).write_text(json.dumps(answers), "utf-8")
    digest = asdict(digest_file(own_bundle / ANSWERS_FILE))
    edit_manifest(own_bundle, lambda manifest: manifest["files"].update({ANSWERS_FILE: digest}))
    refused = refuse("configure", own_bundle, "-o", tmp_path / "other", "--mem-len", "30")
    assert "own.bundle: token 8 of the known answers has the log-probability" in refused
    assert not (tmp_path / "other").exists()


@pytest.fixture
def old_bundle(tmp_path: Path) -> Path:
    """Return a bundle of format 4."""
    shutil.copytree(BAND / "bundle", tmp_path / "old")
    seal(tmp_path / "old", (BAND / "format4.json").read_bytes())
    return tmp_path / "old"


def test_bundle_of_format_4_is_rewritten_and_computes_the_same(
    old_bundle: Path, invoke: Invoke, tmp_path: Path
) -> None:
    with pytest.raises(BundleFormatError, match=f"Rewrite it: xlexport configure {old_bundle} -o NEW"):
        load(old_bundle)
    invoke("configure", old_bundle, "-o", tmp_path / "new").succeeded()
    model, today = load(tmp_path / "new"), load(BAND / "bundle")
    assert model.bundle == today.bundle
    for name in model.bundle.files:
        assert (tmp_path / "new" / name).read_bytes() == (BAND / "bundle" / name).read_bytes()
    ids = list(range(200))
    state = today.stream()
    state.feed(ids[:150])
    state.save(tmp_path / "state")
    restored = model.restore(tmp_path / "state")
    assert np.array_equal(restored.feed(ids[150:]).log_probs, state.feed(ids[150:]).log_probs)


def test_mamba2_with_groups_of_format_4_asks_for_another_conversion(
    old_bundle: Path, invoke: Invoke, tmp_path: Path
) -> None:
    fields = json.loads((BAND / "format4.json").read_text("utf-8"))
    fields["model"]["config"] |= {"model": "mamba2", "n_group": 2}
    seal(old_bundle, json.dumps(fields).encode())
    shown = invoke("configure", old_bundle, "-o", tmp_path / "new").succeeded()
    assert UNGROUPED in shown.err
    assert UNGROUPED in invoke("inspect", tmp_path / "new").succeeded().out


def test_damaged_bundle_of_format_4_is_refused(old_bundle: Path, invoke: Invoke, tmp_path: Path) -> None:
    fields = json.loads((BAND / "format4.json").read_text("utf-8"))
    changes: list[dict[str, Any]] = [{"files": None}, {"graphs": {"score": {}}}, {"tokenizer": 3}]
    for change in changes:
        seal(old_bundle, json.dumps({**fields, **change}).encode())
        refused = invoke("configure", old_bundle, "-o", tmp_path / "new")
        assert refused.code == 1
        assert "bundle.json: says format 4, but lacks its fields. Convert the checkpoint again." in refused.err
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("code", "options", "said"),
    [
        (1, (), "nothing to change. Give at least one of the model settings."),
        (2, ("--mem-len", "0"), "Invalid value for '--mem-len'"),
        (2, ("--set=clamp_len=0",), "0 is neither -1 (no clamp) nor at least 1."),
        (1, ("--set=n_hashes=2",), "n_hashes: not among the settings of this bundle (segment_len, mem_len, clamp_"),
        (1, ("--restart",), "restart is chosen, but documents may be of any length, so nothing ever restarts."),
    ],
)
def test_settings_that_the_bundle_cannot_have_are_refused(
    code: int, options: tuple[str, ...], said: str, bundle: Path, invoke: Invoke, tmp_path: Path
) -> None:
    shown = invoke("configure", bundle, "-o", tmp_path / "other", *options)
    assert (shown.code, shown.out) == (code, "")
    assert said in shown.err
    assert not list(tmp_path.glob("other*"))


def test_output_that_exists_is_kept_without_force(
    bundle: Path, own_bundle: Path, refuse: Callable[..., Any], invoke: Invoke
) -> None:
    before = (own_bundle / "bundle.json").read_bytes()
    assert "--force" in refuse("configure", bundle, "-o", own_bundle, "--mem-len", "30")
    assert (own_bundle / "bundle.json").read_bytes() == before
    invoke("configure", bundle, "-o", own_bundle, "--mem-len", "30", "--force").succeeded()
    assert read_bundle(own_bundle).settings["mem_len"] == 30


def test_damaged_bundle_is_not_copied(own_bundle: Path, refuse: Callable[..., Any], tmp_path: Path) -> None:
    (own_bundle / "weights.data").write_bytes(b"")
    assert "weights.data has 0 bytes" in refuse("configure", own_bundle, "-o", tmp_path / "other", "--mem-len", "30")
    assert not (tmp_path / "other").exists()
