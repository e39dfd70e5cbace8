import os
import pickle
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.training.reformers import SMALL
from xltraining.checkpoint import Checkpoint, build_model, load_checkpoint, save_checkpoint
from xltraining.errors import CheckpointWriteError, RunFileError, RunFileNotFoundError
from xltraining.reformer import Reformer
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

MakeModel = Callable[..., TransformerXL]
Saved = tuple[TransformerXLConfig, dict[str, torch.Tensor]]
ABOUT = {"licence": "CC0", "data": "texts of mine", "held_out_bits_per_token": 1.5}
REFORMER = replace(SMALL, axial_shape=(2, 4), max_positions=8)


@pytest.fixture(params=[{}, {"untie_r": False}, {"tie_weight": False}], ids=["tied", "shared u and v", "untied"])
def saved(request: pytest.FixtureRequest, make_model: MakeModel) -> Saved:
    model = make_model(**request.param)
    return model.config, model.state_dict()


@pytest.fixture
def reformer() -> Reformer:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Reformer(REFORMER).eval()


def assert_same(
    checkpoint: Checkpoint, saved: tuple[Any, dict[str, torch.Tensor]], dtype: torch.dtype = torch.float32
) -> None:
    config, state_dict = saved
    assert checkpoint.config == config
    assert checkpoint.tokenizer == "bytes"
    assert list(checkpoint.state_dict) == list(state_dict)
    for name, tensor in checkpoint.state_dict.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, state_dict[name].to(dtype).float()), name


@pytest.mark.parametrize("name", ["checkpoint.pt", "folder"])
@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_save_and_load_give_the_same_weights(
    tmp_path: Path, saved: Saved, name: str, dtype: torch.dtype | None
) -> None:
    path = tmp_path / "made" / name
    save_checkpoint(path, *saved, dtype=dtype, about=ABOUT)
    checkpoint = load_checkpoint(path)
    assert checkpoint.about == ABOUT
    assert_same(checkpoint, saved, dtype or torch.float32)
    assert checkpoint.training is None
    assert os.listdir(path.parent) == [name]

    model = build_model(checkpoint)
    assert not model.training
    assert all(torch.equal(tensor, checkpoint.state_dict[key]) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("about", "problem"),
    [
        ({"licence": 3}, "licence is 3, expected a text"),
        ({"held_out_bits_per_token": True}, "held_out_bits_per_token is True, expected a float, 0 or more"),
        ({"held_out_bits_per_token": float("inf")}, "held_out_bits_per_token is inf, expected a float"),
        ({"held_out_bits_per_token": -1.0}, "held_out_bits_per_token is -1.0, expected a float"),
        (["CC0"], r"about is \['CC0'\], expected a dict"),
    ],
)
def test_wrong_statements_are_refused(tmp_path: Path, reformer: Reformer, about: Any, problem: str) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, REFORMER, reformer.state_dict())
    content = torch.load(path, weights_only=True)
    torch.save({**content, "about": about}, path)
    with pytest.raises(RunFileError, match=problem):
        load_checkpoint(path)
    torch.save({**content, "about": {"of a later version": 1, "data": "two\nlines \x1b[2J\udc80"}}, path)
    assert load_checkpoint(path).about == {"data": r"two lines \x1b[2J\udc80"}


def test_rounding_the_weights_leaves_hash_rotations_alone(tmp_path: Path, reformer: Reformer) -> None:
    save_checkpoint(tmp_path / "checkpoint.pt", REFORMER, reformer.state_dict(), dtype=torch.float16)
    stored = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["state_dict"]
    kept = {name for name, tensor in stored.items() if tensor.dtype != torch.float16}
    assert kept == {"layers.1.attention.rotations", "layers.3.attention.rotations"}
    model = build_model(load_checkpoint(tmp_path / "checkpoint.pt"))
    more, expected = (
        part.with_evaluation(n_hashes=4).state_dict()["layers.1.attention.rotations"]  # refused if they were rounded
        for part in (model, reformer)
    )
    assert torch.equal(more, expected)


def test_a_reformer_that_lacks_weights_says_which(tmp_path: Path, reformer: Reformer) -> None:
    state_dict = {name: tensor for name, tensor in reformer.state_dict().items() if "rotations" not in name}
    with pytest.raises(RunFileError, match=r"layers\.1\.attention\.rotations is missing"):
        save_checkpoint(tmp_path / "checkpoint.pt", REFORMER, state_dict)


def test_files_are_plain_and_hold_shared_weights_once(tmp_path: Path, saved: Saved) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, *saved, dtype=torch.float16, training={"step": 3})
    content = torch.load(path, weights_only=True)
    assert (content["format"], content["version"], content["training"]) == ("xltraining", 3, {"step": 3})
    assert content["config"] == saved[0].to_dict()
    stored = content["state_dict"]
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    shares = stored["head.clusters.0.weight"].data_ptr() == stored["word_emb.clusters.0.table"].data_ptr()
    assert shares == saved[0].tie_weight

    save_checkpoint(tmp_path / "folder", *saved)
    stored = load_file(tmp_path / "folder" / "model.safetensors")
    assert len(stored) == len({tensor.data_ptr() for tensor in saved[1].values()})
    assert ("head.clusters.0.weight" in stored) == (not saved[0].tie_weight)
    for file in (tmp_path / "folder").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) & 0o044 == 0o044


@pytest.mark.parametrize("name", ["checkpoint.pt", "folder"])
def test_saving_replaces_an_older_checkpoint(tmp_path: Path, make_model: MakeModel, name: str) -> None:
    for seed in (1, 2):
        model = make_model(seed)
        save_checkpoint(tmp_path / name, model.config, model.state_dict())
    assert_same(load_checkpoint(tmp_path / name), (model.config, model.state_dict()))
    assert os.listdir(tmp_path) == [name]


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path, make_model: MakeModel) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    model = make_model()
    with pytest.raises(CheckpointWriteError, match="not a checkpoint"):
        save_checkpoint(tmp_path / "photos", model.config, model.state_dict())
    assert os.listdir(tmp_path) == ["photos"]
    assert os.listdir(tmp_path / "photos") == ["cat.jpg"]


def test_a_failing_write_leaves_the_old_checkpoint(
    tmp_path: Path, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint.pt"
    old, new = make_model(1), make_model(2)
    save_checkpoint(path, old.config, old.state_dict())

    def half_a_save(content: object, file: Path) -> None:
        file.write_bytes(b"half")
        raise RuntimeError("PytorchStreamWriter failed writing file: No space left on device")

    monkeypatch.setattr(torch, "save", half_a_save)
    with pytest.raises(OSError, match="No space left") as caught:
        save_checkpoint(path, new.config, new.state_dict())
    assert isinstance(caught.value, CheckpointWriteError)
    assert_same(load_checkpoint(path), (old.config, old.state_dict()))
    assert os.listdir(tmp_path) == ["checkpoint.pt"]


def test_a_folder_cannot_hold_a_training_run(tmp_path: Path, saved: Saved) -> None:
    with pytest.raises(RunFileError, match=r"End the path in \.pt"):
        save_checkpoint(tmp_path / "folder", *saved, training={"step": 1})
    assert os.listdir(tmp_path) == []


class RunsCode:
    """An object whose pickle creates a file if it is loaded without care."""

    def __init__(self, evidence: Path) -> None:
        self.evidence = evidence

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.mkdir, (str(self.evidence),)


def truncated(path: Path, config: TransformerXLConfig, state_dict: dict[str, torch.Tensor]) -> None:
    save_checkpoint(path, config, state_dict)
    path.write_bytes(path.read_bytes()[:-2000])


def content(saved: Saved, **changes: Any) -> dict[str, Any]:
    """Return the content of a checkpoint with some of its entries changed; None leaves one out."""
    plain = {"format": "xltraining", "version": 3, "config": saved[0].to_dict(), "state_dict": saved[1], **changes}
    return {name: value for name, value in plain.items() if value is not None}


BAD_FILES: dict[str, tuple[Callable[[Path, Saved], object], str]] = {
    "empty": (lambda path, saved: path.touch(), "the file is empty"),
    "text": (lambda path, saved: path.write_text("Once upon a time there were weights.\n"), "not a PyTorch checkpoint"),
    "truncated": (lambda path, saved: truncated(path, *saved), "damaged or cut off"),
    "zip of nothing": (lambda path, saved: path.write_bytes(b"PK\x03\x04" + b"\0" * 300), "damaged or cut off"),
    "pickled code": (
        lambda path, saved: path.write_bytes(pickle.dumps(RunsCode(path.with_name("ran")))),
        "not a PyTorch checkpoint",
    ),
    "code inside": (lambda path, saved: torch.save({"x": RunsCode(path.with_name("ran"))}, path), "could run code"),
}
BAD_CONTENTS: dict[str, tuple[Callable[[Saved], object], str]] = {
    "tensor": (lambda saved: torch.zeros(3), "expected a dict.*found Tensor"),
    "state dict": (lambda saved: saved[1], "not a checkpoint of this format.*found the keys"),
    "empty dict": (lambda saved: {}, "found the keys nothing"),
    "newer": (lambda saved: content(saved, version=5), "version 5, but this program reads versions 1 to 4"),
    "no weights": (lambda saved: content(saved, state_dict=None), "no state_dict"),
    "bad config": (
        lambda saved: content(saved, config={"n_layer": 0, "d_model": 3}),
        "n_layer must be at least 1.*d_model must be even",
    ),
    "other architecture": (
        lambda saved: content(saved, architecture="rnn"),
        "architecture must be one of transformer_xl, reformer, encoder_decoder, lstm, mamba, found 'rnn'",
    ),
    "wrong architecture": (
        lambda saved: content(saved, architecture="reformer"),
        "unknown names in the Reformer configuration: clamp_len",
    ),
}


@pytest.mark.parametrize("kind", [*BAD_FILES, *BAD_CONTENTS])
def test_a_bad_file_is_a_one_line_error_and_runs_nothing(tmp_path: Path, make_model: MakeModel, kind: str) -> None:
    model, path = make_model(), tmp_path / "checkpoint.pt"
    saved = model.config, model.state_dict()
    if kind in BAD_FILES:
        write, message = BAD_FILES[kind]
        write(path, saved)
    else:
        make, message = BAD_CONTENTS[kind]
        torch.save(make(saved), path)
    with pytest.raises(RunFileError, match=message) as caught:
        load_checkpoint(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def test_a_missing_path_is_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(RunFileNotFoundError, match="the checkpoint does not exist") as caught:
        load_checkpoint(tmp_path / "nowhere.pt")
    assert isinstance(caught.value, FileNotFoundError)


def test_a_folder_says_what_it_lacks(tmp_path: Path, saved: Saved) -> None:
    with pytest.raises(RunFileError, match=r"no config\.json and no model\.safetensors"):
        load_checkpoint(tmp_path)
    save_checkpoint(tmp_path / "folder", *saved)
    weights = tmp_path / "folder" / "model.safetensors"
    assert_same(load_checkpoint(weights), saved)
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(RunFileError, match=r"model\.safetensors: damaged"):
        load_checkpoint(tmp_path / "folder")
    (tmp_path / "folder" / "config.json").write_text("{")
    with pytest.raises(RunFileError, match="not valid JSON"):
        load_checkpoint(tmp_path / "folder")
    (tmp_path / "folder" / "config.json").write_text("[]")
    with pytest.raises(RunFileError, match="expected an object"):
        load_checkpoint(tmp_path / "folder")


def test_every_tensor_that_does_not_fit_is_listed(tmp_path: Path, make_model: MakeModel) -> None:
    model = make_model()
    path = tmp_path / "folder"
    save_checkpoint(path, model.config, model.state_dict())
    tensors = load_file(path / "model.safetensors")
    del tensors["head.clusters.0.bias"]
    tensors["layers.1.attention.norm.weight"] = torch.zeros(7)
    tensors["layers.9.attention.norm.weight"] = torch.zeros(12)
    tensors["layers.0.attention.norm.bias"] = torch.zeros(12, dtype=torch.int64)
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(RunFileError) as caught:
        load_checkpoint(path)
    message = str(caught.value)
    assert "head.clusters.0.bias is missing" in message
    assert "layers.1.attention.norm.weight is (7,) in the file, (12,) by the configuration" in message
    assert "layers.9.attention.norm.weight is unknown" in message
    assert "layers.0.attention.norm.bias is not a tensor of floats" in message


def test_tied_weights_that_differ_are_refused(tmp_path: Path, make_model: MakeModel) -> None:
    model = make_model(tie_weight=False)
    config = replace(model.config, tie_weight=True)
    with pytest.raises(RunFileError, match=r"head\.clusters\.0\.weight differs from word_emb\.clusters\.0\.table"):
        save_checkpoint(tmp_path / "checkpoint.pt", config, model.state_dict())
    assert os.listdir(tmp_path) == []
