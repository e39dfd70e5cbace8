"""Bundles as models of lm-evaluation-harness (the extra `lm-eval`)."""

from xlexport.extras import disable_telemetry

__all__: list[str] = []

disable_telemetry()  # before `xlexport.harness.model` imports the harness
