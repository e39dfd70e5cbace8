"""A gated recurrence that only this file knows: it trains, converts, verifies, scores and is measured.

It has no memory of rows, no positions and no walk of its own: all but the model and its step is the default of
`Architecture` and `LanguageModel`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import xlruntime
import xltraining.architectures
from xlexport import checkpoints
from xlexport.architectures import Architecture, Form, Step, register, traced_outputs, unregister
from xlexport.architectures.detail import TOP_K, describe
from xlexport.bench import bench
from xlexport.convert import ConversionOptions, convert
from xlexport.errors import ParityError
from xlexport.verification import verify
from xlruntime import spec
from xltraining.language_model import LanguageModel, ModelConfig
from xltraining.train import TrainingConfig, train

TEXT = b"It was the best of times, it was the worst of times. " * 12


@dataclass(frozen=True)
class GatedConfig(ModelConfig):
    """Sizes of the recurrence."""

    NAME: ClassVar[str] = "Gated"

    n_token: int = 256
    d_model: int = 12
    tgt_len: int = 7


class Gated(LanguageModel):
    """h_t = g_t h_{t-1} + (1 - g_t) v_t, with gates and values of the token alone."""

    def __init__(self, config: GatedConfig) -> None:
        super().__init__()
        self.config = config
        self.word_emb = nn.Embedding(config.n_token, config.d_model)
        self.gate = nn.Linear(config.d_model, 2 * config.d_model)
        self.head = nn.Linear(config.d_model, config.n_token)

    def first_memory(self, batch_size: int) -> dict[str, Tensor]:
        """A state of zeros, (B, 1, 1, D)."""
        return {"memory_state": torch.zeros(batch_size, 1, 1, self.config.d_model)}

    def forward(self, tokens: Tensor, memory: dict[str, Tensor] | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Run one segment without a loop: what is left of each input at each later place, by sums of logarithms."""
        state = (self.first_memory(len(tokens)) if memory is None else memory)["memory_state"][:, 0]  # (B, 1, D)
        gates, values = self.gate(self.word_emb(tokens)).chunk(2, dim=-1)
        kept = gates.sigmoid().log().cumsum(dim=1)  # (B, S, D)
        steps = torch.arange(tokens.shape[1])
        seen = (steps.unsqueeze(1) >= steps).unsqueeze(2)  # (S, S, 1)
        left = torch.where(seen, kept.unsqueeze(2) - kept.unsqueeze(1), -torch.inf).exp()  # (B, S, S, D)
        hidden = kept.exp() * state + (left * ((1 - gates.sigmoid()) * values.tanh()).unsqueeze(1)).sum(dim=2)
        return hidden, {"memory_state": hidden[:, None, -1:].detach()}

    def logits(self, hidden: Tensor) -> Tensor:
        """(B, S, V)."""
        logits: Tensor = self.head(hidden)
        return logits


class GatedStep(nn.Module):
    """The step module: the model's own forward pass, with the state as a tensor of its own."""

    traceable = False
    forms: ClassVar[Mapping[str, Form]] = {}

    def __init__(self, model: Gated) -> None:
        super().__init__()
        self.model, config = model, model.config
        tokens, top = ("batch", "segment"), ("batch", "segment", min(TOP_K, config.n_token))
        shape = ("batch", 1, 1, config.d_model)
        self.memory = (spec.Memory("memory_state", "new_memory_state", "float32", shape, layout="recent"),)
        carried = spec.Tensor("new_memory_state", "float32", shape)
        log_prob = spec.Tensor("log_prob", "float32", tokens)
        self.inputs = (
            spec.Tensor("targets", "int64", tokens),
            spec.Tensor("tokens", "int64", tokens),
            spec.Tensor("memory_state", "float32", shape),
        )
        described = (
            spec.Tensor("rank", "int64", tokens),
            spec.Tensor("entropy", "float32", tokens),
            spec.Tensor("top_ids", "int64", top),
            spec.Tensor("top_log_probs", "float32", top),
        )
        self.purposes = {
            "score": (log_prob, carried),
            "generate": (spec.Tensor("logits", "float32", ("batch", config.n_token)), carried),
            "detail": (log_prob, *described, carried),
        }

    def example(self) -> tuple[Tensor, ...]:
        """Inputs to trace with."""
        targets, tokens = torch.zeros(2, 2, 5, dtype=torch.int64)
        return targets, tokens, torch.zeros(2, 1, 1, self.model.config.d_model)

    def first_rows(self) -> Mapping[str, Tensor]:
        """None: a state begins with zeros."""
        return {}

    def discard(self) -> None:
        """Free all weights."""
        for parameter in self.parameters():
            parameter.data = torch.empty(0)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs of all purposes, each once."""
        targets, tokens, state = inputs
        hidden, memory = self.model(tokens, {"memory_state": state})
        log_probs = self.model.all_log_probs(hidden)
        made = describe([((0, self.model.config.n_token), (torch.zeros(1, 1), log_probs.flatten(0, 1)))], targets)
        made |= {"log_prob": log_probs.gather(2, targets.unsqueeze(2)).squeeze(2)}
        made |= {"logits": self.model.logits(hidden[:, -1]), "new_memory_state": memory["memory_state"]}
        return tuple(made[name] for name in traced_outputs(self))


class GatedArchitecture(Architecture):
    """The little that xlexport must know."""

    name, title = "gated", "gated recurrence"

    def evaluation(self, config: Mapping[str, Any]) -> spec.Evaluation:
        return spec.Evaluation(segment_len=config["tgt_len"], mem_len=1, clamp_len=-1, same_length=True)

    def build_step(self, model: Any, choices: Mapping[str, Any]) -> Step:
        return GatedStep(model)


@pytest.fixture
def gated() -> Iterator[None]:
    """The architecture, registered in both packages."""
    register(GatedArchitecture())
    xltraining.architectures.register("gated", GatedConfig, Gated)
    yield
    unregister("gated")
    xltraining.architectures.unregister("gated")


def test_it_trains_converts_verifies_and_scores(gated: None, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(TEXT)
    training = TrainingConfig(steps=2, batch_size=2, threads=1, warmup_steps=1)
    trained = train(GatedConfig(), training, [tmp_path / "text"], [], tmp_path / "run")
    source = checkpoints.load(trained.checkpoint)
    assert (source.architecture, source.parameters) == ("gated", 256 * 12 + 12 * 24 + 24 + 12 * 256 + 256)
    report = convert(source, tmp_path / "bundle", ConversionOptions(threads=1, verify_segments=6))
    assert (report.segments, report.detail_segments, report.top1_agreement) == (6, 6, 1.0)
    assert 0 < report.max_abs_log_prob_diff < 1e-5
    assert 0 < report.max_abs_memory_diff < 1e-5

    model = xlruntime.load(tmp_path / "bundle", threads=1)
    ids = torch.tensor(list(TEXT))[None]
    eager = source.build_model()
    with torch.inference_mode():
        nats = -float(eager.log_probs(eager(ids[:, :-1])[0], ids[:, 1:]).sum())  # the whole text at once
    (score,) = model.score([TEXT])
    assert score.nats == pytest.approx(nats, rel=1e-5)

    with torch.no_grad():
        eager.get_parameter("gate.weight").add_(0.01)
    with pytest.raises(ParityError, match="the graphs differ from the trained model"):
        verify(model, lambda: eager, ids[0].numpy(), segments=3).require_passed()
    measured = bench(tmp_path / "bundle", against=trained.checkpoint, threads=1, repeats=1, rounds=1)
    assert measured.flops_per_segment is None
    assert measured.speedup is not None
