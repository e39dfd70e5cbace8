"""One custom node, run by its kernel and by its body."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt

from tests.helpers.lone_node import lone_session
from xlexport.ops import DOMAIN
from xlruntime.placement import placed_nodes

Given = list[npt.NDArray[Any]]


def run_node(name: str, given: Given, n_outputs: int, library: Path | None, **attributes: Any) -> Given:
    """Run one node by its kernel if there is a library, else by its body; check that this is what ran."""
    session = lone_session(name, given, n_outputs, library, threads=2, **attributes)
    custom = [node.operator for node in placed_nodes(session) if node.domain == DOMAIN]
    assert custom == ([] if library is None else [name])
    found: Given = session.run(None, {f"x{i}": x for i, x in enumerate(given)})
    return found


def kernel_and_body(name: str, given: Given, n_outputs: int, library: Path, **attributes: Any) -> tuple[Given, Given]:
    """Return the results of the kernel and those of the body, of equal types and shapes."""
    kernel, body = (run_node(name, given, n_outputs, which, **attributes) for which in (library, None))
    assert [(x.dtype, x.shape) for x in kernel] == [(x.dtype, x.shape) for x in body]
    return kernel, body
