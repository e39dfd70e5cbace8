"""Run bundles of TorchScript, exported programs or ExecuTorch under the runtime's own interface.

PyTorch executes code in a file that it loads, and native code of ExecuTorch relies on what is in one. So each file is
read once, its content is compared with its digest, and only this content is loaded. The caller must decide whether to
trust the bundle like a program.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from xlexport.extras import require
from xlruntime.bundle import Bundle, Graph
from xlruntime.bundle_files import check_kind, read_bundle
from xlruntime.devices import Device
from xlruntime.errors import BundleDamagedError, BundleGraphError, OptionError
from xlruntime.hub_cache import bundle_folder
from xlruntime.load_options import LoadKeywords, LoadOptions
from xlruntime.messages import first_line, listed
from xlruntime.model import Model
from xlruntime.placement import PlacedNode
from xlruntime.translator import Translator

if TYPE_CHECKING:
    import torch

    from xlruntime.memory import Memory

__all__ = ["WEIGHTS_FILE", "TorchSession", "TorchSessions", "load", "load_translator"]

WEIGHTS_FILE = "weights.safetensors"  # of all exported programs of a bundle

Kind = TypeVar("Kind", Model, Translator)
Call = Callable[..., Mapping[str, "torch.Tensor"]]


def load_translator(folder: str | Path, **options: Unpack[LoadKeywords]) -> Translator:
    """Open an encoder-decoder of exported programs, as `load` opens language models: open only trusted ones."""
    return _open(Translator, folder, options)


def load(folder: str | Path, **options: Unpack[LoadKeywords]) -> Model:
    """Open a bundle of TorchScript, exported programs or ExecuTorch, which may execute code: open only trusted ones.

    Args:
        folder: the output of `xlexport convert --to torchscript`, `--to exported-program` or `--to executorch`.
        options: the fields of `LoadOptions`. `threads` are those of PyTorch and ExecuTorch in this process from now
            on. Files that hold code are always compared with their digests. `strict_device` and `check` have no effect.
            A device other than `cpu`, a `step_timeout` (code in the bundle could do anything else instead) or a library
            as `ops` is refused.

    Raises:
        MissingDependencyError: PyTorch or ExecuTorch is not installed.
        BundleError: the bundle is missing or broken, or ONNX Runtime must run it.
        OptionError: another device, CUDA graphs, a time limit or a library of kernels were chosen.
    """
    return _open(Model, folder, options)


def _open(kind: type[Kind], folder: str | Path, options: LoadKeywords) -> Kind:
    require("convert")
    chosen = LoadOptions.of(options)
    if str(chosen.place) != "cpu":
        raise OptionError(
            f"{folder}: PyTorch runs this bundle on the CPU, where it was traced, not on {chosen.place}.",
            hint="Use device cpu, or convert the checkpoint with --to onnx.",
        )
    if chosen.step_timeout is not None:
        raise OptionError(
            f"{folder}: PyTorch runs this bundle, and cannot interrupt a step.", hint="Leave step_timeout out."
        )
    if chosen.ops not in ("auto", "none"):
        raise OptionError(
            f"{folder}: PyTorch runs this bundle, and cannot use the kernels of {chosen.ops}.", hint="Leave ops out."
        )
    path = bundle_folder(folder)
    bundle = read_bundle(path, chosen.digest, chosen.check_files)
    check_kind(path, bundle, kind.kind)
    if chosen.threads is not None:
        import torch

        torch.set_num_threads(chosen.threads)
    sessions = TorchSessions(path, bundle, chosen.threads)
    return kind(path, bundle, replace(chosen, ops="none"), open_session=sessions)


class TorchSessions:
    """Opens the sessions of a bundle that PyTorch runs. Graphs share the files and weights that they have in common."""

    def __init__(self, folder: Path, bundle: Bundle, threads: int | None) -> None:
        self.folder, self.bundle, self.threads = folder, bundle, threads
        self._files: dict[str, Any] = {}  # TorchScript modules, ExecuTorch programs and weights, by file
        self._lock = threading.Lock()

    def __call__(self, purpose: str, graph: Graph) -> TorchSession:
        """Open the session of one graph.

        Raises:
            BundleGraphError: the file does not match the manifest, or is not a PyTorch file.
        """
        if graph.format == "torchscript":
            module = self._shared(graph.file, self._load_torchscript)
            if not hasattr(module, purpose):
                raise self._no_method(purpose, graph)
            return self._session(graph, getattr(module, purpose))
        if graph.format == "exported-program":
            return self._session(graph, self._load_program(graph))
        if graph.format == "executorch":
            return self._session(graph, self._load_method(purpose, graph))
        raise BundleGraphError(
            f"{self.folder / graph.file}: {graph.format}, not of PyTorch.", hint="Use xlruntime.load."
        )

    def _session(self, graph: Graph, call: Call) -> TorchSession:
        return TorchSession(self.folder / graph.file, graph, self._outputs(graph), call)

    def _outputs(self, graph: Graph) -> list[str]:
        """Return the names of all outputs in the order of the graph, memories last."""
        return [*graph.outputs, *(entry.output for entry in self.bundle.memory if entry.input in graph.inputs)]

    def _no_method(self, name: str, graph: Graph) -> BundleGraphError:
        return BundleGraphError(
            f"{self.folder / graph.file}: no method {name!r} in it.", hint="Convert the checkpoint again."
        )

    def _shared(self, name: str, make: Callable[[str], Any]) -> Any:
        if name not in self._files:
            self._files[name] = make(name)
        return self._files[name]

    def _checked(self, name: str) -> io.BytesIO:
        """Return the content of a file after comparing it with its digest; later changes of the file have no effect.

        Raises:
            BundleDamagedError: the content does not match the manifest.
        """
        path, digest = self.folder / name, self.bundle.files[name]
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise BundleDamagedError(
                f"{path}: missing.", hint="Copy the bundle again, or convert the checkpoint again."
            ) from error
        if hashlib.sha256(content).hexdigest() != digest.sha256:
            raise BundleDamagedError(
                f"{path}: was changed ({len(content):,} bytes, expected {digest.size:,} with SHA-256 "
                f"{digest.sha256[:12]}…), so nothing of it was loaded.",
                hint="Copy the bundle again.",
            )
        return io.BytesIO(content)

    def _load_torchscript(self, name: str) -> Any:
        import torch

        content = self._checked(name)
        with _loading(self.folder / name):
            return torch.jit.load(content, map_location="cpu")

    def _load_program(self, graph: Graph) -> Call:
        import torch

        import xlexport.ops  # noqa: F401  # registers the operators of Reformers

        weights = self._shared(WEIGHTS_FILE, self._load_weights)
        content = self._checked(graph.file)
        with _loading(self.folder / graph.file):
            program = torch.export.load(content)
            module = program.module(check_guards=False)
            module.load_state_dict({key: weights[key] for key in program.state_dict}, assign=True)
        inputs = set(program.example_inputs[1])
        if inputs != graph.inputs.keys():
            raise BundleGraphError(
                f"{self.folder / graph.file}: its inputs are {listed(sorted(inputs))}, expected "
                f"{listed(sorted(graph.inputs))}.",
                hint="Convert the checkpoint again.",
            )
        call: Call = module
        return call

    def _load_method(self, name: str, graph: Graph) -> Call:
        program = self._shared(graph.file, self._load_executorch)
        if name not in program.method_names:
            raise self._no_method(name, graph)
        with _loading(self.folder / graph.file):
            method = program.load_method(name)
        outputs = self._outputs(graph)

        def call(**inputs: torch.Tensor) -> Mapping[str, torch.Tensor]:
            with self._lock:  # all methods of a program compute in the same memory
                values = method.execute([inputs[name] for name in graph.inputs])
            return dict(zip(outputs, values, strict=True))

        return call

    def _load_executorch(self, name: str) -> Any:
        require(None, "executorch")
        content = self._checked(name)
        with _loading(self.folder / name):
            from executorch.extension.pybindings import portable_lib
            from executorch.runtime import Runtime

            if self.threads not in (None, portable_lib._threadpool_get_thread_count()):
                portable_lib._unsafe_reset_threadpool(self.threads)  # unsafe only while a step runs
            return Runtime.get().load_program(content.getvalue())

    def _load_weights(self, name: str) -> dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        with _loading(self.folder / name):
            return dict(load_file(self.folder / name))


class TorchSession:
    """One graph, run by PyTorch or ExecuTorch. Any number of threads may call it at once.

    Each step returns new memories, which replace the old ones.
    """

    def __init__(self, file: Path, graph: Graph, outputs: Sequence[str], call: Call) -> None:
        self.graph = graph
        self.device = Device("cpu")
        self._file, self._outputs, self._call = file, outputs, call
        self._library = "ExecuTorch" if graph.format == "executorch" else "PyTorch"

    @property
    def providers(self) -> list[str]:
        """The name of the library that runs the graph."""
        return [self._library]

    @property
    def nodes(self) -> tuple[PlacedNode, ...]:
        """An empty tuple, because neither library lists nodes."""
        return ()

    def run(self, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Run as a pure function: numpy in, every output out."""
        return {name: value.numpy() for name, value in self._run(_tensors(feeds)).items()}

    def constant(self, array: npt.NDArray[Any]) -> torch.Tensor:
        """Return an array as a tensor, which `step` takes as a memory's constant."""
        import torch

        return torch.from_numpy(array)

    def step(self, feeds: Mapping[str, npt.NDArray[Any]], memory: Memory) -> dict[str, npt.NDArray[Any]]:
        """Run a step like `GraphSession.step`, but with new memories."""
        import torch

        memory_inputs = {entry.input: torch.from_numpy(memory.array(entry)) for entry in memory.entries}
        outputs = self._run({**memory.constants, **_tensors(feeds), **memory_inputs})
        for entry in memory.entries:
            memory.put(entry, outputs.pop(entry.output).numpy())
        return {name: value.numpy() for name, value in outputs.items()}

    def _run(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        import torch

        with torch.inference_mode():
            try:
                outputs = self._call(**{name: value for name, value in inputs.items() if name in self.graph.inputs})
                return {name: outputs[name] for name in self._outputs}
            except (RuntimeError, KeyError, ValueError) as error:
                reason = first_line(error)
                if "allocate" in reason:
                    raise MemoryError(reason) from error
                raise BundleGraphError(
                    f"{self._file}: {self._library} cannot run it ({reason}).", hint="Convert the checkpoint again."
                ) from error


def _tensors(feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, torch.Tensor]:
    import torch

    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in feeds.items()}


@contextlib.contextmanager
def _loading(path: Path) -> Iterator[None]:
    """Raise BundleGraphError for any exception on a wrong file, because these share no base class. Log nothing."""
    import torch

    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        raise BundleGraphError(
            f"{path}: torch {torch.__version__} cannot load it ({first_line(error)}).",
            hint=(
                "Copy the bundle again, convert the checkpoint again, or install the version of PyTorch that "
                "bundle.json names."
            ),
        ) from error
    finally:
        logging.disable(disabled)
