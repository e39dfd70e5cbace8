"""Other code bases' Reformers as oracles: Hugging Face's, and lucidrains' reformer-pytorch.

Hashing is discontinuous: if two buckets are almost equally good, rounding decides, with large effects. So an oracle
returns the buckets that it chose, and accepts other buckets.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from reformer_pytorch import ReformerLM
from torch import Tensor
from transformers import ReformerConfig, ReformerModelWithLMHead

from tests.oracles.reformer_configurations import ReformerCase
from xltraining.reformer import Reformer

Buckets = list[Tensor | None]  # of each layer (B, H, R, T) int64; None without hashing

SEED = 11  # of hash rotations


class ReformerOracle(Protocol):
    """The interface of both oracles."""

    n_token: int

    def save(self, folder: Path) -> Path:
        """Write the checkpoint in the form of its users."""

    @property
    def config(self) -> dict[str, Any] | None:
        """The further configuration that is needed to read it."""

    def run(self, tokens: Tensor, buckets: Buckets | None = None) -> tuple[Tensor, Buckets]:
        """Return logits (B, T, V) of tokens (B, T), and the buckets that it would choose without the given ones."""


def assert_computes(model: Reformer, oracle: ReformerOracle, T: int) -> None:
    """Assert that a model computes the oracle's logits for two documents of T tokens, in the oracle's buckets."""
    tokens = torch.randint(oracle.n_token, (2, T), generator=torch.Generator().manual_seed(1))
    wanted, buckets = oracle.run(tokens)
    with torch.no_grad():
        found = model.logits(model(tokens, buckets=buckets)[0])
    assert (found - wanted).abs().max() <= 1e-4  # float32 sums in another order


@torch.no_grad()
def _fill(model: torch.nn.Module, seed: int) -> None:
    """Fill all weights with random numbers of a scale at which all have an effect."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        is_matrix = parameter.dim() == 2 and "emb" not in name
        scale = parameter.shape[1] ** -0.5 if is_matrix else 0.5 if parameter.dim() > 1 else 0.3
        if name.endswith(("query_key.weight", "query.weight", "toqk.weight")):
            scale *= 3  # otherwise attention would be uniform
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
        if "norm" in name and name.endswith("weight"):
            parameter.add_(1)


class HuggingFaceReformer:
    """Hugging Face's `ReformerModelWithLMHead` with random weights."""

    def __init__(self, case: ReformerCase, seed: int = 0) -> None:
        settings = {
            "vocab_size": 50,
            "hidden_size": 32,
            "num_attention_heads": 2,
            "attention_head_size": 8,
            "feed_forward_size": 48,
            "lsh_attn_chunk_length": 16,
            "local_attn_chunk_length": 8,
            "num_buckets": 8,
            "axial_pos_shape": [32, 64],
            "axial_pos_embds_dim": [8, 24],
            "max_position_embeddings": 2048,
            "hash_seed": SEED,
            "is_decoder": True,
            **case.settings,
        }
        self.model: Any = ReformerModelWithLMHead(ReformerConfig(**settings)).eval()
        self.n_token: int = settings["vocab_size"]
        _fill(self.model, seed)

    config = None

    def save(self, folder: Path) -> Path:
        self.model.save_pretrained(folder)
        return folder

    @torch.no_grad()
    def run(self, tokens: Tensor, buckets: Buckets | None = None) -> tuple[Tensor, Buckets]:
        layers = self.model.reformer.encoder.layers
        chosen: Buckets = [None] * len(layers)
        with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng(devices=[]):
            for index, layer in enumerate(layers):
                attention = layer.attention.self_attention
                if hasattr(attention, "_hash_vectors"):
                    hashing = self._hashing(attention._hash_vectors, tokens.shape[1], chosen, index, buckets)
                    patch.setattr(attention, "_hash_vectors", hashing)
            logits = self.model(tokens, attention_mask=torch.ones_like(tokens), use_cache=False).logits
        return logits, chosen

    def _hashing(
        self, original: Callable[..., Tensor], T: int, chosen: Buckets, index: int, given: Buckets | None
    ) -> Callable[..., Tensor]:
        factors = self.model.config.num_buckets
        count = factors if isinstance(factors, int) else math.prod(factors)

        def hashing(vectors: Tensor, num_hashes: int, mask: Tensor, **settings: Any) -> Tensor:
            B, H, length, _ = vectors.shape
            offsets = torch.arange(num_hashes).view(-1, 1) * (count + (length > T))  # one bucket more for padding
            ids = original(vectors, num_hashes, mask, **settings).view(B, H, num_hashes, length) - offsets
            chosen[index] = ids[..., :T].clone()
            forced = None if given is None else given[index]
            if forced is not None:
                ids[..., :T] = forced
            return (ids + offsets).flatten(2)

        return hashing


class PyTorchReformer:
    """The `ReformerLM` of reformer-pytorch with random weights."""

    def __init__(self, case: ReformerCase, seed: int = 0) -> None:
        self.settings: dict[str, Any] = {
            "num_tokens": 50,
            "dim": 32,
            "depth": 3,
            "heads": 2,
            "dim_head": 8,
            "bucket_size": 16,
            "n_hashes": 2,
            "causal": True,
            **case.settings,
        }
        self.model: Any = ReformerLM(**self.settings).eval()
        self.n_token: int = self.settings["num_tokens"]
        _fill(self.model, seed)

    @property
    def config(self) -> dict[str, Any]:
        return {**json.loads(json.dumps(self.settings)), "hash_seed": SEED}

    def save(self, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        torch.save(self.model.state_dict(), folder / "model.pt")
        return folder / "model.pt"

    @torch.no_grad()
    def run(self, tokens: Tensor, buckets: Buckets | None = None) -> tuple[Tensor, Buckets]:
        blocks = self.model.reformer.layers.blocks
        chosen: Buckets = [None] * len(blocks)
        with pytest.MonkeyPatch.context() as patch, self._seeded():
            layers = itertools.count()  # they run in order; with weight_tie they are one module
            for attention in {id(block.f.net.fn.lsh_attn): block.f.net.fn.lsh_attn for block in blocks}.values():
                hashing = self._hashing(attention.hash_vectors, len(tokens), chosen, layers, buckets)
                patch.setattr(attention, "hash_vectors", hashing)
            return self.model(tokens), chosen

    @contextlib.contextmanager
    def _seeded(self) -> Iterator[None]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            yield

    def _hashing(
        self, original: Callable[..., Tensor], B: int, chosen: Buckets, layers: Iterator[int], given: Buckets | None
    ) -> Callable[..., Tensor]:
        def hashing(n_buckets: int, vectors: Tensor, **settings: Any) -> Tensor:
            index = next(layers)
            H, T = len(vectors) // B, vectors.shape[1]
            found = original(n_buckets, vectors, **settings).view(B, H, -1, T)
            offsets = torch.arange(found.shape[2]).view(-1, 1) * n_buckets
            chosen[index] = found - offsets
            forced = None if given is None else given[index]
            return (found if forced is None else forced + offsets).view(B * H, -1)

        return hashing
