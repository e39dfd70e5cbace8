"""What encodings of absolute places share: attention by content alone, and parts of `tgt_len` tokens.

A document is read in parts of `tgt_len` tokens, the segments of training. A token sees only its own part, and its place
is counted from the part's beginning. Within a part, the model may read any number of tokens at a time: memory holds the
part's earlier tokens, and its length is the place of the next one.
"""

import torch
from torch import Tensor, nn

from xltraining.transformer_xl.config import TransformerXLConfig
from xltraining.transformer_xl.encodings.attention import Attention

__all__ = ["AttentionByContent"]


class AttentionByContent(Attention):
    """Attention with scores q_i . k_j / sqrt(h), of inputs that hold their places.

    Under `pre_lnorm` keys and values come from normalised inputs, but queries from inputs before normalisation, as in
    the authors' code for absolute places.
    """

    def _add_projections(self, config: TransformerXLConfig) -> None:
        width = config.n_head * config.d_head
        self.query = nn.Linear(config.d_model, width, bias=False)
        self.key_value = nn.Linear(config.d_model, 2 * width, bias=False)

    def project(self, hidden: Tensor, normed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value; see `Attention.project`."""
        (B, S, _), K, H, h = hidden.shape, normed.shape[1], self.n_head, self.d_head
        key, value = self.key_value(normed).view(B, K, 2, H, h).permute(2, 0, 3, 1, 4)  # 2 x (B,H,K,h)
        return self.query(hidden).view(B, S, H, h), key, value

    def scores(self, query: Tensor, key: Tensor, shared: Tensor | None) -> Tensor:
        """Return the scores (B*H,S,K); see `Attention.scores`."""
        scaled = (query * self.d_head**-0.5).transpose(1, 2).flatten(0, 1)  # (B*H,S,h)
        return torch.bmm(scaled, key.flatten(0, 1).transpose(1, 2))
