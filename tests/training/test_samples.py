"""The sample checkpoints were trained: they tell English from noise."""

from __future__ import annotations

import pytest
import torch

from tests.helpers.paths import ROOT
from xltraining.checkpoint import build_model, load_checkpoint
from xltraining.evaluation import evaluate

pytestmark = pytest.mark.full

SAMPLES = ROOT / "samples"
LARGEST = 12_000_000  # bytes; they are cloned with the code
PROSE = (
    b"It was a dark night, and the rain fell upon the road. The old man took his hat and went out of the house, for he "
    b"had heard that his brother was coming home from the war. He did not know what he should say to him.\n"
) * 2


@pytest.mark.parametrize("name", ["transformer_xl_bytes", "reformer_bytes"])
def test_sample_checkpoint_was_trained(name: str) -> None:
    file = SAMPLES / name / "checkpoint.pt"
    assert file.stat().st_size < LARGEST
    model = build_model(load_checkpoint(file))
    letters = torch.frombuffer(bytearray(PROSE), dtype=torch.uint8)
    noise = letters[torch.randperm(len(letters), generator=torch.Generator().manual_seed(0))]
    prose_bits, noise_bits = (evaluate(model, text, segment_len=64) for text in (letters, noise))
    assert prose_bits < 3 and noise_bits > 5
