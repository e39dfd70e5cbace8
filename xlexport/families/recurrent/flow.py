"""Follow states through the operators of a module: what depends on them, and where Python decides by their values."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Flow"]

TORCH = str(Path(torch.__file__).parent)
SHAPE_ONLY = ("_like", "new_zeros", "new_ones", "new_full", "new_empty")  # ends of operators that read no numbers


class Flow(TorchDispatchMode):
    """Records which of some tensors each further tensor depends on, whatever their numbers are.

    Attributes:
        decided: the names by whose values Python decided, in an `if` or by `.item()`.
        line: where it did so last, such as `model.py:12`.
    """

    def __init__(self, origins: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.decided, self.line = set[str](), ""
        self._names: dict[int, set[str]] = {}  # by storage, as views share theirs
        self._kept: list[Tensor] = []  # as another tensor could get the place of a deleted one
        for name, tensor in origins.items():
            self._note([tensor], {name})

    def behind(self, tensors: Iterable[Any]) -> set[str]:
        """Return the names of all that these tensors depend on."""
        return self.decided.union(*(self._names.get(_place(each), ()) for each in tensors if isinstance(each, Tensor)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, names = func(*args, **kwargs or {}), self.behind(tree_leaves((args, kwargs)))
        if names and func is torch.ops.aten._local_scalar_dense.default:
            self.decided |= names
            frame = [each for each in traceback.extract_stack()[:-1] if not each.filename.startswith(TORCH)][-1]
            self.line = f"{Path(frame.filename).name}:{frame.lineno}"
        elif names and not str(func.overloadpacket).endswith(SHAPE_ONLY):
            self._note(tree_leaves(result), names)
        return result

    def _note(self, tensors: Iterable[Any], names: set[str]) -> None:
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                self._names.setdefault(_place(tensor), set()).update(names)
                self._kept.append(tensor)


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if torch._C._has_storage(tensor) else id(tensor)
