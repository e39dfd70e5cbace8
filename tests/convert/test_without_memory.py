"""A model trained with `mem_len` 0 sees its segment and nothing earlier; its bundle does, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.tiny import tiny_model
from xlexport.checkpoints import load
from xlexport.convert import ConversionOptions, convert
from xlruntime import OptionError
from xlruntime import load as load_bundle
from xltraining.checkpoint import save_checkpoint


@pytest.mark.usefixtures("cached_exports")
def test_model_without_memory_scores_each_segment_alone(tmp_path: Path) -> None:
    model = tiny_model(mem_len=0)
    save_checkpoint(tmp_path / "checkpoint.pt", model.config, model.state_dict())
    source = load(tmp_path / "checkpoint.pt")
    report = convert(source, tmp_path / "bundle", ConversionOptions(tokenizer="none"))
    assert report.passed

    S, bundle = model.config.tgt_len, load_bundle(tmp_path / "bundle", threads=1)
    ids = np.random.default_rng(3).integers(0, model.config.n_token, 5 * S + 1)
    found = bundle.stream().feed(ids).log_probs
    expected = []
    for start in range(0, 5 * S, S):
        tokens = torch.from_numpy(ids[None, start : start + S + 1])
        with torch.no_grad():
            hidden, _ = model(tokens[:, :-1])
            expected.append(model.log_probs(hidden, tokens[:, 1:])[0])
    assert np.abs(found - torch.cat(expected).numpy()).max() < 1e-5
    with pytest.raises(OptionError, match="a window of 0 keys in ring 'capacity', so a token would see no key"):
        bundle.stream(same_length=True)
    bundle.stream(same_length=True, mem_len=4).feed(ids)
