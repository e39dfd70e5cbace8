"""Models of an experiment: train them or take them from its folder, score and compare them, print and draw."""

from __future__ import annotations

import json
import math
import statistics
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
import torch
from torch import Tensor
from tqdm import tqdm

from experiments.commands import ShortErrors
from xlexport.figures import plain, save_picture
from xltraining.architectures import config_class
from xltraining.checkpoint import build_model, load_checkpoint
from xltraining.config_fields import ModelConfig
from xltraining.data.streams import read_bytes
from xltraining.data.tasks import Task
from xltraining.data.token_shards import read_prepared
from xltraining.evaluation import evaluate
from xltraining.language_model import LanguageModel
from xltraining.loop.saved_run import CHECKPOINT_NAME, saved_run
from xltraining.loop.train import train
from xltraining.training_config import TrainingConfig
from xltraining.transformer_xl import TransformerXL

__all__ = [
    "Experiment",
    "ExperimentCommand",
    "Ordering",
    "Point",
    "Scale",
    "Variant",
    "bits_at_length",
    "difference",
    "draw",
    "experiment_options",
    "mean_and_error",
    "point",
    "print_orderings",
    "print_rows",
    "read_recipe",
    "train_further",
    "training_of",
]

STREAMS = 8
INTERRUPTED = 130  # what shells report for a process that Ctrl-C ended

Encoding = Literal["relative", "shaw", "sinusoidal", "learned"]
Point = tuple[float, ...]
"""A point of a plot: across, up, and the standard error of up if it is known."""
ConfigOf = Callable[["Variant", "Scale", int, tuple[int, ...]], ModelConfig]
"""Make a configuration, given the size of the vocabulary and the ends of its clusters."""
TaskOf = Callable[[ModelConfig, TrainingConfig], Task]


@dataclass(frozen=True)
class Scale:
    """The size of an experiment.

    Attributes:
        model: fields of the configuration.
        tgt_len: tokens through which gradients flow.
        memory: tokens of memory in training, as a multiple of `tgt_len`.
        lstm, mamba: fields of the configurations of these models, for about as many weights.
        lengths: attention lengths to evaluate with, as multiples of `tgt_len`.
        most: the most units of text to train on and to evaluate with; 0: all.
        held_out: the most units of held-out text to evaluate with; 0: all.
        bf16: whether to train with bfloat16 autocast; None: on CUDA if the device supports it.
        reversible: whether reversible layers compute activations again; without, an update is faster.
        checkpoint_every: updates after which a stopped run can go on.
        recl_step: step of the context lengths of Table 8; 0: a quarter of the memory.
        layers, depths: layers of a Reformer in Figures 3 and 4, and of the models of Figure 5.
        training: further fields of the training of all models.
        rows: fields of the model or the training of single models, by name.
    """

    model: dict[str, Any]
    tgt_len: int
    steps: int
    batch_size: int
    learning_rate: float
    warmup_steps: int
    seeds: int
    lengths: tuple[float, ...] = (0.5, 1, 2, 4)
    most: int = 0
    held_out: int = 0
    bf16: bool | None = None
    reversible: bool = True
    checkpoint_every: int = 500
    memory: int = 1
    lstm: dict[str, Any] = field(default_factory=dict)
    mamba: dict[str, Any] = field(default_factory=dict)
    recl_step: int = 0
    layers: int = 2
    depths: tuple[int, ...] = (1, 2, 4)
    training: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)

    def row(self, variant: Variant, training: bool) -> dict[str, Any]:
        """Return a model's fields in `rows`: those of its training, or those of its configuration."""
        fields = self.rows.get(variant.name, {})
        return {name: value for name, value in fields.items() if hasattr(TrainingConfig, name) is training}


@dataclass(frozen=True)
class Variant:
    """One model of a table, with what the paper reports of it.

    Attributes:
        paper: the paper's figures, in the order of the table's columns.
        length: `tgt_len` as a multiple of the scale's.
        model, training: further fields of the configurations.
        run: name of its runs, if an experiment with an equal model shares them; empty: the model's own.
        optional: whether only scales have it whose `rows` name it.
    """

    name: str
    recurrence: bool = True
    encoding: Encoding = "relative"
    loss: Literal["full", "half"] = "full"
    paper: tuple[float | None, ...] = ()
    length: float = 1.0
    model: tuple[tuple[str, Any], ...] = ()
    training: tuple[tuple[str, Any], ...] = ()
    run: str = ""
    optional: bool = False
    architecture: Literal["transformer_xl", "lstm", "mamba"] = "transformer_xl"


def training_of(variant: Variant, scale: Scale, seed: int, device: str) -> TrainingConfig:
    """Return the settings of a model's training; every model of a scale has equally many updates."""
    config = TrainingConfig(
        steps=scale.steps, batch_size=scale.batch_size, learning_rate=scale.learning_rate,
        warmup_steps=scale.warmup_steps, clip=0.25, seed=seed, loss=variant.loss, device=device, bf16=scale.bf16,
        reversible=scale.reversible, eval_every=scale.steps, checkpoint_every=scale.checkpoint_every,
    )  # fmt: skip
    return replace(config, **{**scale.training, **dict(variant.training), **scale.row(variant, training=True)})


@dataclass(frozen=True)
class Experiment:
    """The text, the size and the folder of an experiment.

    Attributes:
        files: what `train` reads: a file of bytes, or a folder of prepared data.
        held_out: (N,) tokens to evaluate with.
        task_of: makes the task of a model; None: text.
    """

    scale: Scale
    folder: Path
    files: tuple[Path, ...]
    held_out: Tensor
    n_token: int
    device: str
    seeds: int
    config_of: ConfigOf
    only: tuple[str, ...] = ()
    cutoffs: tuple[int, ...] = ()
    task_of: TaskOf | None = None

    def config(self, variant: Variant) -> ModelConfig:
        """Return the configuration of a model."""
        return self.config_of(variant, self.scale, self.n_token, self.cutoffs)

    def chosen(self, variants: Sequence[Variant]) -> list[Variant]:
        """Return the models of this scale that `--only` names, or all.

        Raises:
            click.UsageError: a name is unknown.
        """
        variants = [variant for variant in variants if not variant.optional or variant.name in self.scale.rows]
        names = [variant.name for variant in variants]
        if unknown := set(self.only) - set(names):
            raise click.UsageError(f"--only: unknown {', '.join(sorted(unknown))}; expected {', '.join(names)}.")
        return [variant for variant in variants if not self.only or variant.name in self.only]

    def run(self, variants: Sequence[Variant]) -> None:
        """Train the models that are not trained yet, with a bar that shows the time left.

        Raises:
            click.UsageError: a model in the folder was trained with other settings.
        """
        missing = [(v, seed) for seed in range(self.seeds) for v in variants if not self._is_trained(v, seed)]
        with tqdm(total=len(missing) * self.scale.steps, unit="update", disable=None if missing else True) as bar:
            for number, (variant, seed) in enumerate(missing):
                bar.write(f"[{number + 1}/{len(missing)}] {variant.name}, seed {seed}", sys.stderr)
                before = number * self.scale.steps
                self.trained(variant, seed, on_step=lambda step, before=before: bar.update(before + step - bar.n))  # type: ignore[misc]

    def model(self, variant: Variant, seed: int, averaged: bool = True) -> TransformerXL:
        """Return a trained Transformer-XL, as `trained` does."""
        model = self.trained(variant, seed, averaged)
        assert isinstance(model, TransformerXL)
        return model

    def trained(
        self, variant: Variant, seed: int, averaged: bool = True, on_step: Callable[[int], None] = lambda step: None
    ) -> LanguageModel:
        """Return a trained model in eval mode; train it first, or further, if it is not finished.

        Args:
            averaged: whether a model whose weights were averaged has the average, or else its last weights.
            on_step: is called with the number of each update.
        """
        out = self._out(variant, seed)
        if not self._is_trained(variant, seed):
            config = training_of(variant, self.scale, seed, self.device)
            resume = (out / "checkpoint.pt").exists()
            task = None if self.task_of is None else self.task_of(self.config(variant), config)
            result = train(self.config(variant), config, self.files, (), out, task=task, resume=resume,
                           report=lambda line: None, on_step=on_step)  # fmt: skip
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

    def checkpoint(self, variant: Variant, seed: int) -> Path:
        """Return the file of a trained model."""
        return self._out(variant, seed) / "checkpoint.pt"

    def curve(self, variant: Variant, seed: int) -> list[tuple[int, float]]:
        """Return updates, and bits of the training text since the one before, from the log of a trained model."""
        lines = map(json.loads, (self._out(variant, seed) / "log.jsonl").read_text("utf-8").splitlines())
        return [
            (line["step"], next(value for name, value in line.items() if name.startswith("bits_"))) for line in lines
        ]

    def bits(self, model: LanguageModel) -> float:
        """Return bits per token of the held-out text, read in whole segments of the training's length if it has any."""
        length = self.scale.tgt_len
        return evaluate(model, self.held_out, length, min(STREAMS, max(1, len(self.held_out) // length)))

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
        training = replace(run.training_config, device=self.device).to_dict()
        expected = training_of(variant, self.scale, seed, self.device).to_dict()
        if (run.model_config, training) != (self.config(variant), expected):
            raise click.UsageError(f"{out}: this model was trained with other settings; choose another --out.")
        return True


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


def mean_and_error(values: Sequence[float], digits: int = 4) -> str:
    """Return the mean of the seeds, with its standard error if there are several."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {_standard_error(values):.{digits}f}"


def _standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of the seeds; 0 if there is only one."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def print_rows(heading: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; None is an empty cell."""
    cells = [[*heading], *([("" if cell is None else str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heading))]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


@dataclass(frozen=True)
class Ordering:
    """An ordering that the paper reports: the names of two models, of which the first has fewer bits."""

    claim: str
    better: str
    worse: str


@dataclass(frozen=True)
class Difference:
    """Bits that the better model saves.

    Attributes:
        error: its standard error if the seeds of the two models are independent.
        paired: its standard error if a seed gives both models the same order of the text: that of the differences.
    """

    bits: float
    error: float
    paired: float


def difference(better: Sequence[float], worse: Sequence[float]) -> Difference:
    """Compare the bits of two models, each with two seeds or more, in the same order."""
    saved = [w - b for b, w in zip(better, worse, strict=True)]
    of_means = [statistics.variance(bits) / len(bits) for bits in (better, worse)]
    paired = statistics.stdev(saved) / math.sqrt(len(saved))
    return Difference(statistics.fmean(saved), math.sqrt(sum(of_means)), paired)


def print_orderings(orderings: Sequence[Ordering], scores: Mapping[str, Sequence[float]]) -> None:
    """Print the orderings whose models are in `scores`, if the scores have two seeds or more."""
    rows = []
    for ordering in orderings:
        pair = scores.get(ordering.better, ()), scores.get(ordering.worse, ())
        if min(map(len, pair)) < 2:
            continue
        saved = difference(*pair)
        errors = (f"{saved.bits / error:.1f}" if error else "" for error in (saved.error, saved.paired))
        rows.append((ordering.claim, f"{saved.bits:.4f} ± {saved.error:.4f}", *errors))
    if rows:
        print_rows(("the paper's ordering", "bits saved", "in standard errors", "paired"), rows)


def point(across: float, up: Sequence[float]) -> Point:
    """Return the point of the mean of the seeds."""
    return across, statistics.fmean(up), _standard_error(up)


def draw(path: Path, lines: Mapping[str, Sequence[Point]], across: str, up: str, log: str = "") -> None:
    """Draw lines of points with their standard errors into a .png or .svg file; `check_picture` comes before.

    Args:
        log: the axes with a logarithmic scale: `x`, `xy`, or none.
    """
    from matplotlib.figure import Figure  # without pyplot, which needs a display

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for name, points in lines.items():
        marker = "." if len(points) < 20 else ""
        columns: list[tuple[float, ...]] = list(zip(*points, strict=True))
        errors = columns[2] if len(columns) > 2 else None
        axes.errorbar(columns[0], columns[1], errors, label=plain(name), marker=marker, capsize=2, elinewidth=0.8)
    if "x" in log:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    if "y" in log:
        axes.set_yscale("log")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    save_picture(figure, path)


class ExperimentCommand(ShortErrors):
    """A command that goes on after Ctrl-C when it is run again."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; after Ctrl-C say how to go on."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted; the same command goes on from here.", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None


def read_recipe(file: Path) -> tuple[ModelConfig, TrainingConfig]:
    """Return the model and the training of a recipe, as `xlexport train --settings` reads it.

    Raises:
        click.UsageError: the file is not TOML, or lacks a part.
        ConfigError: names or values are invalid.
    """
    try:
        recipe = tomllib.loads(file.read_text("utf-8"))
        kind, model, training = config_class(recipe["architecture"]), recipe["model"], recipe["training"]
    except (ValueError, KeyError) as error:
        raise click.UsageError(f"{file}: no recipe with architecture, model and training ({error}).") from error
    chosen = {name: tuple(value) if isinstance(value, list) else value for name, value in model.items()}
    return kind.from_dict(kind.for_training(chosen)), TrainingConfig.from_dict(training)


def train_further(
    model: ModelConfig,
    training: TrainingConfig,
    out: Path,
    task: Task,
    files: Sequence[Path] = (),
    valid_files: Sequence[Path] = (),
) -> None:
    """Train a model on a task; if the folder has a stopped run, go on with it.

    Raises:
        KeyboardInterrupt: Ctrl-C stopped the run, which is saved.
    """
    about = {"data": ", ".join(file.name for file in files)} if files else None
    resume = (out / CHECKPOINT_NAME).exists()
    if train(model, training, files, valid_files, out, task=task, resume=resume, about=about).interrupted:
        raise KeyboardInterrupt


def experiment_options(
    scales: Mapping[str, Scale],
    config_of: ConfigOf,
    change: Callable[[bytes], bytes] = lambda text: text,
    task_of: TaskOf | None = None,
) -> Callable[[Callable[[Experiment], None]], click.Command]:
    """Make a command of a function that takes an experiment.

    Args:
        scales: the sizes to choose from; the first is the default.
        config_of: makes the configuration of a model.
        change: changes the text before it is divided.
        task_of: makes the task of a model, which draws its examples; None: the command takes a text.
    """

    def decorated(function: Callable[[Experiment], None]) -> click.Command:
        def run(
            out: Path,
            scale: str,
            device: str,
            seeds: int | None,
            threads: int,
            only: tuple[str, ...],
            text: Path | None = None,
            data: Path | None = None,
        ) -> None:
            torch.set_num_threads(threads)
            size = scales[scale]
            folder = out / scale
            folder.mkdir(parents=True, exist_ok=True)
            files: tuple[Path, ...] = ()
            cutoffs: tuple[int, ...] = ()
            held_out, n_token = torch.empty(0), 0
            if task_of is None and (text is None) == (data is None):
                raise click.UsageError("Give either --text or --data.")
            if text is not None:
                files, held_out, n_token = _divided(change(text.read_bytes()), size, folder)
            elif data is not None:
                prepared = read_prepared(data)
                if "valid" not in prepared.splits:
                    raise click.UsageError(f"--data: {data} has no held-out split; prepare it with --valid.")
                split = prepared.splits["valid"]
                held_out = torch.from_numpy(split.read(0, len(split)))
                files, n_token, cutoffs = (data,), prepared.n_token, prepared.cutoffs
            held_out = held_out[: size.held_out] if size.held_out else held_out
            number = seeds or size.seeds
            function(
                Experiment(size, folder, files, held_out, n_token, device, number, config_of, only, cutoffs, task_of)
            )

        path = partial(click.Path, path_type=Path)
        a_file, a_folder = path(exists=True, dir_okay=False), path(exists=True, file_okay=False)
        options = (
            click.option("--out", required=True, type=path(file_okay=False), help="Folder of runs and results."),
            click.option("--scale", type=click.Choice(list(scales)), default="tiny", help="Size (README.md).  [tiny]"),
            click.option("--text", type=a_file, help="Text, read as bytes; its last tenth is held out."),
            click.option("--data", type=a_folder, help="Folder of `xlexport prepare` with a held-out split."),
            click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N."),
            click.option("--seeds", type=click.IntRange(1), help="Seeds of each model.  [default: those of the scale]"),
            click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="CPU threads."),
            click.option("--only", multiple=True, help="Name of a model; may be repeated.  [default: all]"),
        )
        for option in reversed(options if task_of is None else (*options[:2], *options[4:])):
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
