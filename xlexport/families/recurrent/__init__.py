"""Any recurrent language model: a PyTorch module that maps tokens and a state to logits and the next state."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport.families.base import Architecture, tensors_in_float64
from xlexport.families.step import FixedSizes, Step

if TYPE_CHECKING:
    from xlexport.families.recurrent.eager import RecurrentEager
    from xlexport.families.recurrent.horizon import Horizon
    from xlruntime.evaluation import EvaluationRules

__all__ = ["ARCHITECTURE", "RecurrentArchitecture"]

TITLES = {
    "falcon_mamba": "Falcon-Mamba",
    "lstm": "LSTM",
    "mamba": "Mamba",
    "mamba2": "Mamba-2",
    "rwkv": "RWKV-4",
    "rwkv7": "RWKV-7",
}
PROBED = 16  # ids that show which others a model calls impossible


class RecurrentArchitecture(Architecture):
    """All code that depends on a model being a module with a state."""

    name = "recurrent"
    title = "recurrent model"
    further_lengths = (1, 3, 300)  # torch may keep what code decided by the example's length: a branch, or chunks

    def title_of(self, config: Mapping[str, Any]) -> str:
        """Return the name of the family, or that of the user's class after the title."""
        model = config.get("model", "")
        return TITLES.get(model, f"{self.title} {model}".rstrip())

    def evaluation(self, config: Mapping[str, Any]) -> EvaluationRules:
        """Declare the length of a segment, and of a document if the module limits it; a state needs no settings."""
        from xlruntime.evaluation import EvaluationRules

        limit = config.get("max_positions")
        return EvaluationRules(segment_len=min(config["tgt_len"], limit or config["tgt_len"]), max_positions=limit)

    def check(self, model: RecurrentEager, special: Collection[int]) -> Horizon | None:
        """Check a user's module. Our own tests check the families.

        Raises:
            ExportError: the module breaks a rule of `RecurrentModel`; the message names the first place.
        """
        from xlexport.families.recurrent.checks import check_module

        if type(model.module).__module__.startswith(f"{__name__}."):
            return None
        limit = model.config.to_dict().get("max_positions")
        return check_module(model.module, model.config.n_token, special, limit)

    def build_fixed_step(self, model: RecurrentEager, fixed: FixedSizes) -> Step:
        """Return the step module, whose sizes the example has."""
        step = self.build_step(model)
        step.fixed = fixed
        return step

    def build_step(self, model: RecurrentEager) -> Step:
        """Return the step module."""
        from xlexport.families.recurrent.step import RecurrentStep

        return RecurrentStep(model)

    def in_float64(self, model: RecurrentEager) -> RecurrentEager:
        """Return a copy in float64, also of a user's module that `copy.deepcopy` alone cannot copy."""
        from xlexport.families.recurrent.own_copy import own_copy

        exact: RecurrentEager = own_copy(model, tensors_in_float64(model))
        return exact

    def possible_ids(self, model: RecurrentEager) -> npt.NDArray[np.int64]:
        """Return the ids whose logits are not -inf after any of the first ids; all ids if there are none."""
        import torch

        with torch.inference_mode():
            logits, _ = model(torch.arange(min(PROBED, model.config.n_token))[None])
        possible = (logits[0] > -math.inf).any(dim=0)
        return np.flatnonzero(possible if bool(possible.any()) else ~possible)


ARCHITECTURE = RecurrentArchitecture()
