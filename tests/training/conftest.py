from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from xltraining.transformer_xl import TransformerXL
from xltraining.transformer_xl_config import TransformerXLConfig

SMALL = TransformerXLConfig(
    n_token=20, n_layer=3, n_head=2, d_model=12, d_head=5, d_inner=16, tgt_len=6, mem_len=8, dropout=0.0
)


@pytest.fixture
def small_config() -> TransformerXLConfig:
    return SMALL


@pytest.fixture
def make_model() -> Callable[..., TransformerXL]:
    """A small model in evaluation mode whose every weight counts: none is zero, none is tiny."""

    def make(seed: int = 0, **changes: Any) -> TransformerXL:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            model = TransformerXL(replace(SMALL, **changes)).eval()
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.3)
        return model

    return make
