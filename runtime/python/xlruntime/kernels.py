"""Find the library of kernels for the custom operators: the distribution `xlexport-ops`, or a named file.

The library is code. It comes from an installed package or from the caller, never from a bundle.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .devices import Device
from .errors import ProviderError
from .messages import first_line
from .operator_domain import DOMAIN
from .placement import PlacedNode

__all__ = ["DISTRIBUTION", "Kernels", "describe_kernels", "find_kernels"]

DISTRIBUTION = "xlexport-ops"
PACKAGE = "xlexport_ops"  # its module
BODIES = "none (bodies of standard operators)"
# Functions that return a text. The last takes a number from 0, and returns null behind the last operator.
SYMBOLS = ("xlexport_ops_version", "xlexport_ops_instruction_set", "xlexport_ops_operator")
REINSTALL = f"Install {DISTRIBUTION} again, or choose ops none: the results are the same."


@dataclass(frozen=True)
class Kernels:
    """A library of kernels, which ONNX Runtime loads into each session on the CPU."""

    path: Path
    version: str
    instruction_set: str
    """Which of its inner loops this machine runs, such as `avx512`."""
    operators: frozenset[str]
    """The operators that it has kernels for."""

    def __str__(self) -> str:
        return f"{DISTRIBUTION} {self.version} ({self.instruction_set})"


def find_kernels(ops: str | Path, device: Device) -> Kernels | None:
    """Return the library that sessions on `device` use; None if bodies of standard operators run.

    Args:
        ops: `auto`, the library of the installed package `xlexport_ops`, if there is one; `none`; or a library's path.
        device: only sessions on the CPU use a library. On another device, its nodes would leave the device.

    Raises:
        ProviderError: the library is missing, cannot be loaded, or is another one.
    """
    if ops == "none":
        return None
    path = _installed_library() if ops == "auto" else Path(ops)
    if path is None:
        return None
    if not path.is_file():
        hint = REINSTALL if ops == "auto" else "Give the path of the library, auto or none."
        raise ProviderError(f"{path}: no such file, expected a library of kernels.", hint=hint)
    return _read(path.resolve()) if device.entry.kernels else None


def describe_kernels(kernels: Kernels | None, nodes: Sequence[PlacedNode]) -> str:
    """Return which kernels compute the nodes of an open graph, such as `xlexport-ops 0.1.0 (avx512): 12 LSHSort`."""
    counted = Counter(node.operator for node in nodes if node.domain == DOMAIN)
    if kernels is None:
        return BODIES if nodes else "none"  # PyTorch lists no nodes
    if not counted:
        return f"none (the graph has no operator of {kernels})"
    return f"{kernels}: {', '.join(f'{count} {operator}' for operator, count in counted.most_common())}"


def _installed_library() -> Path | None:
    """Return the library of the installed package; None if it is not installed."""
    if importlib.util.find_spec(PACKAGE) is None:
        return None
    package = importlib.import_module(PACKAGE)
    library = getattr(package, "LIBRARY", None)
    if library is None:  # an empty folder of this name is a package, too
        raise ProviderError(f"the module {PACKAGE} has no LIBRARY, so it is not of {DISTRIBUTION}.", hint=REINSTALL)
    return Path(library)


@functools.cache
def _read(path: Path) -> Kernels:
    """Load a library, and return its description of itself."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ProviderError(
            f"{path}: cannot be loaded as a library of kernels ({first_line(error)}).", hint=REINSTALL
        ) from error
    functions = []
    for symbol in SYMBOLS:
        function = getattr(library, symbol, None)
        if function is None:
            raise ProviderError(f"{path}: has no {symbol}, so it is not a library of {DISTRIBUTION}.", hint=REINSTALL)
        function.restype = ctypes.c_char_p
        functions.append(function)
    version, instruction_set, operator = functions
    operators = itertools.takewhile(bool, (operator(ctypes.c_uint64(number)) for number in itertools.count()))
    return Kernels(
        path, version().decode("ascii"), instruction_set().decode("ascii"), frozenset(map(bytes.decode, operators))
    )
