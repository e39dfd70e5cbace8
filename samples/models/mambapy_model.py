"""A Mamba of the package `mambapy`, unchanged: this file only names the parts of its caches.

    xlexport convert samples/models/mambapy_model.py:model --trust --tokenizer bytes -o bundle

Mamba is Algorithm 2 of Gu and Dao (2023, arXiv:2312.00752). The package (`pip install mambapy`) carries a state through
`step` only, which reads one token. So the bundle runs it for each token of a segment, by the operator `Scan`.
Parameters have the names of `mambapy.lm.LM`, so `--weights` takes its files.
"""

import torch
from mambapy.mamba import Mamba, MambaConfig, RMSNorm
from torch import Tensor, nn

__all__ = ["MambaPy", "model"]


class MambaPy(nn.Module):
    """A language model over V tokens; the state has each layer's SSM state and its convolution's newest inputs."""

    def __init__(self, config: MambaConfig, V: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, config.d_model)
        self.mamba = Mamba(config)
        self.norm_f = RMSNorm(config.d_model, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.d_model, V, bias=False)

    def first_state(self) -> dict[str, Tensor]:
        """Return the state before the first token: one row, without the batch axis."""
        E, N, K = self.mamba.config.d_inner, self.mamba.config.d_state, self.mamba.config.d_conv
        layers = range(self.mamba.config.n_layers)
        return {f"{name}_{n}": torch.zeros(E, size) for n in layers for name, size in (("ssm", N), ("inputs", K - 1))}

    def step(self, token: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Read a token (B,), and return the logits (B, V) and the new state."""
        caches = [(state[f"ssm_{n}"], state[f"inputs_{n}"]) for n in range(self.mamba.config.n_layers)]
        x, caches = self.mamba.step(self.embedding(token), caches)
        new = {}
        for n, (ssm, inputs) in enumerate(caches):
            new |= {f"ssm_{n}": ssm, f"inputs_{n}": inputs}
        return self.lm_head(self.norm_f(x)), new


def model() -> MambaPy:
    """Return the module that the command line converts: the same random weights each time."""
    torch.manual_seed(0)
    return MambaPy(MambaConfig(d_model=128, n_layers=2))
