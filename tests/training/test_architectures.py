"""An architecture that is registered at run time trains, is saved, read and resumed like the built-in ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.gated import Gated, GatedConfig
from tests.training.runs import resumed_like_whole
from xltraining.architectures import architecture_names, architecture_of, config_from, new_model, register, unregister
from xltraining.checkpoint import load_checkpoint, save_checkpoint
from xltraining.errors import CheckpointError, ConfigError
from xltraining.loop.train import TrainingConfig
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig


@pytest.fixture
def gated() -> Iterator[str]:
    """Register the architecture for one test."""
    register("gated", GatedConfig, Gated)
    yield "gated"
    if "gated" in architecture_names():
        unregister("gated")


def test_name_and_configuration_belong_to_one_architecture(gated: str) -> None:
    assert architecture_names() == ["transformer_xl", "reformer", "encoder_decoder", "lstm", "mamba", "gated"]
    assert architecture_of(GatedConfig()) == "gated"
    assert config_from("gated", {"d_model": 3}) == GatedConfig(d_model=3)
    assert isinstance(new_model(GatedConfig()), Gated)
    for name, config in (("gated", TransformerXLConfig), ("other", GatedConfig), ("reformer", GatedConfig)):
        with pytest.raises(ConfigError, match="is registered already"):
            register(name, config, TransformerXL)


def test_unknown_architecture_is_refused(gated: str) -> None:
    known = "transformer_xl, reformer, encoder_decoder, lstm, mamba, gated"
    with pytest.raises(ConfigError, match=f"must be one of {known}, found 'rnn'"):
        config_from("rnn", {})

    class Other(GatedConfig):
        """A configuration of no architecture."""

    with pytest.raises(ConfigError, match="configuration Other is of no known architecture, expected one of Trans"):
        architecture_of(Other())


def test_it_trains_and_resumes_like_an_uninterrupted_run(gated: str, tmp_path: Path, text: Path) -> None:
    training = TrainingConfig(batch_size=2, warmup_steps=1, log_every=1, threads=1, steps=4, checkpoint_every=2)
    state = resumed_like_whole(GatedConfig(), training, tmp_path, [text], stop=3)["training"]
    assert state["memory"]["state"].shape == (2, 12)


def test_checkpoint_of_an_architecture_that_is_not_registered(gated: str, tmp_path: Path) -> None:
    config = GatedConfig(n_token=11)
    save_checkpoint(tmp_path / "model.pt", config, new_model(config).state_dict())
    unregister("gated")
    known = "transformer_xl, reformer, encoder_decoder, lstm, mamba"
    with pytest.raises(CheckpointError, match=f"architecture must be one of {known}, found 'gated'"):
        load_checkpoint(tmp_path / "model.pt")
