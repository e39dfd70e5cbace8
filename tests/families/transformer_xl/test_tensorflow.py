"""Checkpoints of the authors' TensorFlow code become our model with the same probabilities, or are refused clearly."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tests.checkpoints.tensor_bundle_writer import write_bundle
from tests.families.transformer_xl.files import assert_computes
from tests.helpers.tiers import thinned
from tests.oracles.huggingface import Oracle
from xlexport.checkpoints.tensorflow_bundle import open_tensor_bundle
from xlexport.errors import CheckpointError, CheckpointNotFoundError
from xlexport.families.transformer_xl import tensorflow as tensorflow_format
from xlexport.families.transformer_xl.tensorflow import load, matches
from xlexport.formats import load as load_any
from xltraining.transformer_xl import TransformerXLConfig

DATA = Path(__file__).parent / "data" / "tensorflow"
S, M = 5, 6
SETTINGS: Mapping[str, Any] = {"tgt_len": S, "mem_len": M, "clamp_len": 7, "same_length": True}
CONFIG = TransformerXLConfig(
    n_token=16, n_layer=3, n_head=2, d_model=8, d_head=3, d_inner=12, tgt_len=S, mem_len=M, dropout=0.0,
    first_memory="zeros", window_extra=1, layer_norm_epsilon=1e-12,
)  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {  # what differs
    "plain": {"untie_r": False},
    "narrow": {"d_embed": 6, "tie_projs": (True,)},  # without clusters, projections are always shared
    "cut": {"cutoffs": (4, 9), "untie_r": False},
    "cut, narrow": {"cutoffs": (4, 9), "d_embed": 6},
    "cut, narrow, tied": {"cutoffs": (4, 9), "d_embed": 6, "tie_projs": (False, True, True)},
    "WikiText-103": {"cutoffs": (4, 9), "div_val": 2, "tie_projs": (False, True, True)},
    "One Billion Word": {"cutoffs": (4, 9), "div_val": 2, "proj_same_dim": False},
    "wide": {"cutoffs": (4, 9), "div_val": 3, "d_embed": 10, "tie_projs": (True, False, True), "untie_r": False},
}
LAYER = {  # our names and TensorFlow's
    "attention.qkv.weight": "rel_attn/qkv/kernel",
    "attention.position.weight": "rel_attn/r/kernel",
    "attention.output.weight": "rel_attn/o/kernel",
    "attention.norm.weight": "rel_attn/LayerNorm/gamma",
    "attention.norm.bias": "rel_attn/LayerNorm/beta",
    "feed_forward.inner.weight": "ff/layer_1/kernel",
    "feed_forward.inner.bias": "ff/layer_1/bias",
    "feed_forward.outer.weight": "ff/layer_2/kernel",
    "feed_forward.outer.bias": "ff/layer_2/bias",
    "feed_forward.norm.weight": "ff/LayerNorm/gamma",
    "feed_forward.norm.bias": "ff/LayerNorm/beta",
}
NAMES = ["adaptive", "plain", "same_dim"]


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_against_tensorflow(name: str) -> None:
    """Compare whole checkpoints of TensorFlow with its own results (`make_tensorflow_checkpoints.py`)."""
    expected = np.load(DATA / name / "expected.npz")
    model = load(DATA / name, {**SETTINGS, "same_length": name != "plain"}).build_model()
    ids, memory, results = torch.from_numpy(expected["tokens"].astype(np.int64)), None, []
    for start in range(0, ids.shape[1] - 1, S):
        hidden, memory = model(ids[:, start : start + S], memory)
        results.append(model.log_probs(hidden, ids[:, start + 1 : start + S + 1]))
    # float32 on both sides, other orders of summation: 5e-7 seen.
    np.testing.assert_allclose(torch.cat(results, 1).numpy(), expected["log_probs"], rtol=0, atol=5e-6)


def oracle_of(name: str, **settings: Any) -> Oracle:
    return Oracle(replace(CONFIG, **VARIANTS[name], **settings))


def variables_of(oracle: Oracle) -> dict[str, npt.NDArray[np.float32]]:
    """Return an oracle's weights as the variables of a checkpoint, where matrices are (inputs, outputs)."""
    config, own = oracle.config, {name: tensor.numpy() for name, tensor in oracle.state_dict().items()}
    found = {}
    for name, bias in (("r_w_bias", "content_bias"), ("r_r_bias", "position_bias")):
        layers = np.stack([own[f"layers.{index}.attention.{bias}"] for index in range(config.n_layer)])
        found[name] = layers if config.untie_r else layers[0]
    for index in range(config.n_layer):
        found |= {f"layer_{index}/{name}": own[f"layers.{index}.{ours}"].T for ours, name in LAYER.items()}
    tables = [own[f"word_emb.clusters.{index}.table"] for index in range(len(config.cutoffs) + 1)]
    for index, table in enumerate(tables):
        projection, place = own.get(f"word_emb.clusters.{index}.projection"), f"cutoff_{index}/"
        if config.div_val > 1 or index == 0:
            folder = f"adaptive_embed/{place if config.div_val > 1 else ''}"
            found[f"{folder}lookup_table"] = table if config.div_val > 1 else np.concatenate(tables)
            found |= {} if projection is None else {f"{folder}proj_W": projection.T}
        bias = f"{place}b" if config.cutoffs else "bias"
        found[f"adaptive_softmax/{bias}"] = own[f"head.clusters.{index}.bias"]
        if projection is not None and not (config.tie_projs or [False] * len(tables))[index]:
            found[f"adaptive_softmax/{place}proj"] = own[f"head.clusters.{index}.projection"].T
    if config.cutoffs:
        for kind, name in (("weight", "cluster_W"), ("bias", "cluster_b")):
            found[f"adaptive_softmax/cutoff_0/{name}"] = own[f"head.cluster_{kind}"]
    return {f"transformer/{name}": value for name, value in found.items()}


@pytest.mark.parametrize("same_length", [False, True], ids=["any_length", "same_length"])
@pytest.mark.parametrize("clamp_len", [-1, 7])
@pytest.mark.parametrize("name", thinned(VARIANTS, ["plain", "One Billion Word"]))
def test_against_huggingface_over_segments(name: str, clamp_len: int, same_length: bool, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"clamp_len": clamp_len, "same_length": same_length}
    oracle = oracle_of(name, **settings)
    variables = variables_of(oracle)
    write_bundle(tmp_path / "model.ckpt-0", variables)
    source = load(tmp_path / "model.ckpt-0", {**SETTINGS, **settings})
    assert source.parameters == sum(value.size for value in variables.values())
    assert_computes(source, oracle, batch_size=3)


def test_configuration_comes_from_the_shapes() -> None:
    source = load(DATA / "adaptive")
    assert {
        **{"n_token": 16, "n_layer": 2, "n_head": 2, "d_model": 8, "d_head": 3, "d_inner": 12, "d_embed": 8},
        **{"cutoffs": [4, 9], "div_val": 2, "tie_projs": [False, True, True], "proj_same_dim": True},
        **{"untie_r": True, "pre_lnorm": False, "tie_weight": True, "layer_norm_epsilon": 1e-12},
        **{"first_memory": "zeros", "window_extra": 1},
    }.items() <= source.config.items()
    assert source.needs == ("segment_len", "mem_len", "clamp_len", "same_length")
    assert (source.architecture, source.format, source.tokenizer) == ("transformer_xl", "tensorflow", None)

    config = load(DATA / "same_dim").config
    assert (config["proj_same_dim"], config["tie_projs"]) == (False, [False, False, False])
    config = load(DATA / "plain").config
    assert (config["cutoffs"], config["div_val"], config["tie_projs"], config["untie_r"]) == ([], 1, [False], False)


def test_settings_from_the_user_are_not_asked_for() -> None:
    source = load(DATA / "plain", {"mem_len": 9, "same_length": True})
    assert (source.config["mem_len"], source.config["same_length"]) == (9, True)
    assert source.needs == ("segment_len", "clamp_len")
    assert load(DATA / "plain", SETTINGS).needs == ()


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"n_layer": 3, "mem_len": 5}, "so 'n_layer' cannot be given"),
        ({"ext_len": 4}, "ext_len 4"),
        ({"mem_len": -1, "tgt_len": 0}, "tgt_len must be at least 1, found 0; mem_len must be at least 0"),
    ],
)
def test_invalid_configuration(config: dict[str, Any], what: str) -> None:
    assert what in refusal(DATA / "plain", config)


def test_files_are_recorded_and_the_optimizer_is_left_out() -> None:
    source = load(DATA / "adaptive")
    assert [file.name for file in source.files] == ["model.ckpt-12.index", "model.ckpt-12.data-00000-of-00001"]
    for file, digest in source.files.items():
        assert digest.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert source.notes == ("Left out: the optimizer's state, 72 tensors (Adam, Adam_1).",)
    assert load(DATA / "plain").notes == ()


@pytest.mark.full
def test_weights_are_read_and_the_optimizer_is_not(tmp_path: Path) -> None:
    """Notice a wrong byte in a weight, but not in the optimizer's state."""
    shutil.copytree(DATA / "adaptive", tmp_path / "copy")
    data = tmp_path / "copy" / "model.ckpt-12.data-00000-of-00001"
    whole = data.read_bytes()
    outcomes = []
    for place in range(0, len(whole), 256):
        data.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            load(tmp_path / "copy")
            outcomes.append(True)
        except CheckpointError as error:
            assert "Adam" not in str(error)
            outcomes.append(False)
    # Adam keeps two numbers for each weight.
    assert 1 < outcomes.count(True) / outcomes.count(False) < 4


def test_other_floats_become_float32(tmp_path: Path) -> None:
    variables = variables_of(oracle_of("plain"))
    write_bundle(tmp_path / "model", {name: value.astype(np.float16) for name, value in variables.items()})
    source = load(tmp_path / "model", SETTINGS)
    assert source.notes == ("Weights are float16 in the file and become float32.",)
    table = source.build_model().word_emb.clusters[0].table
    assert table.dtype == torch.float32
    assert torch.equal(table, torch.from_numpy(variables["transformer/adaptive_embed/lookup_table"]).half().float())


def test_weights_are_views_of_the_file() -> None:
    model = load(DATA / "plain", SETTINGS).build_model()
    addresses = {name: tensor.untyped_storage().data_ptr() for name, tensor in model.state_dict().items()}
    first, last = min(addresses.values()), max(addresses.values())
    assert last - first < 4504  # the size of the data file: all of them are in one piece of memory


ENDINGS = ("", ".index", ".data-00000-of-00001", ".meta")


@pytest.mark.parametrize("name", ["", "checkpoint", *(f"model.ckpt-12{ending}" for ending in ENDINGS)])
def test_every_way_to_name_it(name: str) -> None:
    path = DATA / "plain" / name
    assert matches(path)
    assert load_any(path).format == "tensorflow"
    assert load_any(path, "tensorflow").parameters == 1124


def refusal(path: Path, config: Mapping[str, Any] | None = None) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(path, config)
    message = str(caught.value)
    assert message.startswith(str(path)), message
    assert message.isprintable(), message
    return message


def copy(name: str, folder: Path, prefix: str = "model.ckpt-12") -> Path:
    """Copy a genuine checkpoint to another prefix, without the text file in its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in (DATA / name).glob("model.ckpt-12.*"):
        shutil.copy(file, folder / file.name.replace("model.ckpt-12", prefix))
    return folder / prefix


def test_folder_of_several_checkpoints_follows_its_text_file(tmp_path: Path) -> None:
    copy("plain", tmp_path, "model.ckpt-12")
    copy("adaptive", tmp_path, "model.ckpt-7")
    message = refusal(tmp_path)
    assert "several checkpoints: model.ckpt-12; model.ckpt-7. Give one of them" in message
    assert load(tmp_path / "model.ckpt-7").parameters == 1268

    state = tmp_path / "checkpoint"
    for path in ("model.ckpt-7", "/home/someone/model.ckpt-7", r"C:\\runs\\model.ckpt-7", "../../etc/model.ckpt-7"):
        state.write_text(f'model_checkpoint_path: "{path}"\nall_model_checkpoint_paths: "model.ckpt-12"\n')
        assert load(tmp_path).parameters == 1268
        assert load(state).parameters == 1268


@pytest.mark.parametrize("path", ["..", ".", "", "/", "model.ckpt-9", "a\\0b", "\x1b[2J", "\0", "modèle"])
def test_text_file_that_names_none_of_the_folder(path: str, tmp_path: Path) -> None:
    copy("adaptive", tmp_path, "run")  # outside the folder, the target of '..' and ''
    copy("plain", tmp_path / "run")
    (tmp_path / "run" / "checkpoint").write_text(f'model_checkpoint_path: "{path}"\n', "utf-8")
    assert load(tmp_path / "run").parameters == 1124
    assert not matches(tmp_path / "run" / "checkpoint")


@pytest.mark.parametrize("content", [b"", b"\x80\x02}q\x00.", b"model_checkpoint_path: 7", bytes(1 << 21)])
def test_text_file_of_another_kind(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_bytes(content)
    assert not matches(tmp_path) and not matches(tmp_path / "checkpoint")
    with pytest.raises(CheckpointNotFoundError, match="no TensorFlow checkpoint"):
        load(tmp_path)


def test_paths_that_are_not_tensorflow_checkpoints(tmp_path: Path) -> None:
    copy("plain", tmp_path / "alone", "model[1]")
    assert load(tmp_path / "alone").parameters == 1124
    assert matches(tmp_path / "alone" / "model[1]") and not matches(tmp_path / "alone" / "model")
    copy("plain", tmp_path / "huggingface")
    (tmp_path / "huggingface" / "config.json").write_text("{}")
    assert not matches(tmp_path / "huggingface")  # its config.json makes it a Hugging Face checkpoint
    for name in ("notes.index", ".index", "model.pt"):
        (tmp_path / name).write_bytes(b"It was the best of times. " * 9)
        assert not matches(tmp_path / name)
    assert not matches(tmp_path)
    assert not matches(tmp_path / "absent")


@pytest.mark.parametrize("kept", [".index", ".data-00000-of-00001"])
def test_half_a_checkpoint_says_what_is_missing(kept: str, tmp_path: Path) -> None:
    prefix = copy("plain", tmp_path, "model[1]")
    for file in tmp_path.iterdir():
        if not file.name.endswith(kept):
            file.unlink()
    missing = {".index": "model[1].data-00000-of-00001", ".data-00000-of-00001": "model[1].index"}[kept]
    assert matches(prefix)
    assert missing in refusal(prefix)


def test_table_under_another_name_says_how_to_name_it(tmp_path: Path) -> None:
    """Give a hint; files of TensorFlow's first format get the same message."""
    prefix = copy("plain", tmp_path)
    (tmp_path / "model.ckpt-12.index").rename(tmp_path / "old.ckpt")
    assert "Name it old.ckpt.index, or restore it in TensorFlow" in refusal(tmp_path / "old.ckpt")
    (tmp_path / "old.ckpt").rename(tmp_path / "model.ckpt-12")
    assert "Name it model.ckpt-12.index" in refusal(prefix)


def changed(tmp_path: Path, changes: Mapping[str, npt.NDArray[Any] | None], variant: str = "WikiText-103") -> Path:
    """Write a checkpoint with variables replaced, added, or (for None) removed."""
    variables = {**variables_of(oracle_of(variant)), **changes}
    write_bundle(tmp_path / "model", {name: value for name, value in variables.items() if value is not None})
    return tmp_path / "model"


def floats(*shape: int) -> npt.NDArray[np.float32]:
    return np.ones(shape, np.float32)


def test_everything_that_does_not_fit_is_listed_at_once(tmp_path: Path) -> None:
    changes: dict[str, npt.NDArray[Any] | None] = {
        "transformer/layer_1/rel_attn/o/kernel": None,
        "transformer/layer_0/ff/LayerNorm/gamma": None,
        "transformer/layer_2/ff/layer_1/kernel": floats(12, 8),
        "transformer/adaptive_embed/cutoff_1/proj_W": floats(8, 4),
        "transformer/adaptive_softmax/cutoff_0/cluster_W": floats(3, 8),
        "transformer/layer_0/rel_attn/qkv/bias": floats(18),
        "transformer/r_r_bias": np.ones((3, 2, 3), np.int32),
    }
    message = refusal(changed(tmp_path, changes))
    for name, what in {
        "transformer/layer_1/rel_attn/o/kernel": "is missing",
        "transformer/layer_0/ff/LayerNorm/gamma": "is missing",
        "transformer/layer_2/ff/layer_1/kernel": r"is \(12, 8\), but the other shapes require \(8, 12\)",
        "transformer/adaptive_embed/cutoff_1/proj_W": r"is \(8, 4\), but the other shapes require \(4, 8\)",
        "transformer/adaptive_softmax/cutoff_0/cluster_W": r"is \(3, 8\), but the other shapes require \(2, 8\)",
        "transformer/layer_0/rel_attn/qkv/bias": "is unexpected",
        "transformer/r_r_bias": "is int32, not float16 or float32 or float64",
    }.items():
        assert re.search(f"{name} {what}", message), message


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"transformer/r_w_bias": None}, "transformer/r_w_bias is missing"),
        ({"transformer/r_w_bias": floats(6)}, "transformer/r_w_bias is of shape (6,)"),
        ({"transformer/r_w_bias": floats(2, 2, 3)}, "transformer/r_w_bias is (2, 2, 3), but"),
        ({"transformer/adaptive_embed/cutoff_0/lookup_table": None}, "cutoff_0/lookup_table is missing"),
        ({"transformer/adaptive_embed/cutoff_1/lookup_table": None}, "cutoff_1/lookup_table is missing"),
        ({"transformer/adaptive_embed/cutoff_1/lookup_table": floats(5, 3)}, "cutoff_1/lookup_table is (5, 3), but"),
        ({"transformer/adaptive_softmax/cutoff_0/b": None}, "adaptive_softmax/cutoff_0/b is missing"),
        ({"transformer/adaptive_softmax/cutoff_2/b": None}, "cutoff_2/lookup_table is unexpected"),
        ({"transformer/adaptive_softmax/cutoff_3/b": floats(4)}, "cutoff_3/lookup_table is missing"),
        ({"transformer/layer_4/ff/layer_1/bias": floats(12)}, "layer_4/ff/layer_1/bias is unexpected"),
        ({"transformer/layer_0/rel_attn/r/kernel": floats(7, 6)}, "d_model must be even"),
    ],
)
def test_variables_that_do_not_fit(changes: dict[str, Any], what: str, tmp_path: Path) -> None:
    assert what in refusal(changed(tmp_path, changes))


@pytest.mark.full
def test_many_layers_and_clusters_take_no_time(tmp_path: Path) -> None:
    """Refuse sizes that only names claim, without building them."""
    many = {f"transformer/layer_{number}/ff/layer_1/bias": floats(1) for number in range(3000)}
    assert "there are 3,000 layers" in refusal(changed(tmp_path, many))
    cut = {f"transformer/adaptive_softmax/cutoff_{number}/b": floats(1) for number in range(3000)}
    message = refusal(changed(tmp_path, cut, "cut"))
    assert "cutoff_1000/b is unexpected" in message
    assert "more" in message
    assert len(message) < 10_000


@pytest.mark.parametrize(
    ("widths", "div_val"), [((30, 10, 3), 3), ((7, 1), 7), ((50, 8, 1), 6), ((1 << 12, 1), 1 << 12)]
)
def test_div_val_from_widths(widths: tuple[int, ...], div_val: int, tmp_path: Path) -> None:
    sizes = {f"transformer/adaptive_softmax/cutoff_{place}/b": floats(1) for place in range(len(widths))}
    tables = {
        f"transformer/adaptive_embed/cutoff_{place}/lookup_table": floats(1, width)
        for place, width in enumerate(widths)
    }
    others = {name: value for name, value in variables_of(oracle_of("plain")).items() if "/adaptive_" not in name}
    write_bundle(tmp_path / "model", {**others, **sizes, **tables})
    config = tensorflow_format._sizes(open_tensor_bundle(tmp_path / "model"))
    assert config["div_val"] == div_val


def test_another_model(tmp_path: Path) -> None:
    write_bundle(tmp_path / "model", {"model/transformer/r_w_bias": floats(2, 2, 3), "model/lm_loss/bias": floats(9)})
    message = refusal(tmp_path / "model")
    assert "not a Transformer-XL of the authors' TensorFlow code: transformer/r_w_bias is missing;" in message
    assert "begins with model/lm_loss/bias, model/transformer/r_w_bias" in message


def test_variables_outside_the_model_are_noted(tmp_path: Path) -> None:
    changes = {"global_step": np.array(3), "beta1_power": floats(), "learning_rate": floats()}
    assert load(changed(tmp_path, changes, "plain")).notes == (
        "Left out, because it is not in the scope transformer/: learning_rate.",
    )
