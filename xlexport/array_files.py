"""Read files of NumPy's arrays whose size is known before they are read, without code in them."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from xlexport.errors import ArrayFileError
from xlruntime.limits import Limits, read_at_most
from xlruntime.messages import first_line, near_path

__all__ = ["HINT", "MOST_BYTES", "read_array", "read_arrays"]

MOST_BYTES = 1 << 29  # of the arrays of one file
LONGEST_HEADER = 10_000  # bytes that describe an array
HINT = "Write it again with numpy.save or numpy.savez."


def read_arrays(path: Path) -> Mapping[str, npt.NDArray[Any]]:
    """Return the arrays of a file .npz by name.

    Raises:
        ArrayFileError: it is missing, damaged, too large, or holds other things than numbers.
    """
    if not path.is_file():
        raise ArrayFileError(f"{path}: no such file.", hint=near_path(path) or "Check the path.")
    arrays, left = dict[str, npt.NDArray[Any]](), MOST_BYTES
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if (left := left - entry.file_size) < 0:
                    what = f"{path}: more than {MOST_BYTES:,} bytes of arrays."
                    raise ArrayFileError(what, hint="Give fewer steps.")
                with archive.open(entry) as file:
                    arrays[entry.filename.removesuffix(".npy")] = read_array(file, str(path))  # type: ignore[arg-type]
    except ArrayFileError:
        raise
    except Exception as error:  # NumPy parses headers as Python
        raise ArrayFileError(f"{path}: damaged or of another kind ({first_line(error)}).", hint=HINT) from error
    return arrays


def read_array(file: BinaryIO, name: str) -> npt.NDArray[Any]:
    """Return the array of an open file .npy, once its header says how large it is; pickled objects are refused.

    Raises:
        ArrayFileError: it is too large, or holds other things than numbers.
        ValueError: it is damaged.
    """
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"version {version} of the format")
    shape, by_columns, dtype = read(file, max_header_size=LONGEST_HEADER)
    if min(shape, default=0) < 0:
        raise ValueError(f"shape {shape}")
    if dtype.kind not in "iufb":
        raise ArrayFileError(f"{name}: holds {dtype}, expected numbers.", hint=HINT)
    size = math.prod(shape) * dtype.itemsize
    if size > MOST_BYTES:
        raise ArrayFileError(f"{name}: {size:,} bytes, expected at most {MOST_BYTES:,}.", hint="Give fewer steps.")
    content = read_at_most(file, Limits(bytes=size).budget(name, ArrayFileError))
    if len(content) != size:
        raise ValueError(f"ends after {len(content):,} of {size:,} bytes")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if by_columns else "C")
