"""The LSTM language models of characters that ml5.js publishes: raw files of TensorFlow's `BasicLSTMCell`.

    python -m samples.models.published.char_rnn shakespeare/ shakespeare.bundle

The folders are in the repository `ml5js/ml5-data-and-models` (`models/charRNN`, MIT): `manifest.json`, `vocab.json`,
and a file of float32 numbers a tensor. A kernel has the rows of inputs, then of states, and the columns of i j f o.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from samples.models.lstm import LSTM
from samples.models.published.command import main
from samples.models.published.gates import in_torch_order
from xlruntime.tokenizers.vocabulary import Vocabulary

__all__ = ["read"]

REPAIRED = {"": "U", "  ": "u"}  # what Shakespeare's vocab.json has for these, which it lacks
FORGET_BIAS = 1.0  # that the cell adds whenever it runs; the file is without it


def read(folder: Path) -> tuple[LSTM, Vocabulary]:
    """Return the model of a folder, and its characters.

    Raises:
        OSError, KeyError, ValueError: a file or a tensor is missing, or has another size than `manifest.json` says.
    """
    shapes = {name: entry["shape"] for name, entry in json.loads((folder / "manifest.json").read_text("utf-8")).items()}

    def tensor(name: str) -> Tensor:
        return torch.from_numpy(np.fromfile(folder / name.replace("/", "_"), "<f4").reshape(shapes[name]))

    cells = [name.rpartition("/")[0] for name in shapes if name.endswith(("_cell/weights", "_cell/kernel"))]
    V, D = shapes["embedding"]
    weights = {"embedding.weight": tensor("embedding")}
    weights |= {"head.weight": tensor("rnnlm/softmax_w").T, "head.bias": tensor("rnnlm/softmax_b")}
    for n, cell in enumerate(sorted(cells)):
        kernel, bias = ("weights", "biases") if f"{cell}/weights" in shapes else ("kernel", "bias")  # TensorFlow 1.2
        inputs, states = in_torch_order(tensor(f"{cell}/{kernel}").T, "igfo").split(D, dim=1)
        biases = in_torch_order(tensor(f"{cell}/{bias}"), "igfo")
        biases[D : 2 * D] += FORGET_BIAS
        weights |= {f"rnn.weight_ih_l{n}": inputs, f"rnn.weight_hh_l{n}": states}
        weights |= {f"rnn.bias_ih_l{n}": biases, f"rnn.bias_hh_l{n}": torch.zeros(4 * D)}
    model = LSTM(V, D, len(cells))
    model.load_state_dict(weights)
    ids = json.loads((folder / "vocab.json").read_text("utf-8"))
    symbols = {number: REPAIRED.get(symbol, symbol) for symbol, number in ids.items()}
    return model, Vocabulary("characters", tuple(symbols[number] for number in range(V)))


if __name__ == "__main__":
    main(read)
