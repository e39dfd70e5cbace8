"""An architecture that is registered at run time trains, is saved, read and resumed like the built-in ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from xltraining.architectures import architecture_names, architecture_of, config_from, new_model, register, unregister
from xltraining.checkpoint import build_model, load_checkpoint, save_checkpoint
from xltraining.config_fields import ModelConfig
from xltraining.errors import CheckpointError, ConfigError
from xltraining.language_model import LanguageModel
from xltraining.train import TrainingConfig, train
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig


@dataclass(frozen=True)
class AverageConfig(ModelConfig):
    """Configuration of a model that carries a decaying mean of its embeddings."""

    NAME: ClassVar[str] = "Average"

    n_token: int = 256
    d_model: int = 4
    tgt_len: int = 6


class Average(LanguageModel):
    """A recurrent model with a state of fixed size: without memory length and positions."""

    def __init__(self, config: AverageConfig) -> None:
        super().__init__()
        self.config = config
        self.word_emb = nn.Embedding(config.n_token, config.d_model)
        self.decay = nn.Parameter(torch.zeros(config.d_model))
        self.head = nn.Linear(config.d_model, config.n_token)

    def first_memory(self, batch_size: int) -> dict[str, Any]:
        """Return a state of zeros."""
        return {"state": torch.zeros(batch_size, self.config.d_model), "tokens": 0}

    def forward(self, tokens: Tensor, memory: dict[str, Any] | None = None) -> tuple[Tensor, dict[str, Any]]:
        """Run one segment."""
        memory = self.first_memory(len(tokens)) if memory is None else memory
        state, decay, hidden = memory["state"], self.decay.sigmoid(), []
        for row in self.word_emb(tokens).unbind(1):
            state = decay * state + (1 - decay) * row
            hidden.append(state)
        return torch.stack(hidden, 1), {"state": state.detach(), "tokens": memory["tokens"] + tokens.shape[1]}

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (B,S,V)."""
        logits: Tensor = self.head(hidden)
        return logits


@pytest.fixture
def average() -> Iterator[str]:
    """Register the architecture for one test."""
    register("average", AverageConfig, Average)
    yield "average"
    if "average" in architecture_names():
        unregister("average")


def test_name_and_configuration_belong_to_one_architecture(average: str) -> None:
    assert architecture_names() == ["transformer_xl", "reformer", "encoder_decoder", "average"]
    assert architecture_of(AverageConfig()) == "average"
    assert config_from("average", {"d_model": 3}) == AverageConfig(d_model=3)
    assert isinstance(new_model(AverageConfig()), Average)
    for name, config in (("average", TransformerXLConfig), ("other", AverageConfig), ("reformer", AverageConfig)):
        with pytest.raises(ConfigError, match="is registered already"):
            register(name, config, TransformerXL)


def test_unknown_architecture_is_refused(average: str) -> None:
    known = "transformer_xl, reformer, encoder_decoder, average"
    with pytest.raises(ConfigError, match=f"must be one of {known}, found 'rnn'"):
        config_from("rnn", {})

    class Other(AverageConfig):
        """A configuration of no architecture."""

    with pytest.raises(ConfigError, match="configuration Other is of no known architecture, expected one of Trans"):
        architecture_of(Other())


def test_it_trains_and_resumes_like_an_uninterrupted_run(average: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"the quick brown fox jumps over the lazy dog. " * 20)
    settings: dict[str, Any] = {"batch_size": 2, "warmup_steps": 1, "log_every": 1, "threads": 1, "steps": 4}
    whole = train(AverageConfig(), TrainingConfig(**settings), [text], [text], tmp_path / "whole")

    class Stop(Exception):
        """An interruption between two updates, after the checkpoint."""

    def stop(step: int) -> None:
        if step == 2:
            raise Stop

    resumed = tmp_path / "resumed"
    every = TrainingConfig(**settings, checkpoint_every=2)
    with pytest.raises(Stop):
        train(AverageConfig(), every, [text], [text], resumed, on_step=stop)
    state = load_checkpoint(resumed / "checkpoint.pt").training
    assert state is not None
    assert state["memory"]["tokens"] == 12
    assert state["memory"]["state"].shape == (2, 4)
    again = train(AverageConfig(), every, [text], [text], resumed, resume=True)
    assert (again.train_bits, again.valid_bits) == (whole.train_bits, whole.valid_bits)


def test_checkpoint_as_file_and_as_folder(average: str, tmp_path: Path) -> None:
    config = AverageConfig(n_token=11)
    model = new_model(config)
    for path in (tmp_path / "model.pt", tmp_path / "model"):
        save_checkpoint(path, config, model.state_dict(), dtype=torch.float16)
        found = load_checkpoint(path)
        assert found.config == config
        built = build_model(found)
        assert isinstance(built, Average)
        for name, tensor in model.state_dict().items():
            assert torch.equal(built.state_dict()[name], tensor.half().float())


def test_checkpoint_of_an_architecture_that_is_not_registered(average: str, tmp_path: Path) -> None:
    config = AverageConfig(n_token=11)
    save_checkpoint(tmp_path / "model.pt", config, new_model(config).state_dict())
    unregister("average")
    known = "transformer_xl, reformer, encoder_decoder"
    with pytest.raises(CheckpointError, match=f"architecture must be one of {known}, found 'average'"):
        load_checkpoint(tmp_path / "model.pt")
