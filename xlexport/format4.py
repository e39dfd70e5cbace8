"""Rewrite the manifest of a bundle of format 4, whose graphs and weights are those of format 5."""

from __future__ import annotations

import hashlib
import json
from math import inf
from typing import Any

from xlruntime.bundle import ENCODE, FORMAT, MANIFEST_LIMITS, POSITIONS
from xlruntime.errors import BundleFormatError
from xlruntime.limits import parse_json

__all__ = ["upgrade"]

OLD = 4
UNGROUPED = (
    "This Mamba-2 has groups. Bundles of format 4 normalise all of them together, but the trained model does so with "
    "each by itself: scores may be wrong by nats. Convert the checkpoint again."
)


def upgrade(raw: bytes) -> bytes:
    """Return a manifest of format 4 in the present format; another one as it is.

    Its fingerprint stays, which format 4 computed from all files but the tokenizer's: saved streams open.

    Raises:
        BundleFormatError: it is not JSON, or no manifest of format 4 although it says so.
    """
    fields = parse_json(raw, MANIFEST_LIMITS.budget("bundle.json", BundleFormatError), strict=True)
    if not isinstance(fields, dict) or fields.get("format") != OLD:
        return raw
    try:
        tokenizer = fields["tokenizer"]["file"]
        digests = {name: file["sha256"] for name, file in fields["files"].items() if name != tokenizer}
        lines = (f"{digests[name]}  {name}\n" for name in sorted(digests, key=str.encode))
        steps = _steps(fields["graphs"])
        config = fields["model"]["config"]
        if config.get("model") == "mamba2" and config["n_group"] > 1:
            fields["provenance"]["notes"].append(UNGROUPED)
    except (AttributeError, KeyError, TypeError) as error:
        raise BundleFormatError(
            "bundle.json: says format 4, but lacks its fields.", hint="Convert the checkpoint again."
        ) from error
    fields |= {
        "format": FORMAT,
        "steps": steps,
        "meaning": {},
        "fingerprint": hashlib.sha256("".join(lines).encode()).hexdigest(),
    }
    return json.dumps(fields, indent=1).encode()


def _steps(graphs: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the graphs of each purpose in the order of preference of format 4, and take their fields about it."""
    steps: dict[str, list[tuple[float, int, dict[str, Any]]]] = {}
    for name, graph in graphs.items():
        original, most = graph.pop("variant_of"), graph.pop("max_segment")
        if name not in (POSITIONS, ENCODE):
            choice = {"graph": name, "max_segment": most, "kernels": [], "device": None}
            steps.setdefault(original or name, []).append((most or inf, -graph["fixed"].get("segment", 0), choice))
    return {purpose: [choice for *_, choice in sorted(all, key=lambda e: e[:2])] for purpose, all in steps.items()}
