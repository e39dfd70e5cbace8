"""Run bundles of TorchScript or of exported programs with PyTorch, under the runtime's own interface.

Loading such a file executes code in it. So each file is read once, its content is compared with its digest, and only
this content is loaded. The caller must decide whether to trust the bundle like a program.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport.architectures import find
from xlexport.extras import require
from xlruntime.bundle import read_bundle
from xlruntime.devices import Device
from xlruntime.errors import BundleError, OptionError
from xlruntime.messages import first_line
from xlruntime.model import Model
from xlruntime.placement import PlacedNode
from xlruntime.spec import METADATA_KEY, Bundle, Graph

if TYPE_CHECKING:
    import torch

    from xlruntime.memory import BatchMemory

__all__ = ["WEIGHTS_FILE", "TorchSession", "TorchSessions", "load"]

WEIGHTS_FILE = "weights.safetensors"  # of all exported programs of a bundle

Call = Callable[..., Mapping[str, "torch.Tensor"]]


def load(
    folder: str | Path,
    *,
    device: str = "cpu",
    threads: int | None = None,
    check_files: bool = True,
    strict_device: bool = False,
    cuda_graphs: bool = False,
    step_timeout: float | None = None,
    ops: str | Path = "auto",
) -> Model:
    """Open a bundle of TorchScript or of exported programs, which executes code in it: open only trusted bundles.

    Args:
        folder: the output of `xlexport convert --to torchscript` or `--to exported-program`.
        device: `cpu`.
        threads: PyTorch's threads in this process from now on; None: unchanged.
        check_files: compare every file with its digest. Files that hold code are always compared.
        strict_device, cuda_graphs: as in `xlruntime.load`; without effect here.
        step_timeout: None. PyTorch cannot end a step, and code in the bundle could do anything else instead.
        ops: `auto` or `none`, both without effect. Kernels of ONNX Runtime are of no use to PyTorch.

    Raises:
        MissingDependencyError: PyTorch is not installed.
        BundleNotFoundError, BundleError: the bundle is missing or broken, or ONNX Runtime must run it.
        OptionError: another device, CUDA graphs, a time limit or a library of kernels were chosen.
    """
    require("convert")
    if threads is not None and threads < 1:
        raise OptionError(f"threads is {threads}, at least 1 is needed.")
    if device != "cpu" or cuda_graphs:
        raise OptionError(
            f"{folder}: PyTorch runs this bundle on the CPU, where it was traced, not on {device} or in CUDA graphs.",
            repair="Use device cpu, or convert the checkpoint with --to onnx.",
        )
    if step_timeout is not None:
        raise OptionError(
            f"{folder}: PyTorch runs this bundle, and cannot end a step.", repair="Leave step_timeout out."
        )
    if ops not in ("auto", "none"):
        raise OptionError(
            f"{folder}: PyTorch runs this bundle, and cannot use the kernels of {ops}.", repair="Leave ops out."
        )
    bundle = read_bundle(Path(folder), check_files)
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    sessions = TorchSessions(Path(folder), bundle)
    return Model(Path(folder), bundle, Device("cpu"), threads, strict_device, open_session=sessions)


class TorchSessions:
    """Opens the sessions of a bundle that PyTorch runs. Graphs share the files and weights that they have in common."""

    def __init__(self, folder: Path, bundle: Bundle) -> None:
        self.folder = folder
        self.bundle = bundle
        self._files: dict[str, Any] = {}  # TorchScript modules, and weights, by file

    def __call__(self, purpose: str, graph: Graph) -> TorchSession:
        """Open the session of one graph.

        Raises:
            BundleError: the file does not match the manifest, or is not a PyTorch file.
        """
        if graph.format == "torchscript":
            module, metadata = self._shared(graph.file, self._load_torchscript)
            if not hasattr(module, purpose):
                raise BundleError(
                    f"{self.folder / graph.file}: no method {purpose!r} in it.", repair="Convert the checkpoint again."
                )
            return TorchSession(self.folder / graph.file, graph, getattr(module, purpose), metadata[purpose])
        if graph.format == "exported-program":
            program, found = self._load_program(graph.file)
            return TorchSession(self.folder / graph.file, graph, program, found)
        raise BundleError(f"{self.folder / graph.file}: {graph.format}, not of PyTorch.", repair="Use xlruntime.load.")

    def _shared(self, name: str, make: Callable[[str], Any]) -> Any:
        if name not in self._files:
            self._files[name] = make(name)
        return self._files[name]

    def _checked(self, name: str) -> io.BytesIO:
        """Return the content of a file after comparing it with its digest; later changes of the file have no effect.

        Raises:
            BundleError: the content does not match the manifest.
        """
        path, wanted = self.folder / name, self.bundle.files[name]
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise BundleError(
                f"{path}: missing.", repair="Copy the bundle again, or convert the checkpoint again."
            ) from error
        if hashlib.sha256(content).hexdigest() != wanted.sha256:
            raise BundleError(
                f"{path}: was changed ({len(content):,} bytes, expected {wanted.size:,} with SHA-256 "
                f"{wanted.sha256[:12]}…), so nothing of it was loaded.",
                repair="Copy the bundle again.",
            )
        return io.BytesIO(content)

    def _load_torchscript(self, name: str) -> tuple[Any, dict[str, str]]:
        import torch

        from xlexport.export.torchscript import metadata_name

        extra = {metadata_name(purpose): "" for purpose in self.bundle.graphs}
        content = self._checked(name)
        with _loading(self.folder / name):
            module = torch.jit.load(content, map_location="cpu", _extra_files=extra)
        return module, {purpose: _text(extra[metadata_name(purpose)]) for purpose in self.bundle.graphs}

    def _load_program(self, name: str) -> tuple[Call, str]:
        import torch

        if (architecture := find(self.bundle.architecture)) is not None:
            architecture.register_operators()
        weights = self._shared(WEIGHTS_FILE, self._load_weights)
        extra = {METADATA_KEY: ""}
        content = self._checked(name)
        with _loading(self.folder / name):
            program = torch.export.load(content, extra_files=extra)
            module = program.module(check_guards=False)
            module.load_state_dict({key: weights[key] for key in program.state_dict}, assign=True)
        return module, _text(extra[METADATA_KEY])

    def _load_weights(self, name: str) -> dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        with _loading(self.folder / name):
            return dict(load_file(self.folder / name))


class TorchSession:
    """One graph, run by PyTorch. Any number of threads may run it at once.

    Each step returns new memories, which replace the old ones.
    """

    def __init__(self, file: Path, graph: Graph, call: Call, metadata: str) -> None:
        self.graph = graph
        self.device = Device("cpu")
        self.inputs = {tensor.name for tensor in graph.inputs}
        self.outputs = [tensor.name for tensor in graph.outputs]
        self._file, self._call, self._metadata = file, call, metadata

    @property
    def providers(self) -> list[str]:
        """The name of the library that runs the graph."""
        return ["PyTorch"]

    @property
    def nodes(self) -> tuple[PlacedNode, ...]:
        """An empty tuple, because PyTorch does not list nodes."""
        return ()

    @property
    def metadata(self) -> str | None:
        """The graph's own spec, as stored in the file."""
        return self._metadata

    def run(self, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Run as a pure function: numpy in, every output out."""
        return {name: value.numpy() for name, value in self.run_on_device(feeds).items()}

    def run_on_device(self, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
        """Run as a pure function and return every output as a tensor, which `step` takes as a memory's constant."""
        return self._run(_tensors(feeds))

    def step(self, feeds: Mapping[str, npt.NDArray[Any]], memory: BatchMemory) -> dict[str, npt.NDArray[Any]]:
        """Run a step like `GraphSession.step`, but with new memories."""
        import torch

        given = {entry.input: torch.from_numpy(memory.array(entry)) for entry in memory.entries}
        made = self._run({**memory.constants, **_tensors(feeds), **given})
        for entry in memory.entries:
            memory.put(entry, made.pop(entry.output).numpy())
        return {name: value.numpy() for name, value in made.items()}

    def _run(self, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        import torch

        with torch.inference_mode():
            try:
                made = self._call(**{name: value for name, value in given.items() if name in self.inputs})
                return {name: made[name] for name in self.outputs}
            except (RuntimeError, KeyError) as error:
                reason = first_line(error)
                if "allocate" in reason:
                    raise MemoryError(reason) from error
                raise BundleError(
                    f"{self._file}: PyTorch cannot run it ({reason}).", repair="Convert the checkpoint again."
                ) from error


def _tensors(feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, torch.Tensor]:
    import torch

    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in feeds.items()}


@contextlib.contextmanager
def _loading(path: Path) -> Iterator[None]:
    """Raise BundleError for any exception of PyTorch on a wrong file, because these share no base class."""
    import torch

    logger = logging.getLogger("torch.export")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        raise BundleError(
            f"{path}: torch {torch.__version__} cannot load it ({first_line(error)}).",
            repair=(
                "Copy the bundle again, convert the checkpoint again, or install the version of PyTorch that "
                "bundle.json names."
            ),
        ) from error
    finally:
        logger.setLevel(level)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
