"""Make the golden bundle `encoder_decoder`, and what the eager model computes for some pairs of texts.

    python tests/golden/make_encoder_decoder.py

The folder of the bundle is called `translator`, because tests of documents run all golden folders called `bundle`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from tests.helpers.tiny import tiny_encoder_decoder
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.formats import load
from xltraining.checkpoint import save_checkpoint
from xltraining.encoder_decoder.config import END, FIRST_BYTE, START

FOLDER = Path(__file__).resolve().parent / "encoder_decoder"
PAIRS = (("abc", "cba!"), ("", "x"), ("a longer one", "long"), ("z", ""))  # sources and targets


def main() -> None:
    """Convert a tiny model with random weights, and store the log-probabilities of the pairs' targets."""
    model = tiny_encoder_decoder()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint.pt"
        save_checkpoint(checkpoint, model.config, model.state_dict())
        convert(load(checkpoint), FOLDER / "translator", ConversionOptions(threads=1), force=True)
    log_probs = []
    for source, target in PAIRS:
        ids, predicted = ([byte + FIRST_BYTE for byte in text.encode()] for text in (source, target))
        row = [*ids, *[0] * (model.config.source_len - len(ids)), START, *predicted]
        with torch.inference_mode():
            hidden, _ = model(torch.tensor([row]))
            log_probs.append(float(model.log_probs(hidden, torch.tensor([[*predicted, END]])).double().sum()))
    save_file({"log_probs": np.array(log_probs)}, FOLDER / "expected.safetensors")


if __name__ == "__main__":
    main()
