"""Train the models of an experiment, or take them from its folder; score them with several attention lengths."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from experiments.scales import SCALES, Scale, Variant, model_of, training_of
from xlexport.errors import XlexportError
from xltraining.checkpoint import build_model, load_checkpoint
from xltraining.config_fields import ModelConfig
from xltraining.data.streams import read_bytes
from xltraining.data.token_shards import read_prepared
from xltraining.errors import XltrainingError
from xltraining.evaluation import evaluate
from xltraining.language_model import LanguageModel
from xltraining.loop.saved_run import saved_run
from xltraining.train import train
from xltraining.transformer_xl import TransformerXL

__all__ = [
    "Experiment",
    "ExperimentCommand",
    "bits_at_length",
    "experiment_options",
    "mean_and_error",
    "print_rows",
    "standard_error",
]

STREAMS = 8
PROBE = 4  # updates that an estimate measures; the first is not counted
INTERRUPTED = 130  # what shells report for a process that Ctrl-C ended


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
    config_of: Callable[[Variant, Scale, int, tuple[int, ...]], ModelConfig] = model_of
    only: tuple[str, ...] = ()
    cutoffs: tuple[int, ...] = ()

    def config(self, variant: Variant) -> ModelConfig:
        """Return the configuration of a model."""
        return self.config_of(variant, self.scale, self.n_token, self.cutoffs)

    def chosen(self, variants: Sequence[Variant]) -> list[Variant]:
        """Return the models that `--only` names, or all.

        Raises:
            click.UsageError: a name is unknown.
        """
        unknown = set(self.only) - {variant.name for variant in variants}
        if unknown:
            raise click.UsageError(f"--only: unknown {', '.join(sorted(unknown))}; expected {_names(variants)}.")
        return [variant for variant in variants if not self.only or variant.name in self.only]

    def run(self, variants: Sequence[Variant]) -> None:
        """Say how long the models take that are not trained yet, and train them.

        Raises:
            click.UsageError: a model in the folder was trained with other settings.
        """
        missing = [(v, seed) for seed in range(self.seeds) for v in variants if not self._is_trained(v, seed)]
        if not missing:
            return
        of_update = {variant: self._seconds_of_update(variant) for variant in dict(missing)}
        seconds = sum(of_update[variant] for variant, _ in missing) * self.scale.steps
        models = "1 model" if len(missing) == 1 else f"{len(missing)} models"
        click.echo(f"{models} of {self.scale.steps:,} updates: about {_duration(seconds)} here", err=True)
        for number, (variant, seed) in enumerate(missing, start=1):
            click.echo(f"[{number}/{len(missing)}] {variant.name}, seed {seed}", err=True)
            self.trained(variant, seed)

    def model(self, variant: Variant, seed: int, averaged: bool = True) -> TransformerXL:
        """Return a trained Transformer-XL, as `trained` does."""
        model = self.trained(variant, seed, averaged)
        assert isinstance(model, TransformerXL)
        return model

    def trained(self, variant: Variant, seed: int, averaged: bool = True) -> LanguageModel:
        """Return a trained model in eval mode; train it first, or further, if it is not finished.

        Args:
            averaged: whether a model whose weights were averaged has the average, or else its last weights.
        """
        out = self._out(variant, seed)
        if not self._is_trained(variant, seed):
            config = training_of(variant, self.scale, seed, self.device)
            resume = (out / "checkpoint.pt").exists()
            result = train(self.config(variant), config, self.files, (), out, resume=resume,
                           report=lambda line: None)  # fmt: skip
            if result.interrupted:
                raise KeyboardInterrupt
            (out / "finished").touch()
        saved = load_checkpoint(out / "checkpoint.pt")
        averaging = (saved.training or {}).get("averaging")
        if averaging and not averaged:
            saved = replace(saved, state_dict=averaging["weights"])
        model = build_model(saved).to(self.device)
        assert isinstance(model, LanguageModel)
        return model.eval()

    def curve(self, variant: Variant, seed: int) -> list[tuple[int, float]]:
        """Return updates, and bits of the training text since the one before, from the log of a trained model."""
        lines = map(json.loads, (self._out(variant, seed) / "log.jsonl").read_text("utf-8").splitlines())
        return [
            (line["step"], next(value for name, value in line.items() if name.startswith("bits_"))) for line in lines
        ]

    def keep(self, name: str, figures: Any) -> None:
        """Write figures into NAME.json of the folder."""
        (self.folder / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n", "utf-8")

    def _out(self, variant: Variant, seed: int) -> Path:
        return self.folder / f"{(variant.run or variant.name).replace(' ', '_')}-{seed}"

    def _is_trained(self, variant: Variant, seed: int) -> bool:
        out = self._out(variant, seed)
        if not (out / "finished").exists():
            return False
        run = saved_run(out)
        # A model may be evaluated on another device than it was trained on.
        found = replace(run.training_config, device=self.device).to_dict()
        expected = training_of(variant, self.scale, seed, self.device).to_dict()
        if (run.model_config, found) != (self.config(variant), expected):
            raise click.UsageError(f"{out}: this model was trained with other settings; choose another --out.")
        return True

    def _seconds_of_update(self, variant: Variant) -> float:
        config = replace(training_of(variant, self.scale, 0, self.device), steps=PROBE)
        times: list[float] = []
        probe = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            result = train(self.config(variant), config, self.files, (), probe / "probe",
                           report=lambda line: None,
                           on_step=lambda step: times.append(time.perf_counter()))  # fmt: skip
            if result.interrupted:
                raise KeyboardInterrupt
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
    mean = f"{statistics.fmean(values):.4f}"
    return mean if len(values) < 2 else f"{mean} ± {standard_error(values):.4f}"


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of the seeds; 0 if there is only one."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def print_rows(heading: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; None is an empty cell."""
    cells = [[*heading], *([("" if cell is None else str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heading))]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


class ExperimentCommand(click.Command):
    """A command whose expected failures are one line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; after Ctrl-C say how to go on."""
        try:
            return super().invoke(ctx)
        except (XltrainingError, XlexportError) as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            click.echo("interrupted; the same command goes on from here.", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None


def experiment_options(
    change: Callable[[bytes], bytes] = lambda text: text,
    scales: Mapping[str, Scale] = SCALES,
    config_of: Callable[[Variant, Scale, int, tuple[int, ...]], ModelConfig] = model_of,
) -> Callable[[Callable[[Experiment], None]], click.Command]:
    """Make a command of a function that takes an experiment.

    Args:
        change: changes the text before it is divided.
        scales: the sizes to choose from; the first is the default.
        config_of: makes the configuration of a model.
    """

    def decorated(function: Callable[[Experiment], None]) -> click.Command:
        def run(
            out: Path,
            scale: str,
            text: Path | None,
            data: Path | None,
            device: str,
            seeds: int | None,
            threads: int,
            only: tuple[str, ...],
        ) -> None:
            torch.set_num_threads(threads)
            size = scales[scale]
            folder = out / scale
            folder.mkdir(parents=True, exist_ok=True)
            if (text is None) == (data is None):
                raise click.UsageError("Give either --text or --data.")
            if text is not None:
                cutoffs: tuple[int, ...] = ()
                files, held_out, n_token = _divided(change(text.read_bytes()), size, folder)
            else:
                assert data is not None
                prepared = read_prepared(data)
                split = prepared.splits["valid"]
                held_out = torch.from_numpy(split.read(0, len(split)))
                files, n_token, cutoffs = (data,), prepared.n_token, prepared.cutoffs
            held_out = held_out[: size.held_out] if size.held_out else held_out
            number = seeds or size.seeds
            function(Experiment(size, folder, files, held_out, n_token, device, number, config_of, only, cutoffs))

        path = partial(click.Path, path_type=Path)
        a_file, a_folder = path(exists=True, dir_okay=False), path(exists=True, file_okay=False)
        options = (
            click.option("--out", required=True, type=path(file_okay=False), help="Folder of runs and results."),
            click.option(
                "--scale",
                type=click.Choice(list(scales)),
                default="tiny",
                show_default=True,
                help="Size (experiments/README.md).",
            ),
            click.option("--text", type=a_file, help="Text, read as bytes; its last tenth is held out."),
            click.option("--data", type=a_folder, help="Folder of `xlexport prepare` with a held-out split."),
            click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N."),
            click.option("--seeds", type=click.IntRange(1), help="Seeds of each model.  [default: those of the scale]"),
            click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="CPU threads."),
            click.option("--only", multiple=True, help="Name of a model; may be repeated.  [default: all]"),
        )
        for option in reversed(options):
            run = option(run)
        return click.command(cls=ExperimentCommand, help=function.__doc__)(run)

    return decorated


def _divided(text: bytes, scale: Scale, folder: Path) -> tuple[tuple[Path, ...], Tensor, int]:
    """Write the part to train on into the folder; return it, the held-out tenth, and the size of the vocabulary."""
    text = text[: scale.most] if scale.most else text
    cut = len(text) * 9 // 10
    if not cut:
        raise click.UsageError(f"--text: a tenth is held out, and the rest trained on; found {len(text)} bytes.")
    trained, held_out = folder / "train.txt", folder / "held_out.txt"
    has_models = any(folder.glob("*/checkpoint.pt"))
    for file, part in ((trained, text[:cut]), (held_out, text[cut:])):
        if has_models and file.exists() and file.read_bytes() != part:
            raise click.UsageError(
                f"{file}: the models in this folder were trained on another text; choose another --out."
            )
        file.write_bytes(part)
    return (trained,), read_bytes([held_out]), 256


def _names(variants: Sequence[Variant]) -> str:
    return ", ".join(variant.name for variant in variants)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
