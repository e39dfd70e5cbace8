"""The environment of processes that this one starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["environment_of_children"]


@contextlib.contextmanager
def environment_of_children(**variables: str) -> Iterator[None]:
    """Let Python processes that start meanwhile import nothing from the current folder.

    Without PYTHONSAFEPATH, the current folder comes first in the path of `python -c` and `python -m`, by which
    `multiprocessing`, its resource tracker and Ray start processes.

    Args:
        variables: further variables of these processes. Those that the user has set stay as they are.
    """
    added = {**variables, "PYTHONSAFEPATH": "1"}
    added = {name: value for name, value in added.items() if not os.environ.get(name)}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
