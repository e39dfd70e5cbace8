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

Forward = Callable[[Tensor], Tensor]
TOKENS = 330  # five windows of 64 tokens, and some


def torch_rnn(model: Any) -> Forward:
    return lambda ids: model.head(model.rnn(model.embedding(ids))[0])


def mambapy(model: Any) -> Forward:
    return lambda ids: model.lm_head(model.norm_f(model.mamba(model.embedding(ids))))


def mistral(model: Any) -> Forward:
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=64,
        rms_norm_eps=1e-5,
        attn_implementation="eager",
    )
    oracle = with_weights(MistralForCausalLM(config), model.state_dict())
    return lambda ids: oracle(ids).logits


def xlstm(model: Any) -> Forward:
    from transformers import xLSTMConfig, xLSTMForCausalLM

    # Its own chunks fail in this version, so a chunk is longer than the document: then it goes token by token.
    config = xLSTMConfig(vocab_size=256, hidden_size=128, num_hidden_layers=2, num_heads=4, chunk_size=2 * TOKENS)
    oracle = with_weights(xLSTMForCausalLM(config), model.state_dict())
    return lambda ids: oracle(ids).logits


def qwen3_next(model: Any) -> Forward:
    from transformers.models.qwen3_next import modeling_qwen3_next as library

    sizes = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    widths = {"linear_key_head_dim": 32, "linear_value_head_dim": 32}
    config = library.Qwen3NextConfig(hidden_size=128, **sizes, **widths)
    layers = [with_weights(library.Qwen3NextGatedDeltaNet(config, 0), layer.state_dict()) for layer in model.layers]
    return residual_stack(model, layers)


def recurrent_gemma(model: Any) -> Forward:
    from transformers.models.recurrent_gemma import modeling_recurrent_gemma as library

    sizes = {"hidden_size": 128, "lru_width": 128, "num_key_value_heads": 1, "attention_window_size": 64}

    def recurrent(layer: nn.Module) -> Forward:
        config = library.RecurrentGemmaConfig(**sizes, num_attention_heads=1)  # gates of one block
        names = {"conv.": "conv_1d.", "decay_gate.": "rg_lru.recurrent_gate_", "input_gate.": "rg_lru.input_gate_"}
        weights = {}
        for name, value in layer.state_dict().items():
            if "_gate" in name:
                value = value.t()[None]  # noqa: PLW2901
            for own, other in names.items():
                name = name.replace(own, other)  # noqa: PLW2901
            weights["rg_lru.recurrent_param" if name == "decay" else name] = value
        oracle = with_weights(library.RecurrentGemmaRecurrentBlock(config), weights)
        return lambda x: oracle(x, torch.arange(x.shape[1]).expand(x.shape[:2]), None, None, use_cache=False)

    def attention(layer: nn.Module) -> Forward:
        """Fill the library's window at once, and then read token by token: only so does it forget."""
        oracle = with_weights(
            library.RecurrentGemmaSdpaAttention(library.RecurrentGemmaConfig(**sizes, num_attention_heads=4)),
            layer.state_dict(),
        )

        def forward(x: Tensor) -> Tensor:
            oracle._setup_cache(len(x), x.device)
            mask = torch.full((64, 64), -torch.inf).triu(diagonal=1)[None, None]
            places = torch.arange(x.shape[1]).split([64] + [1] * (x.shape[1] - 64))
            parts = [oracle(x[:, at], at[None], mask if len(at) > 1 else None, at, use_cache=True) for at in places]
            return torch.cat(parts, dim=1)

        return forward

    return residual_stack(
        model, [(recurrent if hasattr(layer, "conv") else attention)(layer) for layer in model.layers]
    )


def with_weights(oracle: Any, weights: Mapping[str, Tensor]) -> Any:
    oracle.load_state_dict(weights)
    return oracle.eval()


def residual_stack(model: Any, layers: list[Any]) -> Forward:
    """Return the forward of a library's layers between the model's own embedding, norms and head."""
    norms = [*model.norms, getattr(model, "norm", None)][: len(layers) + 1]

    def forward(ids: Tensor) -> Tensor:
        x = model.embedding(ids)
        for norm, layer in zip(norms, layers, strict=False):
            x = x + layer(norm(x))
        return model.head(norms[-1](x))

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
    """Make a model whose predictions differ: those of its first weights are almost uniform, which hides errors."""
    model = runpy.run_path(str(ROOT / "samples/models" / f"{name}.py"))["model"]().eval()
    for key, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data *= 1.5
        if "emb" in key:
            parameter.data = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return model


def read(model: Any, ids: Tensor, S: int) -> Tensor:
    """Return the log-probabilities (B, T, V), read in segments of S tokens; single tokens by `step` if there is one."""
    state = {name: value.expand(len(ids), *value.shape) for name, value in model.first_state().items()}
    parts = []
    for tokens in ids.split(S, dim=1):
        if hasattr(model, "segment") and not (S == 1 and hasattr(model, "step")):
            logits, state = model.segment(tokens, state)
            parts.append(logits)
            continue
        for token in tokens.unbind(dim=1):
            logits, state = model.step(token, state)
            parts.append(logits[:, None])
    return torch.cat(parts, dim=1).log_softmax(dim=2)


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "samples/models").glob("*.py")))
@torch.no_grad()
def test_sample_model_against_its_library(name: str) -> None:
    package, oracle = ORACLES[name]
    pytest.importorskip(package)
    model = sample(name)
    ids = torch.randint(256, (2, TOKENS), generator=torch.Generator().manual_seed(2))
    wanted = oracle(model)(ids).log_softmax(dim=2)
    for S in (1, 7, 64, 300):
        difference = (read(model, ids, S) - wanted).abs().max()
        assert difference <= LOG_PROB_TOLERANCE, f"segments of {S} tokens: {difference:.1e} nats"
