"""LSTM_Chem, a language model of molecules: Keras HDF5, and symbols of one or two characters.

    python -m samples.models.published.lstm_chem LSTM_Chem-22-0.45.hdf5 molecules.bundle  # pip install h5py

The files are in the repository `topazape/LSTM_Chem` (`experiments/*/checkpoints`, Unlicense). Keras has the gates
i f c o, as PyTorch has, in columns. Inputs are one-hot, so the embedding is the identity. A molecule is a line of
SMILES; the model wants G before it (`--bos G`) and predicts E after it.
"""

from pathlib import Path

import torch
from torch import Tensor

from samples.models.lstm import LSTM
from samples.models.published.command import main
from samples.models.published.gates import in_torch_order
from xlruntime.tokenizers.vocabulary import Vocabulary

__all__ = ["ENDS", "read"]

ENDS = {"bos": "G", "eos": "E"}
SYMBOLS = (
    *("Al", "As", "Br", "Cl", "Li", "Na", "Se", "Si", "Te", *"BCFHIKNOPS", *"()[]=#%0123456789+-"),
    *("se", "te", *"cnos", "G", "A", "E"),
)


def read(file: Path) -> tuple[LSTM, Vocabulary]:
    """Return the model of a file, and its symbols.

    Raises:
        OSError, KeyError, RuntimeError: the file is not HDF5, or tensors are missing or of other shapes.
    """
    import h5py

    with h5py.File(file) as content:

        def tensor(name: str) -> Tensor:
            return torch.from_numpy(content[name][()].T)

        layers = [name for name in ("lstm", "lstm_1", "lstm_2") if name in content]
        weights = {"embedding.weight": torch.eye(len(SYMBOLS))}
        weights |= {"head.weight": tensor("dense/dense/kernel:0"), "head.bias": tensor("dense/dense/bias:0")}
        for n, layer in enumerate(layers):
            for name, own in (("weight_ih", "kernel"), ("weight_hh", "recurrent_kernel"), ("bias_ih", "bias")):
                weights[f"rnn.{name}_l{n}"] = in_torch_order(tensor(f"{layer}/{layer}/{own}:0"), "ifgo")
            weights[f"rnn.bias_hh_l{n}"] = torch.zeros_like(weights[f"rnn.bias_ih_l{n}"])
    model = LSTM(len(SYMBOLS), weights["head.weight"].shape[1], len(layers), inputs=len(SYMBOLS))
    model.load_state_dict(weights)
    return model, Vocabulary("symbols", SYMBOLS, line_end="E")


if __name__ == "__main__":
    main(read, **ENDS)
