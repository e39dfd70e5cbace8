"""Copy a user's module for an export, without gradients, compilers and wrappers; refuse what no copy can compute."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from xlexport.errors import ExportError
from xlruntime.messages import first_line, listed

__all__ = ["dtype_problem", "own_copy", "unwrapped"]

WRAPPERS = {"DataParallel": "module", "DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}
Problem = tuple[str, str]  # what the weights are, and what to do


def unwrapped(module: Any) -> Any:
    """Return the module within `torch.compile` and the wrappers that spread batches over devices."""
    while isinstance(module, nn.Module) and (name := WRAPPERS.get(type(module).__name__)):
        module = getattr(module, name)
    return module


def own_copy(module: Any) -> Any:
    """Return a copy in evaluation mode without gradients; the module itself stays as it is.

    Tensors that a graph computed, such as those of old weight norm, are copied without the graph.

    Raises:
        ExportError: the module is scripted or quantized, has weights without numbers or on another device, or holds
            what cannot be copied.
    """
    name = getattr(module, "original_name", type(module).__qualname__)  # of a scripted module
    if problem := next(_unfit(module), None):
        raise ExportError(f"{name}: {problem[0]}.", problem[1])
    memo: dict[int, Any] = {}
    try:
        with _Detached():
            own = copy.deepcopy(module, memo)
            for part in own.modules():
                _bind(part, memo)
    except Exception as error:
        raise ExportError(
            f"{name}: {_uncopied(module)} cannot be copied: {type(error).__name__} ({first_line(error)}).",
            hint="Keep locks, files, generators and the like outside of the module.",
        ) from error
    return own.eval().requires_grad_(False)


def dtype_problem(module: nn.Module) -> Problem | None:
    """Return what is wrong if weights are not float32."""
    kinds = {tensor.dtype for tensor in _tensors(module) if tensor.is_floating_point()} - {torch.float32}
    names = listed(sorted(str(kind).removeprefix("torch.") for kind in kinds))
    return (f"its weights are {names}, and xlexport needs float32", "Call model.float() first.") if kinds else None


class _Detached(TorchFunctionMode):
    """Lets `copy.deepcopy` copy the numbers of tensors that a graph computed."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__ and not args[0].is_leaf:
            tensor, memo = args
            return memo.setdefault(id(tensor), tensor.detach().clone())
        return func(*args, **kwargs or {})


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _unfit(module: nn.Module) -> Iterator[Problem]:
    """Yield what prevents an export."""
    if isinstance(module, torch.jit.ScriptModule):
        yield "it is scripted or traced by torch.jit", "Export the module of which torch.jit made it."
    for path, part in module.named_modules():
        if "quantized" in type(part).__module__.split("."):
            hint = "Export the module without quantization, and give export_module dtype."
            yield f"{path} is quantized ({type(part).__qualname__})", hint
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            yield f"{name} has no shape before the first call", "Call the module once on a token."
        elif tensor.device.type == "meta" or isinstance(tensor, torch._subclasses.FakeTensor):
            yield f"{name} has a shape, but no numbers", "Load its weights on the CPU."
        elif tensor.device.type != "cpu":
            yield f"{name} is on {tensor.device}, and xlexport converts on the CPU", "Call model.cpu() first."


def _bind(part: nn.Module, memo: dict[int, Any]) -> None:
    """Replace wrapped parts, and functions that compute with the original module, as compiled ones do."""
    for name, child in part.named_children():
        setattr(part, name, unwrapped(child))
    attributes: list[dict[Any, Any]] = [vars(part), part._forward_pre_hooks, part._forward_hooks]
    for functions in attributes:
        for key, value in functions.items():
            if isinstance(value, FunctionType):
                functions[key] = _bound(value, memo)


def _bound(value: Any, memo: dict[int, Any]) -> Any:
    """Return a copy for the module's copy, also of the closure of a function, which `copy.deepcopy` shares."""
    value = getattr(value, "_torchdynamo_orig_callable", value)
    if not isinstance(value, FunctionType) or not value.__closure__:
        return value if isinstance(value, ModuleType) else copy.deepcopy(value, memo)
    if id(value) not in memo:
        cells = tuple(CellType() for _ in value.__closure__)
        memo[id(value)] = FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
        memo[id(value)].__kwdefaults__ = value.__kwdefaults__
        for cell, original in zip(cells, value.__closure__, strict=True):
            cell.cell_contents = _bound(original.cell_contents, memo)
    return memo[id(value)]


def _uncopied(module: nn.Module) -> str:
    """Return the name of an attribute that cannot be copied."""
    for prefix, part in module.named_modules():
        for name, value in vars(part).items():
            try:
                if name not in vars(nn.Module()):
                    with _Detached():
                        copy.deepcopy(value)
            except Exception:
                return f"{prefix}.{name}".lstrip(".")
    return "it"
