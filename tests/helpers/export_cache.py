"""A cache of exported graphs, which copies the files that the same step, code and libraries exported before.

Tracing takes seconds for each model, and tests convert the same few models on every run. The key of an entry is all
that determines its files: the step with its weights, the sources that write graphs, and the versions of the libraries.
The key does not see code that a test has replaced, so a test that breaks a step cannot use the cache.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import importlib
import importlib.metadata
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.helpers.paths import ROOT

EXPORTERS = {
    "export_onnx": "xlexport.export.onnx",
    "export_torchscript": "xlexport.export.torchscript",
    "export_programs": "xlexport.export.exported_program",
}
SOURCES = (
    "xlexport/families",
    "xlexport/export",
    "xlexport/ops",
    "training/xltraining",
    "runtime/python/xlruntime",
)
SINGLE_SOURCES = ("xlexport/atomic_output.py", "xlexport/bundles.py", "tests/helpers/export_cache.py")
LIBRARIES = ("torch", "onnx", "onnxscript", "onnx-ir", "safetensors")
GRAPHS = "graphs.pickle"  # the exporter's result; written last
KEPT = 200  # entries; the oldest are removed

Export = Callable[..., Any]


@functools.cache
def code_digest() -> str:
    """Return a digest of the sources and library versions that shape a graph."""
    digest = hashlib.sha256(sys.version.encode())
    for name in LIBRARIES:
        digest.update(f"{name} {importlib.metadata.version(name)}\n".encode())
    files = [file for folder in SOURCES for file in (ROOT / folder).rglob("*.py")]
    for file in sorted([*files, *(ROOT / name for name in SINGLE_SOURCES)]):
        digest.update(f"{file.relative_to(ROOT)} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def step_digest(step: Any) -> str:
    """Return a digest of a step: its classes, settings, weights and declared inputs and outputs."""
    import torch

    torch_keeps = set(vars(torch.nn.Module())) - {"training"}  # parameters, submodules and hooks
    digest = hashlib.sha256()
    for name, module in step.named_modules():
        settings = {key: repr(value) for key, value in sorted(vars(module).items()) if key not in torch_keeps}
        settings = {key: value for key, value in settings.items() if " at 0x" not in value}
        digest.update(f"{name} {type(module).__module__}.{type(module).__qualname__} {settings}\n".encode())
    for name, tensor in [*step.named_parameters(remove_duplicate=False), *step.named_buffers(remove_duplicate=False)]:
        values = tensor.detach().contiguous().cpu()
        digest.update(f"{name} {tuple(values.shape)} {values.dtype} {tensor.requires_grad}\n".encode())
        digest.update(values.numpy().tobytes())
    tied = [names for names in _same_storage(step).values() if len(names) > 1]
    digest.update(f"{sorted(tied)} {step.inputs} {step.purposes} {step.forms} {step.memory}\n".encode())
    digest.update(repr([(tuple(one.shape), one.dtype) for one in step.example()]).encode())
    return digest.hexdigest()


def _same_storage(step: Any) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name, parameter in step.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), []).append(name)
    return found


class Cache:
    """Entries in a folder; a folder with `graphs.pickle` is complete, and any other is ignored.

    Attributes:
        hits, misses: how many exports were copied, and how many were made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hits = self.misses = 0

    def export(self, name: str, export: Export, step: Any, folder: Path, shorter: Sequence[Any] = ()) -> dict[str, Any]:
        """Export `step` into `folder`, with shorter ones, or copy what the same export wrote before."""
        digests = " ".join(map(step_digest, (step, *shorter)))
        key = hashlib.sha256(f"{name} {code_digest()} {digests}".encode()).hexdigest()[:32]
        entry = self.folder / key
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / f"{key}.lock"):  # another worker may run the same export
            if not (entry / GRAPHS).is_file():
                self.misses += 1
                graphs = self._make(entry, functools.partial(export, step, **({"shorter": shorter} if shorter else {})))
            else:
                self.hits += 1
                graphs = pickle.loads((entry / GRAPHS).read_bytes())
        os.utime(entry)
        for file in entry.iterdir():
            if file.name != GRAPHS:
                shutil.copyfile(file, folder / file.name)
        return graphs

    def _make(self, entry: Path, export: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
        """Export into a temporary folder and rename it, so that an entry is complete or does not exist."""
        shutil.rmtree(entry, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=self.folder, prefix="making-", ignore_cleanup_errors=True) as name:
            made = Path(name) / "entry"
            made.mkdir()
            graphs = export(made)
            (made / GRAPHS).write_bytes(pickle.dumps(graphs))
            made.rename(entry)
        gc.collect()
        gc.freeze()  # torch keeps traced modules; freeze them to keep later garbage collections fast
        return graphs

    def shrink(self, kept: int = KEPT) -> None:
        """Remove the least recently used entries; no process may use the cache meanwhile."""
        entries = sorted(self.folder.glob(f"*/{GRAPHS}"), key=lambda file: -file.parent.stat().st_mtime)
        for file in entries[kept:]:
            shutil.rmtree(file.parent, ignore_errors=True)


CACHE = Cache(ROOT / ".pytest_cache" / "exports")


@contextmanager
def cached_exports(cache: Cache = CACHE) -> Iterator[None]:
    """Make every caller of an exporter use the cache, in all modules that imported it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, home in EXPORTERS.items():
            original: Export = getattr(importlib.import_module(home), name)
            if isinstance(original, functools.partial):
                continue  # a fixture that a cached test asks for
            cached = functools.partial(cache.export, name, original)
            for module in [module for key, module in sys.modules.items() if key.partition(".")[0] == "xlexport"]:
                if vars(module).get(name) is original:
                    patch.setattr(module, name, cached)
        yield
