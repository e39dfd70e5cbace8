"""Write what transformers.js runs in `benchmarks.javascript`: a decoder of GPT-2's shape with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["GPT2", "Decoder", "write_decoder"]

GPT2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257}


class Block(nn.Module):
    """One layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, visible: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        B, S, D = x.shape
        q, k, v = (
            part.reshape(B, S, self.heads, -1).transpose(1, 2) for part in self.qkv(self.ln_1(x)).split(D, dim=2)
        )  # (B, heads, S, D / heads)
        k, v = torch.cat([key, k], dim=2), torch.cat([value, v], dim=2)
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        x = x + self.out(attended.transpose(1, 2).reshape(B, S, D))
        return x + self.down(functional.gelu(self.up(self.ln_2(x)), approximate="tanh")), k, v


class Decoder(nn.Module):
    """Tokens and the keys and values of past tokens in; logits and all keys and values out."""

    def __init__(self, config: dict[str, int]) -> None:
        super().__init__()
        width = config["n_embd"]
        self.tokens = nn.Embedding(config["vocab_size"], width)
        self.positions = nn.Embedding(config["n_positions"], width)
        self.blocks = nn.ModuleList(Block(width, config["n_head"]) for _ in range(config["n_layer"]))
        self.norm = nn.LayerNorm(width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        positions = attention_mask.cumsum(1) - 1
        queries = positions[:, past[0].shape[2] :]
        visible = (positions[:, None, :] <= queries[:, :, None])[:, None]
        x = self.tokens(input_ids) + self.positions(queries)
        present: list[Tensor] = []
        for block, key, value in zip(self.blocks, past[::2], past[1::2], strict=True):
            x, *carried = block(x, visible, key, value)
            present += carried
        return self.norm(x) @ self.tokens.weight.T, *present


def write_decoder(folder: Path, config: dict[str, int] = GPT2) -> None:
    """Write a decoder to a new folder, under the names that transformers.js expects."""
    torch.manual_seed(0)
    model = Decoder(config).eval()
    kinds = [f"{layer}.{kind}" for layer in range(config["n_layer"]) for kind in ("key", "value")]
    past = [torch.zeros(1, config["n_head"], 3, config["n_embd"] // config["n_head"]) for _ in kinds]
    lengths: dict[str, Any] = {f"past_key_values.{kind}": {2: "past"} for kind in kinds}
    (folder / "onnx").mkdir(parents=True)
    torch.onnx.export(
        model,
        (torch.zeros(1, 4, dtype=torch.int64), torch.ones(1, 7, dtype=torch.int64), *past),
        str(folder / "onnx/model.onnx"),
        input_names=["input_ids", "attention_mask", *lengths],
        output_names=["logits", *(f"present.{kind}" for kind in kinds)],
        dynamic_axes={"input_ids": {1: "tokens"}, "attention_mask": {1: "all"}, **lengths},
        dynamo=False,
        do_constant_folding=False,  # it would store the transposed embedding a second time
        opset_version=17,
    )
    count = sum(weight.numel() for weight in model.parameters())
    described = {**config, "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "parameters": count}
    (folder / "config.json").write_text(json.dumps(described), "utf-8")
    (folder / "generation_config.json").write_text("{}", "utf-8")
