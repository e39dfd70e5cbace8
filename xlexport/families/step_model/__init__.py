"""Step models: PyTorch modules with a state over named tensors of numbers, such as the policy of a robot."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from xlexport.families.base import Architecture, tensors_in_float64
from xlexport.families.step import FixedSizes, Step

if TYPE_CHECKING:
    from xlexport.families.describe import ModelDescription
    from xlexport.families.recurrent.horizon import Horizon
    from xlexport.families.step_model.eager import StepEager
    from xlruntime.evaluation import EvaluationRules

__all__ = ["ARCHITECTURE", "StepModelArchitecture"]


class StepModelArchitecture(Architecture):
    """All code that depends on a model being a module over numbers."""

    name = "step_model"
    title = "step model"

    def title_of(self, config: Mapping[str, Any]) -> str:
        """Return the title, and the name of the user's class."""
        return f"{self.title} {config.get('model', '')}".rstrip()

    def description(self) -> ModelDescription:
        """Return what people read about a model: its inputs and outputs."""
        from xlexport.families.step_model.describe import StepDescription

        return StepDescription()

    def evaluation(self, config: Mapping[str, Any]) -> EvaluationRules:
        """Declare the steps of a segment, and of a series if the module limits it; a state needs no settings."""
        from xlruntime.evaluation import EvaluationRules

        limit = config.get("max_positions")
        return EvaluationRules(segment_len=min(config["tgt_len"], limit or config["tgt_len"]), max_positions=limit)

    def check(self, model: StepEager, special: Collection[int]) -> Horizon:
        """Check a user's module.

        Raises:
            ExportError: the module breaks a rule of `StatefulModule`; the message names the first place.
        """
        from xlexport.families.step_model.checks import check_step_model

        return check_step_model(model, getattr(model.module, "max_positions", None))

    def build_fixed_step(self, model: StepEager, fixed: FixedSizes) -> Step:
        """Return the step module, whose sizes the example has."""
        step = self.build_step(model)
        step.fixed = fixed
        return step

    def build_step(self, model: StepEager) -> Step:
        """Return the step module."""
        from xlexport.families.step_model.step import RunStep

        return RunStep(model)

    def in_float64(self, model: StepEager) -> StepEager:
        """Return a copy in float64, also of a user's module that `copy.deepcopy` alone cannot copy."""
        from xlexport.families.recurrent.own_copy import own_copy

        exact: StepEager = own_copy(model, tensors_in_float64(model))
        return exact


ARCHITECTURE = StepModelArchitecture()
