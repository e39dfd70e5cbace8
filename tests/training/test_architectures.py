"""The table of architectures in training."""

from __future__ import annotations

from pathlib import Path

import pytest

from xltraining import architectures
from xltraining.architectures import architecture_of, config_from, model_class, new_model
from xltraining.checkpoint import load_checkpoint, save_checkpoint
from xltraining.errors import ConfigError, RunFileError
from xltraining.recurrent import LSTM, LSTMConfig

KNOWN = "transformer_xl, reformer, encoder_decoder, lstm, mamba"


def test_name_and_configuration_belong_to_one_architecture() -> None:
    config = LSTMConfig(d_model=3)
    assert architecture_of(config) == "lstm" and config_from("lstm", {"d_model": 3}) == config
    assert model_class(config) is LSTM and isinstance(new_model(config), LSTM)


def test_unknown_architecture_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=f"must be one of {KNOWN}, found 'rnn'"):
        config_from("rnn", {})

    class Other(LSTMConfig):
        """A configuration of no architecture."""

    with pytest.raises(ConfigError, match="configuration Other is of no known architecture, expected one of Trans"):
        architecture_of(Other())

    config = LSTMConfig(n_token=11, d_model=3)
    save_checkpoint(tmp_path / "model.pt", config, new_model(config).state_dict())
    others = {name: entry for name, entry in architectures._ARCHITECTURES.items() if name != "lstm"}
    monkeypatch.setattr(architectures, "_ARCHITECTURES", others)
    with pytest.raises(RunFileError, match=r"architecture must be one of .*, mamba, found 'lstm'"):
        load_checkpoint(tmp_path / "model.pt")
