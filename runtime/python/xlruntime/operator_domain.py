"""The ONNX domain of custom operators such as LSHSort."""

from __future__ import annotations

__all__ = ["DOMAIN", "DOMAINS"]

DOMAIN = "ai.xlexport"
DOMAINS = {DOMAIN: 1}  # newest version of each domain that this runtime knows
