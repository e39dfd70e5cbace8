"""Downloads from Hugging Face's hub, whose client's functions are replaced: what is fetched, refused and recorded."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi, hf_hub_download

from tests.helpers.hub import COMMIT, put_into_cache
from tests.helpers.invoking import Invoke
from tests.helpers.paths import EMPTY, golden_bundle
from tests.helpers.tiny import tiny_model
from xlruntime.bundle_files import read_bundle
from xltraining.checkpoint import save_checkpoint

SCORE = ("score", "me/new", "remote/code.py")
SIGNATURES = inspect.signature(HfApi.model_info), inspect.signature(hf_hub_download)


class Hub:
    """A hub with the files of the folder `remote`, and the names that were fetched from it."""

    def __init__(self, remote: Path) -> None:
        self.remote, self.fetched, self.commit = remote, list[str](), COMMIT

    def model_info(self, name: str, **options: Any) -> SimpleNamespace:
        SIGNATURES[0].bind(None, name, **options)
        if name != "me/new":
            raise ConnectionError("https://hub/?token=hf_secret")
        files = {path.relative_to(self.remote).as_posix(): path.stat() for path in self.remote.rglob("*.*")}
        siblings = [SimpleNamespace(rfilename=file, size=status.st_size) for file, status in files.items()]
        return SimpleNamespace(sha=self.commit, siblings=siblings)

    def download(self, name: str, file: str, **options: Any) -> str:
        SIGNATURES[1].bind(name, file, **options)
        assert options["revision"] == (COMMIT if self.fetched else "main")
        self.fetched.append(file)
        return str(put_into_cache(self.remote, Path(options["cache_dir"]), name, file) / file)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(shutil.copytree(golden_bundle(EMPTY), tmp_path / "remote"))
    (hub.remote / "code.py").write_text("A short text.", "utf-8")
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", hub.model_info)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", hub.download)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return hub


def test_bundle_is_fetched_on_request_unless_a_folder_has_its_name(hub: Hub, invoke: Invoke) -> None:
    assert "run `hf download me/new`" in invoke(*SCORE).error and not hub.fetched
    invoke(*SCORE, "--download").succeeded()
    listed = read_bundle(hub.remote).files
    assert sorted(hub.fetched) == sorted([*listed, "bundle.json", "bundle.json.sha256"])
    invoke(*SCORE).succeeded()
    shutil.copytree(hub.remote, "me/new")
    hub.fetched.clear()
    invoke(*SCORE, "--download").succeeded()
    assert not hub.fetched


def test_damaged_bundle_is_refused(hub: Hub, invoke: Invoke) -> None:
    (hub.remote / "weights.data").write_bytes(bytes((hub.remote / "weights.data").stat().st_size))
    assert "weights.data was changed" in invoke(*SCORE, "--download").error
    (hub.remote / "weights.data").write_bytes(b"short")
    shutil.rmtree("hub")
    hub.fetched.clear()
    assert "weights.data is missing or not of the size" in invoke(*SCORE, "--download").error
    assert hub.fetched == ["bundle.json", "bundle.json.sha256"]


@pytest.mark.release
def test_model_has_its_commit_in_the_provenance(hub: Hub, invoke: Invoke) -> None:
    shutil.rmtree(hub.remote)
    save_checkpoint(hub.remote, tiny_model().config, tiny_model().state_dict())
    (hub.remote / "code.py").touch()
    (hub.remote / "training.bin").touch()
    invoke("convert", "me/new", "--download", "--tokenizer", "none", "-o", "new").succeeded()
    assert hub.fetched == ["config.json", "model.safetensors"]
    options = read_bundle(Path("new")).provenance["options"]
    assert isinstance(options, dict) and options["model"] == f"me/new@{COMMIT}"


def test_refusals_hold_no_secret(hub: Hub, invoke: Invoke) -> None:
    failed = invoke("score", "me/absent", "remote/code.py", "--download")
    assert "me/absent: the hub's client failed (ConnectionError)." in failed.error
    assert "needs no --download" in failed.error and "hf_secret" not in failed.err
    (hub.remote / "bundle.json").unlink()
    assert "no bundle and no safetensors" in invoke(*SCORE, "--download").error
    hub.commit = "f" * 40
    (hub.remote / "model.safetensors").touch()
    assert "changed on the hub meanwhile" in invoke(*SCORE, "--download").error
