"""Step models: PyTorch modules with a state over named tensors of numbers, such as the policy of a robot."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from xlexport.families.recurrent import RecurrentArchitecture
from xlexport.families.step import Step

if TYPE_CHECKING:
    from xlexport.families.describe import ModelDescription
    from xlexport.families.recurrent.horizon import Horizon

__all__ = ["ARCHITECTURE", "StepModelArchitecture"]


class StepModelArchitecture(RecurrentArchitecture):
    """All code that depends on a model being a module over numbers."""

    name = "step_model"
    title = "step model"

    def description(self) -> ModelDescription:
        """Return what people read about a model: its inputs and outputs."""
        from xlexport.families.step_model.describe import StepDescription

        return StepDescription()

    def check(self, model: Any, special: Collection[int]) -> Horizon:
        """Check a user's module.

        Raises:
            ExportError: the module breaks a rule of `StatefulModule`; the message names the first place.
        """
        from xlexport.families.step_model.checks import check_step_model

        return check_step_model(model, getattr(model.module, "max_positions", None))

    def build_step(self, model: Any) -> Step:
        """Return the step module."""
        from xlexport.families.step_model.step import RunStep

        return RunStep(model)


ARCHITECTURE = StepModelArchitecture()
