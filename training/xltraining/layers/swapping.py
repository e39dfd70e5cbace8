"""Keep the weights of layers in memory only while they compute (Kitaev et al. 2020, end of section 3).

On a CPU the weights of layers, their gradients and their optimizer state are in a file that is mapped into memory. The
kernel reads a page when a layer needs it, and the store releases a layer's pages after each use. For a GPU they are in
the host's memory. The store copies a layer's weights to the device while the layer before it computes, and the host
updates them.

All tensors stay valid at any time, so other code needs no change. It may only hold more of them in memory than it must.
Results are those of a run without a store, bit for bit on a CPU: only places differ, not computations or their order.
"""

import ctypes
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from xltraining.errors import CheckpointWriteError, ConfigError

__all__ = ["LayerStore", "ReleasingFile", "present"]

_ALIGNMENT = 64  # bytes; kernels of the CPU read faster from such places
_RELEASE_EVERY = 1 << 24  # bytes of a file
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # names of settings in glibc's malloc.h
_LARGE_BLOCK = 1 << 16  # bytes


class _Mapped:
    """Places for copies of tensors in a file without a name, which the kernel deletes with the process."""

    def __init__(self, folder: Path | None, like: Sequence[Tensor]) -> None:
        places, size = [], 0
        for tensor in like:
            places.append(size)
            size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        size = max(size, 1)
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is an error here, and a crash at a later write
                self._map = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise CheckpointWriteError(
                f"{folder or tempfile.gettempdir()}: no file of {size:,} bytes for a layer ({error.strerror}).",
                hint="Free some space, or train without swap_layers.",
            ) from error
        self.tensors = [
            torch.frombuffer(self._map, dtype=tensor.dtype, count=tensor.numel(), offset=place).view(tensor.shape)
            for tensor, place in zip(like, places, strict=True)
        ]

    def release(self) -> None:
        """Give the pages back; the file keeps what was written to them."""
        self._map.madvise(mmap.MADV_DONTNEED)


class _OnHost:
    """Places for copies of tensors in memory of the host, pinned for fast copies to a GPU."""

    def __init__(self, like: Sequence[Tensor], pinned: bool) -> None:
        self.tensors = [torch.empty(one.shape, dtype=one.dtype, device="cpu", pin_memory=pinned) for one in like]

    def release(self) -> None:
        """Do nothing: this memory is where the tensors belong."""


_Kept = _Mapped | _OnHost


class _Layer:
    """One layer and its tensors at rest."""

    def __init__(self, module: nn.Module, weights: _Kept) -> None:
        self.parameters = list(module.parameters())
        self.weights = weights
        self.gradients: _Kept | None = None
        self.state: _Kept | None = None

    def release(self) -> None:
        for store in (self.weights, self.gradients, self.state):
            if store is not None:
                store.release()


class LayerStore:
    """The layers of one model, in the order in which they compute."""

    def __init__(self, device: torch.device, folder: Path | None = None, *, copies: bool | None = None) -> None:
        """Make a store without layers.

        Args:
            device: the device that computes.
            folder: where the mapped files are, on a disk; None: the folder of temporary files.
            copies: whether layers are copied to the device before they compute; None: unless that is the CPU.

        Raises:
            ConfigError: the system cannot release mapped memory.
        """
        if not hasattr(mmap, "MADV_DONTNEED"):
            raise ConfigError("swap_layers needs a system that can release mapped memory, such as Linux.")
        self.device, self.folder = device, folder
        self.copies = device.type != "cpu" if copies is None else copies
        if not self.copies:
            _give_back_freed_blocks()
        self._layers: list[_Layer] = []
        self._copied: dict[int, tuple[list[Tensor], Any]] = {}
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def take(self, module: nn.Module) -> None:
        """Move the tensors of the next layer into the store.

        Raises:
            CheckpointWriteError: the disk has no room for them.
        """
        parameters = list(module.parameters())
        # Buffers are small. On a GPU they stay on the device, because code outside of the layer uses them, too.
        buffers = [] if self.copies else list(module.buffers())
        weights = self._kept([*parameters, *buffers])
        for tensor, stored in zip([*parameters, *buffers], weights.tensors, strict=True):
            tensor.data = stored
        layer = _Layer(module, weights)
        self._layers.append(layer)
        module.register_load_state_dict_post_hook(lambda *_: layer.release())
        layer.release()

    def _kept(self, like: Sequence[Tensor]) -> _Kept:
        """Return copies of tensors at rest."""
        kept = _OnHost(like, self.device.type == "cuda") if self.copies else _Mapped(self.folder, like)
        for own, tensor in zip(kept.tensors, like, strict=True):
            own.copy_(tensor.detach())
        return kept

    @contextmanager
    def present(self, index: int, following: int) -> Iterator[None]:
        """Hold a layer's weights on the device in the block, and begin to copy those of the layer that follows."""
        layer = self._layers[index]
        if self.copies:
            self._copy(index)
            self._copy(following)
            copies, copied = self._copied.pop(index)
            if copied is not None:
                current = torch.cuda.current_stream(self.device)
                current.wait_event(copied)
                for copy in copies:
                    copy.record_stream(current)
            for parameter, copy in zip(layer.parameters, copies, strict=True):
                parameter.data = copy
        try:
            yield
        finally:
            if self.copies:
                for parameter, stored in zip(layer.parameters, layer.weights.tensors, strict=True):
                    parameter.data = stored
            layer.release()

    def _copy(self, index: int) -> None:
        """Begin to copy a layer's weights to the device while another layer computes."""
        if index in self._copied or not 0 <= index < len(self._layers):
            return
        side: AbstractContextManager[Any] = nullcontext()
        if self._stream is not None:
            side = torch.cuda.stream(self._stream)
        with side:
            weights = self._layers[index].weights.tensors
            copies = [weight.to(self.device, non_blocking=True, copy=True) for weight in weights]
            self._copied[index] = copies, None if self._stream is None else self._stream.record_event()

    def add_gradients(self, index: int, gradients: Sequence[Tensor | None]) -> None:
        """Add to the gradients of a layer's trained parameters, in their order."""
        layer = self._layers[index]
        if layer.gradients is None:
            layer.gradients = self._kept(layer.parameters)
        places = zip(layer.parameters, layer.gradients.tensors, strict=True)
        trained = [(parameter, stored) for parameter, stored in places if parameter.requires_grad]
        for (parameter, stored), gradient in zip(trained, gradients, strict=True):
            if gradient is None:
                continue
            if parameter.grad is None:
                stored.copy_(gradient)
                parameter.grad = stored
            else:
                parameter.grad.add_(gradient.to(stored.device))
        layer.release()

    @torch.no_grad()
    def update(self, model: nn.Module, optimizers: Sequence[Optimizer], clip: float) -> None:
        """Clip the norm of all gradients together, and update the weights layer by layer; the gradients are gone then.

        An optimizer passes over parameters without a gradient, so each of its steps is given those of one layer.
        """
        every = list(model.parameters())
        in_layers = {id(parameter) for layer in self._layers for parameter in layer.parameters}
        others = [parameter for parameter in every if id(parameter) not in in_layers]
        groups = [(layer.parameters, layer) for layer in self._layers] + [(others, None)]
        gradients: dict[int, Tensor] = {}
        norms: dict[int, Tensor] = {}
        for group, layer in groups:
            for parameter in group:
                if parameter.grad is not None:
                    gradients[id(parameter)] = parameter.grad
                    norms[id(parameter)] = torch.linalg.vector_norm(parameter.grad).to(self.device)
                    parameter.grad = None
            if layer is not None:
                layer.release()
        norm = torch.linalg.vector_norm(torch.stack([norms[id(one)] for one in every if id(one) in norms]))
        for group, layer in groups:
            for parameter in group:
                parameter.grad = gradients.get(id(parameter))
            nn.utils.clip_grads_with_norm_(group, clip, norm)
            for optimizer in optimizers:
                optimizer.step()
            for parameter in group:
                parameter.grad = None
            if layer is not None:
                self._keep_state(layer, optimizers)
                layer.release()

    def keep_state(self, optimizers: Sequence[Optimizer]) -> None:
        """Move the optimizer's state of all layers into the store, after it was loaded.

        Raises:
            CheckpointWriteError: the disk has no room for it.
        """
        for layer in self._layers:
            layer.state = None
            self._keep_state(layer, optimizers)
            layer.release()

    def _keep_state(self, layer: _Layer, optimizers: Sequence[Optimizer]) -> None:
        if layer.state is not None or self.copies:  # the host has made the state in its own memory
            return
        states = [part.state[one] for part in optimizers for one in layer.parameters if one in part.state]
        # Counts of steps have no axes.
        places = [(state, name) for state in states for name, value in state.items() if getattr(value, "ndim", 0)]
        if places:
            layer.state = self._kept([state[name] for state, name in places])
            for (state, name), stored in zip(places, layer.state.tensors, strict=True):
                state[name] = stored

    def release(self) -> None:
        """Release the pages of all layers, after other code has read their tensors."""
        for layer in self._layers:
            layer.release()


def _give_back_freed_blocks() -> None:
    """Let glibc return a large block to the system as soon as it is freed; other libraries need no setting.

    By default it puts large blocks into its heap after the first was freed. There the gradients of one layer leave
    holes that those of the next do not fill: 48 layers took 8 times the memory.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        for name in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            set_option(name, _LARGE_BLOCK)


def present(store: LayerStore | None, index: int, following: int) -> AbstractContextManager[None]:
    """Return a context in which a layer's weights are on the device, as they always are without a store."""
    return nullcontext() if store is None else store.present(index, following)


class ReleasingFile:
    """A file to which tensors of a store are written: it calls `release` again and again."""

    def __init__(self, file: BinaryIO, release: Callable[[], None]) -> None:
        self._file, self._release, self._written = file, release, 0

    def write(self, data: bytes) -> int:
        """Write to the file."""
        self._written += len(data)
        if self._written >= _RELEASE_EVERY:
            self._written = 0
            self._release()
        return self._file.write(data)

    def flush(self) -> None:
        """Write what the file still buffers."""
        self._file.flush()
