"""The domain of the custom operators, and the decorator of their PyTorch forms.

The decorator makes a custom operator of a function, which a TorchScript trace records as its scripted body.

A trace records one path. A scripted body keeps loops and sizes, and its file runs in libtorch without this package.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from onnxscript.values import Opset
from torch import library

from xlruntime.operator_domain import DOMAIN

__all__ = ["DOMAIN", "OWN_OPSET", "VERSION", "operator", "shapes_of"]

VERSION = 1
OWN_OPSET = Opset(DOMAIN, VERSION)
NAMESPACE = "xlexport"
Function = TypeVar("Function", bound=Callable[..., Any])


def operator(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the operator `name`; under `torch.jit.trace` it is compiled as a script instead.

    Functions that it calls are compiled, too. So they use only what TorchScript knows, and no global constants.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        custom = library.custom_op(f"{NAMESPACE}::{name}", mutates_args=())(function)

        @functools.wraps(function)
        def run(*arguments: Any) -> Any:
            if torch.jit.is_tracing():  # type: ignore[attr-defined]  # missing in torch's `__all__`
                return torch.jit.script(function)(*arguments)
            return custom(*arguments)

        # A scripted function that calls this one compiles the body, as for `torch.jit.script_if_tracing`.
        vars(run).update({"__original_fn": function, "__script_if_tracing_wrapper": True})
        return run

    return decorate


def shapes_of(name: str) -> Callable[[Function], Function]:
    """Register a function that returns results of the shapes of the operator `name`, without numbers."""
    return cast(Callable[[Function], Function], library.register_fake(f"{NAMESPACE}::{name}"))
