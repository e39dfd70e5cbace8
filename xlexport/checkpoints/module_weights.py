"""Put the tensors of a file into a module that a user's code made."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlexport.checkpoints.files import read_tensors
from xlexport.checkpoints.source import float_notes, require_finite
from xlexport.checkpoints.state_dicts import unwrapped
from xlexport.checkpoints.tensor_mapping import problems_listed, same
from xlexport.errors import CheckpointError
from xlruntime.messages import listed, named

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["load_weights"]

DEEPEST = 3  # containers within each other in which an attribute's tensors are looked for


def load_weights(model: nn.Module, file: Path, build: Callable[[], nn.Module]) -> list[str]:
    """Put the tensors of a file into a model with exactly their names and shapes; one name of tied ones is enough.

    Args:
        build: makes the model once more.

    Returns:
        Notes on the file, and on tensors that `state_dict()` does not hold.

    Raises:
        CheckpointError: the file is damaged, could run code, or does not fit the model, or no file can hold what the
            model draws. The message lists all problems.
    """
    own = model.state_dict(keep_vars=True)
    tensors, notes = unwrapped(file, read_tensors(file), own)
    names_of: dict[int, list[str]] = {}
    for name, tensor in own.items():
        names_of.setdefault(id(tensor), []).append(name)
    weights: dict[str, Tensor] = {}
    problems: list[str] = []
    for names in names_of.values():
        present = [name for name in names if name in tensors]
        problems += [problem for name in present if (problem := _misfit(name, tensors[name], own[name]))]
        if not present:
            problems.append(f"{names[0]} is missing")
        elif not problems:
            first = tensors[present[0]]
            problems += [f"{name} differs from {present[0]}" for name in present if not same(tensors[name], first)]
            weights |= dict.fromkeys(names, first)
    problems += [f"{named(name)} is unexpected" for name in tensors if name not in own]
    if problems:
        raise CheckpointError(
            f"{file}: the tensors do not fit the model: {problems_listed(problems)}.",
            hint="Save the state_dict() of this model.",
        )
    require_finite(file, {name: tensor for name, tensor in weights.items() if tensor.is_floating_point()})
    model.load_state_dict(weights)
    return [*notes, *float_notes(tensors), *_unsaved(model, file, build)]


def _misfit(name: str, tensor: Any, own: Tensor) -> str:
    """Return what is wrong with the tensor of a file, or an empty text."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        return f"{name} is not a tensor"
    if _kind(tensor) != _kind(own):
        kinds = (str(each.dtype).removeprefix("torch.") for each in (tensor, own))
        return "{} is {} in the file, {} in the model".format(name, *kinds)
    if tensor.shape != own.shape:
        return f"{name} is {tuple(tensor.shape)} in the file, {tuple(own.shape)} in the model"
    return ""


def _kind(tensor: Tensor) -> tuple[bool, bool]:
    return tensor.is_floating_point(), tensor.is_complex()


def _unsaved(model: nn.Module, file: Path, build: Callable[[], nn.Module]) -> list[str]:
    """Return notes on tensors that `state_dict()` does not hold and training may have changed.

    Raises:
        CheckpointError: such tensors are drawn at random: they differ between two models that the code makes.
    """
    one, other = (dict(_other_tensors(_built(build, seed))) for seed in (0, 1))
    drawn = [name for name, tensor in one.items() if name in other and not same(tensor, other[name])]
    if drawn:
        raise CheckpointError(
            f"{file}: state_dict() holds no {listed(map(named, drawn))}, which the model draws at random.",
            hint="Call register_buffer(name, tensor) for each, and save state_dict() of the trained model again.",
        )
    buffers = dict(model.named_buffers())
    constant = [name for name, tensor in one.items() if name in buffers and _is_constant(tensor)]
    if not constant:
        return []
    return [f"state_dict() holds no {listed(map(named, constant))}: if training changed such buffers, they are lost."]


def _is_constant(tensor: Tensor) -> bool:
    """Return whether a buffer has one number at all places, as before training; tables of positions have several."""
    return tensor.is_floating_point() and tensor.numel() > 0 and bool((tensor == tensor.flatten()[0]).all())


def _built(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a model whose random numbers follow a seed; the states of all generators stay as they were."""
    import numpy as np
    import torch

    before, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]), contextlib.redirect_stderr(io.StringIO()):  # it printed once already
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)
            return build()
    finally:
        random.setstate(before)
        np.random.set_state(of_numpy)


def _other_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that `state_dict()` does not hold, in buffers and in attributes, by name.

    Views of saved tensors, and what is computed from parameters, as weight normalization does, follow from those.
    """
    import numpy as np
    import torch

    def within(name: str, value: Any, depth: int) -> Iterator[tuple[str, Tensor]]:
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            value = torch.from_numpy(value)
        if isinstance(value, torch.Tensor):
            yield name, value
        elif depth < DEEPEST and isinstance(value, list | tuple | Mapping):
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, inner in items:
                yield from within(f"{name}[{key!r}]", inner, depth + 1)

    saved = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}
    inner = vars(torch.nn.Module()).keys()
    for prefix, part in model.named_modules():
        own = {name: value for name, value in vars(part).items() if name not in inner}
        for name, value in {**own, **part._buffers}.items():
            for place, tensor in within(f"{prefix}.{name}".lstrip("."), value, 0):
                if tensor.grad_fn is None and tensor.untyped_storage().data_ptr() not in saved:
                    yield place, tensor
