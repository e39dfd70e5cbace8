"""Bundles as models of lm-evaluation-harness (the extra `lm-eval`)."""

__all__: list[str] = []
