"""Dropout with a mask for every number, for a whole segment (variational), or for a word."""

from torch import Tensor, nn

__all__ = ["LockedDropout", "WordDropout", "make_dropout"]


class LockedDropout(nn.Module):
    """Dropout with one mask for the whole segment (Gal and Ghahramani 2016, arXiv:1512.05287).

    The mask is drawn once along the last axis but one: for hidden states (B,S,D) the tokens, for attention weights
    (B*H,S,K) the queries. So a feature, or a key, is dropped for the whole segment. Merity et al. 2017
    (arXiv:1708.02182) use it for Penn Treebank, and Dai et al. 2019 for Table 5.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, values: Tensor) -> Tensor:
        """Return the values (…,S,D) with features dropped, and the others scaled by 1 / (1 - p)."""
        if not self.training or not self.p:
            return values
        *lead, _, width = values.shape
        return values * _mask(values, [*lead, 1, width], self.p)


class WordDropout(nn.Module):
    """Dropout of words: all places of a dropped word in the batch get a zero embedding.

    Sources: Gal and Ghahramani 2016 (arXiv:1512.05287), embedding dropout of Merity et al. 2017 (arXiv:1708.02182).
    """

    def __init__(self, p: float, n_token: int) -> None:
        super().__init__()
        self.p, self.n_token = p, n_token

    def forward(self, embedded: Tensor, tokens: Tensor) -> Tensor:
        """Return the embeddings (B,S,D) of tokens (B,S) without dropped words, scaled by 1 / (1 - p)."""
        if not self.training or not self.p:
            return embedded
        return embedded * _mask(embedded, [self.n_token, 1], self.p)[tokens]


def make_dropout(p: float, variational: bool) -> nn.Module:
    """Make plain dropout (Srivastava et al. 2014), or `LockedDropout` if `variational`."""
    return LockedDropout(p) if variational else nn.Dropout(p)


def _mask(like: Tensor, shape: list[int], p: float) -> Tensor:
    return like.new_empty(shape).bernoulli_(1 - p).div_(1 - p)
