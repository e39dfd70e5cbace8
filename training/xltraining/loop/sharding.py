"""Weights and optimizer states that several processes divide among them, by FSDP2 of torch."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from xltraining.errors import ConfigError

__all__ = ["load_whole", "shard", "shard_optimizer_state", "whole"]


def shard(step: nn.Module, model: nn.Module, processes: int, device: torch.device) -> None:
    """Divide the weights of a model among the processes: layer by layer, then what is left.

    Args:
        step: the module that is called, with the model inside.
        processes: their number.

    Raises:
        ConfigError: layers share weights, which cannot be divided by layer.
    """
    mesh = init_device_mesh(device.type, (processes,))
    layers = getattr(model, "layers", None)
    if isinstance(layers, nn.ModuleList):
        owned = [{id(parameter) for parameter in layer.parameters()} for layer in layers]
        if sum(map(len, owned)) != len(set().union(*owned)):
            raise ConfigError("layers share weights (untie_r is off).", hint="Train without sharded, or with untie_r.")
        for layer in layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(step, mesh=mesh)


def whole(value: Any) -> Any:
    """Return nested values with their divided tensors gathered; every process must call this."""
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, Mapping):
        return {name: whole(part) for name, part in value.items()}
    return [whole(part) for part in value] if isinstance(value, list) else value


def load_whole(model: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Let a model whose weights may be divided take a whole state."""
    with torch.no_grad():
        for name, own in model.state_dict().items():
            own.copy_(_like(state_dict[name].to(own.device), own))


def shard_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return the whole state of an optimizer, divided as its weights are."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    divided = {
        index: {
            name: _like(value, parameters[index])
            if isinstance(value, Tensor) and value.shape == parameters[index].shape
            else value
            for name, value in entry.items()
        }
        for index, entry in state["state"].items()
    }
    return {**state, "state": divided}


def _like(value: Tensor, like: Tensor) -> Tensor:
    return distribute_tensor(value, like.device_mesh, like.placements) if isinstance(like, DTensor) else value
