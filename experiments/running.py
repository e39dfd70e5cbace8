"""Train the models of an experiment, or take them from its folder; score them with several attention lengths."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from experiments.scales import SCALES, Scale, Variant, model_of, training_of
from xltraining.checkpoint import build_model, load_checkpoint
from xltraining.data.byte_streams import read_bytes
from xltraining.data.token_shards import read_prepared
from xltraining.evaluation import evaluate
from xltraining.train import train
from xltraining.transformer_xl import TransformerXL

__all__ = ["Experiment", "bits_at_length", "experiment_options", "mean_and_error", "print_rows"]

STREAMS = 8
PROBE = 4  # updates that an estimate measures; the first is not counted


@dataclass(frozen=True)
class Experiment:
    """The text, the size and the folder of an experiment.

    Attributes:
        files: what `train` reads: a file of bytes, or a folder of prepared data.
        held_out: (N,) tokens to evaluate with.
    """

    scale: Scale
    folder: Path
    files: tuple[Path, ...]
    held_out: Tensor
    n_token: int
    device: str
    seeds: int

    def run(self, variants: Sequence[Variant]) -> None:
        """Say how long the models take that are not trained yet, and train them."""
        missing = [(v, seed) for v in variants for seed in range(self.seeds) if not self._is_trained(v, seed)]
        if not missing:
            return
        seconds = self._seconds_of_update(missing[0][0]) * self.scale.steps * len(missing)
        click.echo(f"{len(missing)} models of {self.scale.steps:,} updates: about {_duration(seconds)} here", err=True)
        for number, (variant, seed) in enumerate(missing, start=1):
            click.echo(f"[{number}/{len(missing)}] {variant.name}, seed {seed}", err=True)
            self.model(variant, seed)

    def model(self, variant: Variant, seed: int) -> TransformerXL:
        """Return a trained model in eval mode; train it first, or further, if it is not finished."""
        out = self._out(variant, seed)
        if not self._is_trained(variant, seed):
            config = training_of(variant, self.scale, seed, self.device)
            resume = (out / "checkpoint.pt").exists()
            train(model_of(variant, self.scale, self.n_token), config, self.files, (), out, resume=resume,
                  report=lambda line: None)  # fmt: skip
            (out / "finished").touch()
        model = build_model(load_checkpoint(out / "checkpoint.pt")).to(self.device)
        assert isinstance(model, TransformerXL)
        return model.eval()

    def keep(self, name: str, figures: Any) -> None:
        """Write figures into NAME.json of the folder."""
        (self.folder / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n", "utf-8")

    def _out(self, variant: Variant, seed: int) -> Path:
        return self.folder / f"{variant.name.replace(' ', '_')}-{seed}"

    def _is_trained(self, variant: Variant, seed: int) -> bool:
        return (self._out(variant, seed) / "finished").exists()

    def _seconds_of_update(self, variant: Variant) -> float:
        config = replace(training_of(variant, self.scale, 0, self.device), steps=PROBE)
        times: list[float] = []
        probe = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            train(model_of(variant, self.scale, self.n_token), config, self.files, (), probe / "probe", show_bar=False,
                  report=lambda line: None, on_step=lambda step: times.append(time.perf_counter()))  # fmt: skip
        finally:
            shutil.rmtree(probe)
        return (times[-1] - times[0]) / (PROBE - 1)


@torch.no_grad()
def bits_at_length(model: TransformerXL, text: Tensor, length: int, recurrence: bool) -> float:
    """Return bits per token of a text (N,) if a token attends to about `length` tokens.

    With recurrence every token attends to exactly so many, in memory and segment. Without, and for absolute places, a
    model reads windows of `length` tokens, and predicts the last quarter of each.
    """
    if recurrence:
        evaluated = model.with_evaluation(mem_len=length, same_length=True)
        return evaluate(evaluated, text, model.config.tgt_len, STREAMS)
    scored = max(1, length // 4)
    rows = text.long().unfold(0, length + 1, scored)  # (windows, length + 1)
    nats, count = 0.0, 0
    for part in rows.split(STREAMS * 4):
        tokens = part.to(next(model.parameters()).device)
        hidden, _ = model(tokens[:, :-1])
        log_probs = model.log_probs(hidden[:, length - scored :], tokens[:, 1 + length - scored :])
        nats -= float(log_probs.double().sum())
        count += log_probs.numel()
    return nats / count / math.log(2)


def mean_and_error(values: Sequence[float]) -> str:
    """Return the mean of the seeds, with its standard error if there are several."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.4f}"
    return f"{mean:.4f} ± {statistics.stdev(values) / math.sqrt(len(values)):.4f}"


def print_rows(heading: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; None is an empty cell."""
    cells = [[*heading], *([("" if cell is None else str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heading))]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def experiment_options(
    change: Callable[[bytes], bytes] = lambda text: text,
) -> Callable[[Callable[[Experiment], None]], click.Command]:
    """Make a command of a function that takes an experiment; `change` changes the text before it is divided."""

    def decorated(function: Callable[[Experiment], None]) -> click.Command:
        def run(
            out: Path, scale: str, text: Path | None, data: Path | None, device: str, seeds: int | None, threads: int
        ) -> None:
            torch.set_num_threads(threads)
            size = SCALES[scale]
            folder = out / scale
            folder.mkdir(parents=True, exist_ok=True)
            if (text is None) == (data is None):
                raise click.UsageError("Give either --text or --data.")
            if text is not None:
                files, held_out, n_token = _divided(change(text.read_bytes()), size, folder)
            else:
                assert data is not None
                prepared = read_prepared(data)
                split = prepared.splits["valid"]
                held_out = torch.from_numpy(split.read(0, len(split)))
                files, n_token = (data,), prepared.n_token
            function(Experiment(size, folder, files, held_out, n_token, device, seeds or size.seeds))

        path = click.Path(path_type=Path)
        options = (
            click.option("--out", required=True, type=path, help="Folder of runs and results."),
            click.option("--scale", type=click.Choice(list(SCALES)), default="tiny", show_default=True, help="Size."),
            click.option("--text", type=path, help="Text, read as bytes; its last tenth is held out."),
            click.option("--data", type=path, help="Folder of `xlexport prepare` with a held-out split."),
            click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N."),
            click.option("--seeds", type=click.IntRange(1), help="Seeds of each model.  [default: those of the scale]"),
            click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="CPU threads."),
        )
        for option in reversed(options):
            run = option(run)
        return click.command(help=function.__doc__)(run)

    return decorated


def _divided(text: bytes, scale: Scale, folder: Path) -> tuple[tuple[Path, ...], Tensor, int]:
    """Write the part to train on into the folder; return it, the held-out tenth, and the size of the vocabulary."""
    text = text[: scale.most] if scale.most else text
    cut = len(text) * 9 // 10
    trained, held_out = folder / "train.txt", folder / "held_out.txt"
    for file, part in ((trained, text[:cut]), (held_out, text[cut:])):
        if file.exists() and file.read_bytes() != part:
            raise click.UsageError(f"{file}: the models in this folder were trained on another text; choose another.")
        file.write_bytes(part)
    return (trained,), read_bytes([held_out]), 256


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
