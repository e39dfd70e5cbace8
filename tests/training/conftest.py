from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.weights import random_model
from tests.training.runs import TEXT
from xltraining.transformer_xl import TransformerXL, TransformerXLConfig

SMALL = TransformerXLConfig(
    n_token=20, n_layer=3, n_head=2, d_model=12, d_head=5, d_inner=16, tgt_len=6, mem_len=8, dropout=0.0
)


@pytest.fixture
def make_model() -> Callable[..., TransformerXL]:
    """Make a small model in evaluation mode in which every weight counts: none is zero or tiny."""

    def make(seed: int = 0, **changes: Any) -> TransformerXL:
        return random_model(lambda: TransformerXL(replace(SMALL, **changes)), seed)

    return make


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_bytes(TEXT)
    return file
