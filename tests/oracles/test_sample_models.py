"""The modules of `samples/models` against the libraries whose layers they compute, over whole documents."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.paths import ROOT
from tests.oracles.comparison import LOG_PROB_TOLERANCE
from xlexport.families.recurrent.eager import RecurrentConfig, RecurrentEager

Forward = Callable[[Tensor], Tensor]
MODELS = ROOT / "samples/models"
TOKENS, WINDOW = 330, 64
SIZES: dict[str, Any] = {"vocab_size": 256, "hidden_size": 128, "num_hidden_layers": 2}


def torch_rnn(model: Any) -> Forward:
    return lambda ids: model.head(model.rnn(model.embedding(ids))[0])


def mambapy(model: Any) -> Forward:
    return lambda ids: model.lm_head(model.norm_f(model.mamba(model.embedding(ids))))


def mistral(model: Any) -> Forward:
    from transformers import MistralConfig, MistralForCausalLM

    widths = {"intermediate_size": 384, "sliding_window": WINDOW, "rms_norm_eps": 1e-5}
    config = MistralConfig(**SIZES, **widths, num_attention_heads=4, num_key_value_heads=2)
    oracle = with_weights(MistralForCausalLM(config), model.state_dict())
    return lambda ids: oracle(ids).logits


def xlstm(model: Any) -> Forward:
    from transformers.models.xlstm import configuration_xlstm, modeling_xlstm

    # In this version chunks fail. A chunk longer than the document makes the library read token by token.
    config = configuration_xlstm.xLSTMConfig(**SIZES, num_heads=4, chunk_size=2 * TOKENS)
    oracle = with_weights(modeling_xlstm.xLSTMForCausalLM(config), model.state_dict())
    return lambda ids: oracle(ids).logits


def qwen3_next(model: Any) -> Forward:
    from transformers import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    config = Qwen3NextConfig(**SIZES, **heads, linear_key_head_dim=32, linear_value_head_dim=32)
    layers = (with_weights(Qwen3NextGatedDeltaNet(config, 0), layer.state_dict()) for layer in model.layers)
    return between_head_and_embedding(model, *layers)


def recurrent_gemma(model: Any) -> Forward:
    return between_head_and_embedding(model, rg_lru(model.layers[0]), rg_lru(model.layers[1]), window(model.layers[2]))


def rg_lru(layer: nn.Module) -> Forward:
    from transformers import RecurrentGemmaConfig
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

    own = layer.state_dict()
    weights = {name: value for name, value in own.items() if name.startswith(("linear_", "conv_1d."))}
    weights["rg_lru.recurrent_param"] = own["decay"]
    for name, other in (("input_gate", "input_gate"), ("decay_gate", "recurrent_gate")):
        weights[f"rg_lru.{other}_weight"] = own[f"{name}.weight"].t()[None]  # one block for all heads
        weights[f"rg_lru.{other}_bias"] = own[f"{name}.bias"][None]
    config = RecurrentGemmaConfig(**SIZES, lru_width=128, num_attention_heads=1)
    oracle = with_weights(RecurrentGemmaRecurrentBlock(config), weights)
    return lambda x: oracle(x, torch.arange(x.shape[1]).expand(x.shape[:2]), None, None, use_cache=False)


def window(layer: nn.Module) -> Forward:
    """Fill the library's window at once, and read the rest token by token: only so does it forget."""
    from transformers import RecurrentGemmaConfig
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaSdpaAttention

    config = RecurrentGemmaConfig(**SIZES, num_attention_heads=4, num_key_value_heads=1, attention_window_size=WINDOW)
    oracle = with_weights(RecurrentGemmaSdpaAttention(config), layer.state_dict())
    causal = torch.full((WINDOW, WINDOW), -torch.inf).triu(diagonal=1)[None, None]

    def forward(x: Tensor) -> Tensor:
        oracle._setup_cache(len(x), x.device)
        places = torch.arange(x.shape[1]).split([WINDOW] + [1] * (x.shape[1] - WINDOW))
        masks = [causal] + [None] * (len(places) - 1)
        parts = (oracle(x[:, at], at[None], mask, at, use_cache=True) for at, mask in zip(places, masks, strict=True))
        return torch.cat([*parts], dim=1)

    return forward


def with_weights(oracle: Any, weights: Mapping[str, Tensor]) -> Any:
    oracle.load_state_dict(weights)
    return oracle.eval()


def between_head_and_embedding(model: Any, *layers: Forward) -> Forward:
    """Return a library's layers between the embedding, norms and head of the model."""

    def forward(ids: Tensor) -> Tensor:
        x = model.embedding(ids)
        for norm, layer in zip(model.norms, layers, strict=False):
            x = x + layer(norm(x))
        return model.head(model.norms[-1](x))

    return forward


ORACLES: dict[str, tuple[str, Callable[[Any], Forward]]] = {
    "lstm": ("torch", torch_rnn),
    "gru": ("torch", torch_rnn),
    "gated_deltanet": ("transformers", qwen3_next),
    "xlstm": ("transformers", xlstm),
    "sliding_window": ("transformers", mistral),
    "hybrid": ("transformers", recurrent_gemma),
    "mambapy_model": ("mambapy", mambapy),
}


def sample(name: str) -> Any:
    """Make a model of a sample; larger weights than its own, with which predictions are almost uniform, show errors."""
    model = runpy.run_path(str(MODELS / f"{name}.py"))["model"]().eval()
    for key, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data *= 1.5
        if "emb" in key:
            parameter.data = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return model


POLICIES = "_policy"  # test_policies.py


@pytest.mark.parametrize("name", sorted(p.stem for p in MODELS.glob("*.py") if not p.stem.endswith(POLICIES)))
@torch.inference_mode()
@pytest.mark.full
def test_sample_model_against_its_library(name: str) -> None:
    package, oracle = ORACLES[name]
    pytest.importorskip(package)
    model = sample(name)
    ids = torch.randint(256, (2, TOKENS), generator=torch.Generator().manual_seed(2))
    wanted = oracle(model)(ids).log_softmax(dim=2)
    for S in (1, 7, 64, 300):
        form = "segment" if hasattr(model, "segment") else "step"
        eager = RecurrentEager(model, RecurrentConfig(256, S, name, form))
        state, parts = eager.first_memory(len(ids)), []
        for tokens in ids.split(S, dim=1):
            logits, state = eager(tokens, state)
            parts.append(logits)
        difference = (torch.cat(parts, dim=1).log_softmax(dim=2) - wanted).abs().max()
        assert difference <= LOG_PROB_TOLERANCE, f"segments of {S} tokens: {difference:.1e} nats"
