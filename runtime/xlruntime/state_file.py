"""State files: tensors and fields (safetensors), written whole or not at all, and checked when read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from . import atomic_output
from .errors import StateError
from .limits import Budget, Limits, parse_json
from .messages import first_line, named, shown

__all__ = ["LIMITS", "read_state", "write_state"]

LIMITS = Limits()
DTYPES = {"BOOL", *(f"{kind}{bits}" for kind in "IU" for bits in (8, 16, 32, 64)), "F16", "F32", "F64"}

Arrays = Mapping[str, npt.NDArray[Any]]


def write_state(path: Path, kind: str, version: int, fields: Mapping[str, Any], arrays: Arrays) -> int:
    """Write a state, and replace an older file in one step. The file is on the disk when this returns.

    The file has the format of safetensors. The library's own writer would hold the tensors twice more in memory, so
    this function writes them directly.

    Args:
        kind: the kind of the state; fields: any JSON values.
        arrays: tensors by name, of floats, whole numbers or truth values.

    Returns:
        The file's size in bytes.

    Raises:
        OSError: the file cannot be written; an older one stays as it was.
    """
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    state = {"kind": kind, "version": version, **fields}
    state["sha256"] = _digest(state, arrays)
    with atomic_output.file(path) as temporary, temporary.open("wb") as file:
        file.write(_header({"xlexport": json.dumps(state)}, arrays))
        for array in arrays.values():
            file.write(array.data)
        return file.tell()


def _header(metadata: Mapping[str, str], arrays: Arrays) -> bytes:
    """Return the beginning of a safetensors file: the length of a JSON object, and the object: tensors' places."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        kind = array.dtype.kind
        dtype = "BOOL" if kind == "b" else f"{kind.upper()}{8 * array.itemsize}"  # F32, I64, U8
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, end]}
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)  # align the tensors to 8 bytes
    return len(raw).to_bytes(8, "little") + raw


def read_state(
    path: Path, kind: str, version: int, repair: str, limits: Limits = LIMITS
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the fields and tensors that `write_state` wrote.

    Args:
        repair: the end of every message: the repair for an unusable state.
        limits: bounds for header and fields; tensors take as much memory as they have in the file.

    Raises:
        StateError: the file is not a state, of another kind or version, or damaged.
        OSError: the file cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    what = f"a {kind.removeprefix('xlexport ')}'s state"
    budget = limits.budget(str(path), StateError)
    try:
        _check_header(path, budget)
        with safe_open(path, "numpy") as opened:  # possibly a newer file, which is whole too
            state = parse_json((opened.metadata() or {}).get("xlexport", "{}").encode(), budget)
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118  # not a dict
    except (SafetensorError, ValueError, TypeError) as error:
        found = error.message.removeprefix(f"{path}: ") if isinstance(error, StateError) else first_line(error)
        raise StateError(f"{path}: not {what} ({found.rstrip('.')}).", repair=repair) from error
    if not isinstance(state, dict) or state.get("kind") != kind:
        raise StateError(f"{path}: a safetensors file, but not {what}.", repair=repair)
    if state.get("version") != version:
        found = ascii(state.get("version"))[:20]
        raise StateError(f"{path}: state version {found}, expected {version}.", repair=repair)
    if not _is_intact(state, arrays):
        raise StateError(f"{path}: damaged since it was saved (its SHA-256 differs).", repair=repair)
    return {name: value for name, value in state.items() if name not in ("kind", "version")}, arrays


def _check_header(path: Path, budget: Budget) -> None:
    """Read the header within the budget before the library, which has no numpy types for some tensors.

    Raises:
        StateError: the header exceeds the budget, or is not JSON.
        ValueError: the header is not the header of a state.
    """
    if not path.is_file() and path.exists():
        raise ValueError("not a file")
    with path.open("rb") as file:
        size, available = int.from_bytes(file.read(8), "little"), os.fstat(file.fileno()).st_size - 8
        if size > available:
            raise ValueError(f"its header has {size:,} bytes, but only {max(available, 0):,} follow")
        budget.charge(size)
        header = parse_json(file.read(size), budget)
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    for name, tensor in header.items():
        dtype = tensor.get("dtype") if isinstance(tensor, dict) else None
        if name != "__metadata__" and dtype not in DTYPES:
            raise ValueError(f"{named(name)} is of type {shown(dtype)}, which no state has")


def _is_intact(state: dict[str, Any], arrays: Arrays) -> bool:
    """Take the digest out of the fields, and return whether it fits the fields and tensors."""
    try:
        return bool(state.pop("sha256", None) == _digest(state, arrays))
    except RecursionError:
        return False


def _digest(state: Mapping[str, Any], arrays: Arrays) -> str:
    """Return the SHA-256 of fields and tensors: safetensors would not notice a flipped byte."""
    sha256 = hashlib.sha256(json.dumps(state, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        sha256.update(f"{name} {array.dtype} {array.shape}".encode())
        sha256.update(np.ascontiguousarray(array).data)
    return sha256.hexdigest()
