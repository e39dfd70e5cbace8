"""Copy a user's module for an export, without gradients, compilers and wrappers; refuse what no copy can compute."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from xlexport.errors import ExportError
from xlruntime.messages import first_line

__all__ = ["own_copy", "unwrapped"]

WRAPPERS = {
    **dict.fromkeys(("DataParallel", "DistributedDataParallel", "AveragedModel"), "module"),
    "OptimizedModule": "_orig_mod",
}


def unwrapped(module: Any) -> Any:
    """Return the module within `torch.compile` and the wrappers that spread batches over devices."""
    while isinstance(module, nn.Module) and (name := WRAPPERS.get(type(module).__name__)):
        module = getattr(module, name)
    return module


def own_copy(module: Any, tensors: Mapping[int, Any] | None = None) -> Any:
    """Return a copy in evaluation mode without gradients; the module itself stays as it is.

    Tensors that a graph computed, such as those of old weight norm, are copied without the graph.

    Args:
        tensors: what the copy has in place of the tensors with these ids.

    Raises:
        ExportError: the module is scripted or quantized, has weights without numbers or on another device, or holds
            what cannot be copied.
    """
    name = getattr(module, "original_name", type(module).__qualname__)
    held = [value for part in module.modules() for value in vars(part).values()]
    memo: dict[int, Any] = {id(value): value for value in held if isinstance(value, torch.jit.ScriptFunction)}
    memo |= tensors or {}
    for problem, hint in _problems(module):
        raise ExportError(f"{name}: {problem}.", hint)
    try:
        with torch.no_grad(), _Detached():
            own = copy.deepcopy(module, memo)
            for part in own.modules():
                for key, child in part.named_children():
                    setattr(part, key, unwrapped(child))
                for key, value in vars(part).items():  # a compiled method computes with the original module
                    if method := getattr(value, "_torchdynamo_orig_callable", None):
                        vars(part)[key] = copy.deepcopy(method, memo)
    except Exception as error:
        raise ExportError(
            f"{name}: it cannot be copied: {type(error).__name__} ({first_line(error)}).",
            hint="Keep locks, files, generators and the like outside of the module.",
        ) from error
    return own.eval().requires_grad_(False)


class _Detached(TorchFunctionMode):
    """Lets `copy.deepcopy` copy the numbers of tensors that a graph computed."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            tensor, memo = args
            return memo.setdefault(id(tensor), tensor.detach().clone())
        return func(*args, **kwargs or {})


def _problems(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield what prevents an export, and what to do."""
    for path, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            yield f"{path or 'it'} is scripted or traced by torch.jit", "Use the module of which torch.jit made it."
        if "quantized" in type(part).__module__.split("."):
            yield f"{path} is quantized", "Export the module without quantization, and give export_module a dtype."
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor) or tensor.device.type == "meta" or isinstance(tensor, torch._subclasses.FakeTensor):
            yield f"{name} holds no numbers yet", "Load its weights on the CPU, or call a module with lazy layers once."
        elif tensor.device.type != "cpu":
            yield f"{name} is on {tensor.device}, and xlexport converts on the CPU", "Call model.cpu() first."
