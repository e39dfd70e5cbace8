"""What the type and the shape of a tensor may be in a manifest: what numpy and ONNX Runtime both have."""

from __future__ import annotations

from collections.abc import Iterable

from .messages import named, shown

__all__ = ["DTYPES", "LARGEST_AXIS", "check_kind"]

SIZES = (8, 16, 32, 64)  # bits of whole numbers
DTYPES = ("float16", "float32", "float64", "bool", *(f"{sign}int{size}" for sign in ("", "u") for size in SIZES))
LARGEST_AXIS = 2**31 - 1


def check_kind(name: str, dtype: str, shape: Iterable[int | str]) -> None:
    """Refuse a tensor that no array can be.

    Args:
        name: for the message.
        dtype: a numpy name.
        shape: sizes, and names of axes that have any size.

    Raises:
        ValueError: the type is unknown, an axis is shorter than 1, or its name is empty.
    """
    if dtype not in DTYPES:
        raise ValueError(f"the dtype of {named(name)} is {shown(dtype)}, expected one of {', '.join(DTYPES)}")
    wrong = [axis for axis in shape if not axis or (isinstance(axis, int) and not 1 <= axis <= LARGEST_AXIS)]
    if wrong:
        raise ValueError(f"an axis of {named(name)} is {shown(wrong[0])}, expected a name or 1 to {LARGEST_AXIS}")
