"""Table 3 of the Reformer paper: memory of training by kind of model, with the memory measured.

A cell is the peak of resident memory (Linux: VmHWM) of a fresh process while it trains for two updates, minus what it
held after a run of a tiny model of the same kind. It includes weights, gradients and Adam's state, which the paper's
column leaves out; `weights` is the size of the weights alone. `swapped` models keep layers in a mapped file. `pages` is
the part of it that is in the process's memory at most. A second run looks at it after every block of a layer and every
step of the optimizer. The kernel may also hold pages of this file as cache, which no process owns. Scale `depth` has
little text and many layers, so that weights are what counts; it measures evaluation, too. All numbers are in
RUNS/SCALE/reformer_table3.json.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.sides import run_once
from experiments.duplication import N_TOKEN, DuplicationTask
from experiments.running import print_rows
from xltraining.layers.swapping import LayerStore
from xltraining.loop.train import TrainingConfig, train
from xltraining.reformer import Reformer, ReformerConfig
from xltraining.reformer.attention import ReformerAttention
from xltraining.reformer.model import ReformerFeedForward

__all__ = ["FREE_AT_ONCE", "MODELS", "SCALES", "Model", "cell", "main", "peak_of"]

MEGABYTE = 1e6
FREE_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""An environment in which the allocator of a new process gives freed blocks back at once."""
UPDATES = 2


@dataclass(frozen=True)
class Model:
    """A row of the table.

    Attributes:
        paper: the paper's memory complexity; None if the paper has no such row.
        fields: of the configuration.
    """

    name: str
    paper: str | None
    kind: str
    fields: dict[str, Any]
    reversible: bool = True
    swapped: bool = False
    trained: bool = True


ORDINARY = {"residual": "ordinary"}
CHUNKS = {"ff_chunk": 64}
MODELS = (
    Model("Transformer", "max(b l d_ff, b n_h l^2) n_l", "separate", ORDINARY, reversible=False),
    Model("reversible", "max(b l d_ff, b n_h l^2)", "separate", {}),
    Model("chunked reversible", "max(b l d_model, b n_h l^2)", "separate", CHUNKS),
    Model("with memory-efficient attention", None, "separate", {**CHUNKS, "full_chunk": 64}),
    Model("LSH", "max(b l d_ff, b n_h l n_r c) n_l", "lsh", ORDINARY, reversible=False),
    Model("Reformer", "max(b l d_model, b n_h l n_r c)", "lsh", CHUNKS),
    Model("Reformer, swapped", None, "lsh", CHUNKS, swapped=True),
)
DEEP = (
    *MODELS[-2:],
    Model("Reformer, evaluated", None, "lsh", CHUNKS, trained=False),
    Model("Reformer, swapped, evaluated", None, "lsh", CHUNKS, swapped=True, trained=False),
)


@dataclass(frozen=True)
class Scale:
    """Sizes of the models of a table."""

    models: tuple[Model, ...]
    d_model: int
    layers: tuple[int, ...]
    lengths: tuple[int, ...]


SCALES = {
    "tiny": Scale(MODELS, 32, (1, 2), (64,)),
    "small": Scale(MODELS, 256, (2, 6), (256, 1024)),
    "depth": Scale(DEEP, 512, (6, 12, 24, 48), (128,)),
    "long": Scale((*MODELS[4:6],), 128, (2, 4), (8192, 16_384)),
    "large": Scale(MODELS, 1024, (3, 6, 12), (4096, 65_536)),
}


def _config(model: Model, d_model: int, layers: int, length: int) -> ReformerConfig:
    return ReformerConfig(
        n_token=N_TOKEN, d_model=d_model, n_head=4, d_head=d_model // 4, d_inner=4 * d_model,
        attn_layers=(model.kind,) * layers, rule="paper", n_hashes=2, n_buckets=(16,), chunk_length=32, tgt_len=length,
        position="sinusoid", max_positions=0, dropout=0.0, **model.fields,
    )  # fmt: skip


class _Measured(Exception):
    """The end of a measured run."""


def _stop(step: int) -> None:
    if step == UPDATES:
        raise _Measured


def _run(model: Model, config: ReformerConfig, folder: Path) -> None:
    """Train for two updates, or evaluate one batch."""
    if model.trained:
        training = TrainingConfig(
            steps=UPDATES + 1, batch_size=1, threads=1, reversible=model.reversible, swap_layers=model.swapped,
            eval_every=10,
        )  # fmt: skip
        with contextlib.suppress(_Measured):  # without a checkpoint, whose writing would take most of the time
            train(
                config, training, (), (), folder / "run", task=DuplicationTask.of(config, training),
                report=lambda line: None, on_step=_stop,
            )  # fmt: skip
    else:
        reformer = Reformer(config, LayerStore(torch.device("cpu"), folder) if model.swapped else None).eval()
        with torch.no_grad():
            reformer(torch.zeros(1, config.tgt_len, dtype=torch.int64))


def _status(name: str) -> int:
    """Return a number of bytes that the kernel reports of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def peak_of(small: Callable[[], object], run: Callable[[], object]) -> float:
    """Return the peak of memory in MB of a run, above what this process holds after a small one of the same kind."""
    small()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    before = _status("VmRSS")
    run()
    return (_status("VmHWM") - before) / MEGABYTE


def _pages(folder: Path) -> int:
    """Return the bytes of this process's memory that are pages of files in a folder."""
    size, ours = 0, False
    with Path("/proc/self/smaps").open() as lines:
        for line in lines:
            first, second, *_ = line.split()
            if not first.endswith(":"):  # a new mapping, with the path of its file
                ours = f" {folder}/" in line
            elif ours and first == "Rss:":
                size += 1024 * int(second)
    return size


@contextlib.contextmanager
def _looking(folder: Path) -> Iterator[list[int]]:
    """Look at the pages of a folder's files after each block of a layer and each step of an optimizer."""
    seen = [0]

    def after_block(module: nn.Module, *_: object) -> None:
        if isinstance(module, ReformerAttention | ReformerFeedForward):
            seen.append(_pages(folder))

    hooks = (
        register_module_forward_hook(after_block),
        register_optimizer_step_post_hook(lambda *_: seen.append(_pages(folder))),
    )
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def cell(model: Model, d_model: int, layers: int, length: int, folder: Path) -> dict[str, float]:
    """Measure in this process, which should be fresh; return megabytes."""
    torch.set_num_threads(1)
    for run in ("first", "second", "third"):
        (folder / run).mkdir()
    config = _config(model, d_model, layers, length)
    peak = peak_of(
        lambda: _run(model, _config(model, 32, 1, 64), folder / "first"),
        lambda: _run(model, config, folder / "second"),
    )
    with torch.device("meta"):
        weights = sum(weight.nbytes for weight in Reformer(config).parameters())
    megabytes = {"peak": peak, "weights": weights / MEGABYTE}
    if model.swapped:
        with _looking(folder) as seen:
            _run(model, config, folder / "third")
        megabytes["pages"] = max(seen) / MEGABYTE
    return megabytes


def _in_fresh_process(model: Model, d_model: int, layers: int, length: int, out: Path) -> dict[str, float]:
    """Measure a cell in a process whose allocator gives freed blocks back at once; a store sees to that itself."""
    environment = {} if model.swapped else FREE_AT_ONCE
    with tempfile.TemporaryDirectory(dir=out) as folder:
        measured = run_once(cell, model, d_model, layers, length, Path(folder), environment=environment)
        return dict(measured)


@click.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of results.")
@click.option("--scale", type=click.Choice(list(SCALES)), default="tiny", show_default=True, help="Size.")
def main(out: Path, scale: str) -> None:
    """Table 3: the memory of training by kind of model, number of layers and length."""
    size = SCALES[scale]
    folder = out / scale
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "reformer_table3.json"
    kept: dict[str, dict[str, dict[str, float]]] = json.loads(file.read_text()) if file.exists() else {}
    sizes = [(layers, length) for length in size.lengths for layers in size.layers]
    for model in size.models:
        for layers, length in sizes:
            cells = kept.setdefault(model.name, {})
            if f"{layers}x{length}" not in cells:
                cells[f"{layers}x{length}"] = _in_fresh_process(model, size.d_model, layers, length, folder)
                file.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    names = [f"{layers}x{length}" for layers, length in sizes]
    rows: list[tuple[str | None, ...]] = []
    for model in size.models:
        rows.append((model.name, model.paper, *(f"{kept[model.name][name]['peak']:.1f}" for name in names)))
        if model.swapped:
            rows.append(("  pages", None, *(f"{kept[model.name][name]['pages']:.1f}" for name in names)))
    weights = [f"{kept[size.models[-1].name][name]['weights']:.0f}" for name in names]
    print_rows(
        ("MB", "paper", *(f"{layers} layers, {length}" for layers, length in sizes)),
        [*rows, ("weights", None, *weights)],
    )
