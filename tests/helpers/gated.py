"""A gated recurrence, as in RWKV and Mamba, that no file of the packages knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from xlexport.architectures import Architecture, Step, traced_outputs
from xlexport.architectures.step import carried_inputs, carried_outputs
from xlexport.architectures.step_module import TARGETS, TOKENS, StepModule, describe_softmax, purposes_of
from xlruntime.bundle import MemoryEntry
from xlruntime.evaluation import EvaluationRules
from xltraining.config_fields import ModelConfig
from xltraining.language_model import LanguageModel

__all__ = ["ARCHITECTURE", "Gated", "GatedArchitecture", "GatedConfig"]


@dataclass(frozen=True)
class GatedConfig(ModelConfig):
    """Sizes of the recurrence."""

    NAME: ClassVar[str] = "Gated"
    n_token: int = 256
    d_model: int = 12
    tgt_len: int = 7


class Gated(LanguageModel):
    """h_t = g_t h_{t-1} + (1 - g_t) v_t, with gates and values that depend only on the token."""

    def __init__(self, config: GatedConfig) -> None:
        super().__init__()
        self.config = config
        self.word_emb = nn.Embedding(config.n_token, config.d_model)
        self.gate = nn.Linear(config.d_model, 2 * config.d_model)
        self.head = nn.Linear(config.d_model, config.n_token)

    def first_memory(self, batch_size: int) -> dict[str, Tensor]:
        return {"state": torch.zeros(batch_size, self.config.d_model)}

    def forward(self, tokens: Tensor, memory: dict[str, Tensor] | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Run one segment without a loop: sums of logarithms give the rest of each input at each later place."""
        state = (memory or self.first_memory(len(tokens)))["state"][:, None]  # (B, 1, D)
        gates, values = self.gate(self.word_emb(tokens)).chunk(2, dim=-1)
        kept = gates.sigmoid().log().cumsum(dim=1)  # (B, S, D)
        steps = torch.arange(tokens.shape[1])
        seen = (steps.unsqueeze(1) >= steps).unsqueeze(2)  # (S, S, 1)
        left = torch.where(seen, kept.unsqueeze(2) - kept.unsqueeze(1), -torch.inf).exp()  # (B, S, S, D)
        hidden = kept.exp() * state + (left * ((1 - gates.sigmoid()) * values.tanh()).unsqueeze(1)).sum(dim=2)
        return hidden, {"state": hidden[:, -1].detach()}

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.head(hidden)
        return logits


class GatedStep(StepModule):
    """The model's own forward pass, with the state as a tensor that each step returns."""

    traceable = False

    def __init__(self, model: Gated) -> None:
        super().__init__()
        self.model = model
        shape = ("batch", model.config.d_model)
        self.memory = (MemoryEntry("state", "new_state", "float32", shape, layout="state"),)
        self.inputs = (TARGETS, TOKENS, *carried_inputs(self.memory))
        self.purposes = purposes_of(model.config.n_token, carried_outputs(self.memory))

    def example(self) -> tuple[Tensor, ...]:
        targets, tokens = torch.zeros(2, 2, 5, dtype=torch.int64)
        return targets, tokens, torch.zeros(2, self.model.config.d_model)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        targets, tokens, state = inputs
        hidden, memory = self.model(tokens, {"state": state})
        log_probs = self.model.all_log_probs(hidden)
        outputs = describe_softmax(log_probs, targets, self.model.config.n_token)
        outputs |= {"log_prob": log_probs.gather(2, targets.unsqueeze(2)).squeeze(2)}
        outputs |= {"logits": self.model.logits(hidden[:, -1]), "new_state": memory["state"]}
        return tuple(outputs[name] for name in traced_outputs(self))


class GatedArchitecture(Architecture):
    """The required parts of an architecture for xlexport."""

    name, title = "gated", "gated recurrence"

    def evaluation(self, config: Mapping[str, Any]) -> EvaluationRules:
        return EvaluationRules(segment_len=config["tgt_len"])

    def build_step(self, model: Any, choices: Mapping[str, Any]) -> Step:
        return GatedStep(model)


ARCHITECTURE = GatedArchitecture()
