"""Types and shapes that a manifest may give a tensor: the ones that numpy and ONNX Runtime share."""

from __future__ import annotations

from collections.abc import Iterable

from .messages import named, shown

__all__ = ["DTYPES", "LARGEST_AXIS", "check_kind"]

SIZES = (8, 16, 32, 64)  # bits of whole numbers
DTYPES = ("float16", "float32", "float64", "bool", *(f"{sign}int{size}" for sign in ("", "u") for size in SIZES))
LARGEST_AXIS = 2**31 - 1


def check_kind(name: str, dtype: str, shape: Iterable[int | str]) -> None:
    """Refuse a type or shape that no array can have.

    Args:
        name: the tensor's name, for the message.
        dtype: the name of a numpy type.
        shape: sizes, and names of axes of any size.

    Raises:
        ValueError: the type is unknown, an axis is shorter than 1, or its name is empty.
    """
    if dtype not in DTYPES:
        raise ValueError(f"the dtype of {named(name)} is {shown(dtype)}, expected one of {', '.join(DTYPES)}")
    wrong = [axis for axis in shape if not axis or (isinstance(axis, int) and not 1 <= axis <= LARGEST_AXIS)]
    if wrong:
        raise ValueError(f"an axis of {named(name)} is {shown(wrong[0])}, expected a name or 1 to {LARGEST_AXIS}")
