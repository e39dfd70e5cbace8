"""The steps of an encoder-decoder against the trained model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.helpers.tiny import tiny_encoder_decoder
from xlexport.families import traced_outputs
from xlexport.families.encoder_decoder.step import EncoderDecoderStep
from xltraining.encoder_decoder.config import PAD, START


@pytest.mark.parametrize("residual", ["reversible", "ordinary"])
@torch.no_grad()
def test_sources_of_any_length_condition_the_target(residual: str) -> None:
    """Compare sources that are padded together, one of them empty, and an empty one alone."""
    model = tiny_encoder_decoder(residual=residual)
    step = EncoderDecoderStep(model)

    def outputs(**feeds: Tensor) -> dict[str, Tensor]:
        values = [feeds.get(entry.name, value) for entry, value in zip(step.inputs, step.example(), strict=True)]
        return dict(zip(traced_outputs(step), step(*values), strict=True))

    for sources in ([[5, 6, 7], [9, PAD, PAD], [PAD, PAD, PAD]], [[PAD]]):
        source, B = torch.tensor(sources), len(sources)
        tokens, targets = torch.tensor([[START, 8, 7, 9]] * B), torch.tensor([[8, 7, 9, 30]] * B)
        names = [entry.name for entry in step.encoded]
        encoded = {name: value for name, value in outputs(source=source).items() if name in names}
        memory = {entry.input: torch.zeros(B, *map(int, entry.shape[1:])) for entry in step.memory}
        position = torch.zeros(B, dtype=torch.int64)
        found = outputs(tokens=tokens, targets=targets, position=position, **encoded, **memory)["log_prob"]
        expected = model.log_probs(model(tokens, model.encode(source))[0], targets)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
