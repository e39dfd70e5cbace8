"""Files of weights for a model that code makes: as people save them, and those that would put wrong numbers into it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from xlexport.checkpoints.module_weights import load_weights
from xlexport.errors import CheckpointError

State = dict[str, Tensor]


class Tied(nn.Module):
    """An embedding that is the output layer, with a counter, a table of positions, and a norm's bias."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(6, 4), nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("angles", torch.arange(4.0), persistent=False)


class Drawn(Tied):
    """The same with random features that no state dict holds, in a list of arrays of numpy."""

    def __init__(self) -> None:
        super().__init__()
        self._features = [np.random.rand(3)]


class Averages(Tied):
    """The same with a buffer that training fills, which is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4), persistent=False)


@pytest.fixture
def state() -> State:
    torch.manual_seed(5)
    model = Tied()
    model.seen.fill_(7)
    return dict(model.state_dict())


def under(prefix: str, state: State) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


AS_SAVED: dict[str, tuple[Callable[[State], dict[str, Any]], list[str]]] = {  # a file's content, and its notes
    "a state dict": (lambda s: s, []),
    "one name of tied ones": (
        lambda s: {"model": {name: s[name] for name in ("head.weight", "seen")}},
        ["The file holds the weights under model."],
    ),
    "PyTorch's tutorial": (
        lambda s: {"epoch": 3, "model_state_dict": s, "optimizer_state_dict": {"state": {}}, "loss": 1.0},
        ["The file holds the weights under model_state_dict."],
    ),
    "Lightning": (
        lambda s: {"state_dict": under("model.", s), "hyper_parameters": {}, "epoch": 1},
        ["The file holds the weights under state_dict.", "Names of the tensors begin with model. in the file."],
    ),
    "DataParallel, compiled": (
        lambda s: under("module._orig_mod.", s), ["Names of the tensors begin with module._orig_mod. in the file."],
    ),
    "AveragedModel": (
        lambda s: {"n_averaged": torch.tensor(3), **under("module.", s)},
        ["Names of the tensors begin with module. in the file."],
    ),
    "bfloat16": (
        lambda s: {name: one.bfloat16() if one.is_floating_point() else one for name, one in s.items()},
        ["Weights are bfloat16 in the file and become float32."],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AS_SAVED)
def test_files_as_people_save_them(name: str, state: State, tmp_path: Path) -> None:
    content, notes = AS_SAVED[name]
    torch.save(content(state), tmp_path / "w.pt")
    model = Tied()
    assert load_weights(model, tmp_path / "w.pt", Tied) == notes
    half = name == "bfloat16"
    for own, tensor in model.state_dict().items():
        expected = state[own].bfloat16().float() if half and state[own].is_floating_point() else state[own]
        assert torch.equal(tensor, expected), own


WRONG: dict[str, tuple[Callable[[State], dict[str, Any]], str]] = {
    "untied": (lambda s: {**s, "head.weight": s["head.weight"] + 1}, "head.weight differs from embed.weight"),
    "int8 without scales": (
        lambda s: {name: one.to(torch.int8) for name, one in s.items()},
        "embed.weight is int8 in the file, float32 in the model",
    ),
    "float counter": (lambda s: {**s, "seen": torch.zeros(1)}, "seen is float32 in the file, int64 in the model"),
    "no tensor": (lambda s: {**s, "seen": 3}, "seen is not a tensor"),
    "infinite": (lambda s: {name: s[name] / 0 if name != "seen" else s[name] for name in s}, "infinite or undefined"),
    "other names": (lambda s: {"x": s["seen"]}, "seen is missing; embed.weight is missing; x is unexpected"),
    "several models": (lambda s: {"model": s, "ema": s}, "holds several models (model, ema)"),
    "two prefixes": (lambda s: under("model.", s) | under("ema.", s), "holds several models (model., ema.)"),
    "an adapter": (
        lambda s: under("base_model.model.", {**s, "head.lora_A.default.weight": torch.zeros(2, 4)}),
        "holds an adapter (head.lora_A.default.weight)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_are_refused_and_change_nothing(name: str, state: State, tmp_path: Path) -> None:
    content, said = WRONG[name]
    torch.save(content(state), tmp_path / "w.pt")
    model = Tied()
    before = {own: tensor.clone() for own, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError) as refused:
        load_weights(model, tmp_path / "w.pt", Tied)
    assert str(refused.value).startswith(f"{tmp_path / 'w.pt'}: ") and said in str(refused.value)
    assert all(torch.equal(tensor, before[own]) for own, tensor in model.state_dict().items())


def test_tensors_that_no_state_dict_holds(state: State, tmp_path: Path) -> None:
    save_file({name: tensor.clone() for name, tensor in state.items()}, file := tmp_path / "w.safetensors")
    with pytest.raises(CheckpointError, match=r"holds no _features\[0\], which the model draws at random"):
        load_weights(Drawn(), file, Drawn)
    assert load_weights(Averages(), file, Averages) == [
        "state_dict() holds no mean: if training changed such buffers, they are lost."
    ]


class Normed(Tied):
    """The same with weights that hooks compute from saved ones, and with those that an LSTM lists once more."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are deprecated
            self.first = nn.utils.weight_norm(nn.Linear(4, 4))
            self.second = nn.utils.spectral_norm(nn.Linear(4, 4))


def test_tensors_that_follow_from_saved_ones_are_not_drawn(tmp_path: Path) -> None:
    trained = Normed()
    torch.save(trained.state_dict(), tmp_path / "w.pt")
    assert load_weights(Normed(), tmp_path / "w.pt", Normed) == []
