"""Check with `strict_device` that the device computes everything in every graph except sizes of tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.gpu.bundles import FLOAT16, TEXT_MODEL, bundle_of, shapes_of
from tests.gpu.parts import PartError, Record, Settings
from tests.helpers.paths import GOLDEN
from xlruntime import load
from xlruntime.errors import XlruntimeError

__all__ = ["strictly_placed"]


def strictly_placed(settings: Settings, record: Record) -> None:
    """Open every graph of all bundles, one after another, and record the nodes that another provider computes.

    Raises:
        PartError: a graph was refused; the message names the bundles.
    """
    bundles = {path.parent.name: path for path in sorted(GOLDEN.glob("*/bundle"))}
    made = (*(shape.name for shape in shapes_of(settings)), TEXT_MODEL, *FLOAT16)
    bundles |= {name: bundle_of(settings, name) for name in made}
    elsewhere: dict[str, dict[str, Any]] = {}
    refused: dict[str, str] = {}
    for name, folder in bundles.items():
        try:
            elsewhere[name] = _elsewhere(folder, settings)
        except XlruntimeError as error:
            refused[name] = str(error)
        record({"elsewhere": elsewhere, "refused": refused})
    if refused:
        first = next(iter(refused))
        raise PartError(f"{len(refused)} of {len(bundles)} bundles were refused, first {first}: {refused[first]}")


def _elsewhere(folder: Path, settings: Settings) -> dict[str, Any]:
    """Return the nodes that another provider computes, by graph, provider and operator."""
    model = load(folder, device=settings.device, strict_device=True)
    found = {}
    for purpose in model.bundle.graphs:
        placed = model.placement(purpose)
        if not placed.get(model.device.provider):
            raise PartError(f"{folder.name}: {purpose} has no node on {model.device.provider}")
        found[purpose] = {name: nodes for name, nodes in placed.items() if name != model.device.provider}
        model.release(purpose)
    return found
