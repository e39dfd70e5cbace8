"""The `train` command; `train_settings.py` has its settings, which are those of the configurations."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.commands.input_options import find_texts
from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.options import is_given, quiet_option
from xlexport.commands.settings import SettingOption, statement_settings
from xlexport.commands.signals import acknowledged
from xlexport.commands.train_settings import (
    MODEL,
    REMOVED,
    TRAINING,
    check_effect,
    read_recipe,
    setting_options,
)
from xlexport.commands.values import OUTPUT, PATH
from xlexport.extras import require
from xlexport.progress_bar import ProgressBar, progress_bar
from xlexport.terminal import INTERRUPTED, Interrupted, drawing, is_quiet, tell

if TYPE_CHECKING:
    from xltraining.config_fields import ModelConfig
    from xltraining.data.token_shards import PreparedData
    from xltraining.training_config import TrainingConfig

__all__ = ["curve_writers", "model_config", "train"]

Line = Mapping[str, Any]  # of the log
WATCHED = 30.0  # seconds, after which threads must have waited for cores for less than this share of the time
CROWDED = 0.25
STOPPING = "stopping: the run will be saved. Another Ctrl-C ends it at once, unsaved."


def model_config(
    architecture: str, chosen: Mapping[str, Any], training: TrainingConfig, data: PreparedData | None = None
) -> ModelConfig:
    """Return the configuration of a new model; fields that depend on others are computed.

    Args:
        chosen: the user's settings of the model.
        data: prepared data, which decides the size of the vocabulary, and the clusters unless the user chose them.

    Raises:
        ConfigError: the settings contradict each other.
    """
    from xltraining.architectures import config_class
    from xltraining.config_fields import options_of

    kind = config_class(architecture)
    values = kind.for_training(chosen)
    if data is not None:
        values["n_token"] = data.n_token
        if "cutoffs" in options_of(kind):
            values.setdefault("cutoffs", data.cutoffs)
    return kind.from_dict(values)


@click.command(
    cls=LongCommand,
    removed=REMOVED,
    examples=(
        (
            "xlexport train book.txt --valid other.txt -o run",
            "Train on a text, and report bits per byte of a held-out one.",
        ),
        ("xlexport train -o run --resume --steps 20000", "Continue the run up to 20,000 steps."),
        (
            "xlexport train data -o run --settings run.toml --set model.pre_lnorm=true",
            "Train on prepared data with a recipe.",
        ),
        ("xlexport train own.txt -o run --init other/model.pt", "Continue a trained model on a text of your own."),
    ),
)
@click.argument("files", nargs=-1, type=PATH)
@headed(
    "Run",
    click.option("-o", "--output", required=True, type=PATH, metavar="FOLDER", help="Folder for the checkpoint."),
    click.option("--valid", "valid_files", multiple=True, type=PATH, help="Held-out text. Repeatable."),
    click.option("--init", metavar="MODEL", help="Begin with the weights of this checkpoint."),
    click.option("--resume", is_flag=True, help="Continue the run in --output."),
    quiet_option,
)
@headed(
    "Run",
    click.option(
        "--plot",
        type=OUTPUT,
        metavar="FILE",
        help="Draw the curves into a .png or .svg file at the end.",
    ),
    click.option(
        "--tensorboard", cls=SettingOption, type=PATH, metavar="FOLDER", help="Also write the curves for TensorBoard."
    ),
)
@headed(
    "Run",
    click.option(
        "--settings",
        "recipe",
        type=PATH,
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=read_recipe,
        help="Recipe in TOML; options override it.",
    ),
)
@setting_options()
@headed("Statements for the checkpoint", statement_settings)
def train(
    files: tuple[Path, ...],
    output: Path,
    valid_files: tuple[Path, ...],
    init: str | None,
    resume: bool,
    plot: Path | None,
    tensorboard: Path | None,
    architecture: str,
    licence: str | None,
    data: str | None,
    **values: Any,
) -> int:
    """Train a language model on text FILES, as bytes, or on a folder of `xlexport prepare`.

    An encoder-decoder learns pairs: each line has a source, a tab and a target.

    Texts are files, folders and quoted patterns ('books/**/*.txt'); gzip is unpacked.
    Ctrl-C saves the run, and --resume continues it. `torchrun --no-python xlexport train …` trains one model in
    several processes.
    """
    model = {name: values[name] for name in MODEL if is_given(name)}
    training = {name: values[name] for name in TRAINING if is_given(name)}
    if init is not None and (resume or is_given("architecture")):
        raise click.UsageError("--init begins a new run on texts. Leave out --resume and --architecture.")
    if init is None and not resume:
        check_effect(architecture, model, training)
    require(None, "torch")
    if plot is not None:
        from xlexport.figures import check_picture

        check_picture(plot)
    from xlexport.finetuning import initial_model
    from xltraining.architectures import architecture_of
    from xltraining.data.tasks import check_positions
    from xltraining.data.token_shards import is_prepared, read_prepared
    from xltraining.loop.processes import leave
    from xltraining.loop.train import TrainingConfig
    from xltraining.loop.train import train as run_training

    if resume:
        config, training_config, files, valid_files = _resumed(
            output, architecture, model, training, files, valid_files
        )
    else:
        data = data or ", ".join(file.name for file in files) + (f", after {Path(init).name}" if init else "")
    files, valid_files = map(_texts, (files, valid_files))
    prepared = read_prepared(files[0]) if len(files) == 1 and is_prepared(files[0]) else None
    weights = None
    if not resume:
        training_config = TrainingConfig(**training)
        if init is None:
            config = model_config(architecture, model, training_config, prepared)
        else:
            config, weights = initial_model(init, model, prepared, report=tell)
            architecture = architecture_of(config)
            check_effect(architecture, model, training)
        check_positions(config)
        _tell_limits(config, training_config, architecture)
    is_first = _is_first()
    with (
        curve_writers(tensorboard) as write_line,
        progress_bar("training", visible=is_first) as bar,
        acknowledged(lambda: tell(STOPPING) if is_first and not is_quiet() else None),
        _ended_at_once(output),
    ):
        progress = _Progress(bar, training_config.steps, is_first and training_config.threads is None)

        def on_line(line: Line) -> None:
            progress.on_line(line)
            write_line(line)

        result = run_training(
            config,
            training_config,
            train_files=files,
            valid_files=valid_files,
            out_dir=output,
            resume=resume,
            initial=weights,
            about={name: text for name, text in (("licence", licence), ("data", data)) if text},
            report=tell,
            on_step=progress.on_step,
            on_line=on_line,
            on_evaluation=progress.on_evaluation,
        )
    if plot is not None and (output / "log.jsonl").exists() and is_first:
        _draw_curves(output, plot)
    status = INTERRUPTED if result.interrupted else 0
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        leave(status)
    return status


def _tell_limits(config: ModelConfig, training: TrainingConfig, architecture: str) -> None:
    """Say what a new run will not reach."""
    if config.position_limit is not None and architecture == "reformer":
        tell(
            f"the model has {config.position_limit:,} positions, so longer documents will need --restart. "
            "--set model.position=rotary has no limit."
        )
    if 0 < training.steps < training.warmup_steps:
        tell(
            f"the run ends within its warm-up of {training.warmup_steps:,} updates, at "
            f"{training.steps / training.warmup_steps:.0%} of the learning rate. Shorten it: "
            "--set training.warmup_steps=N."
        )


def _texts(files: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return the files of texts that arguments name; prepared data as they are."""
    from xltraining.data.token_shards import is_prepared

    return files if any(map(is_prepared, files)) else find_texts(files)


def _is_first() -> bool:
    """Return whether this is the first of several processes that train one model: only it writes and shows."""
    return os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def _ended_at_once(output: Path) -> Iterator[None]:
    """Say after the second Ctrl-C how the run goes on, if its folder has a checkpoint."""
    from xltraining.loop.saved_run import CHECKPOINT_NAME

    try:
        yield
    except KeyboardInterrupt:
        if not (output / CHECKPOINT_NAME).exists():
            raise
        saved = f"{output / CHECKPOINT_NAME} is from before."
        raise Interrupted(f"ended at once, unsaved; {saved} Continue with --resume.") from None


def _draw_curves(output: Path, plot: Path) -> None:
    from xlexport.analysis.plots import plot_training

    again = shlex.join(["xlexport", "train", "-o", str(output), "--resume", "--plot", str(plot)])
    tell(f"drawing {plot}")
    with drawing(plot, f"The run is saved. Draw it: {again}"):
        plot_training(output / "log.jsonl", plot)


class _Progress:
    """The bar of a run, with a bar of its own for each evaluation."""

    def __init__(self, bar: ProgressBar, steps: int, chooses_threads: bool) -> None:
        from xlexport.bench.measuring import waited

        self._bar, self._steps, self._done = bar, steps, 0
        self._clock, self._started, self._waited = waited, time.perf_counter(), waited()
        self._watches_cores = chooses_threads and (os.cpu_count() or 1) > 1

    def on_step(self, step: int) -> None:
        """Show that an update is done."""
        if not self._done:
            self._bar.skip(step - 1)
        self._done = step
        self._bar(step, self._steps)
        if self._watches_cores and (seconds := time.perf_counter() - self._started) > WATCHED:
            self._watches_cores = False
            if (share := (self._clock() - self._waited) / seconds) > CROWDED:
                tell(f"other programs keep cores busy: threads waited {share:.0%} of the time. Try --threads 1.")

    def on_line(self, line: Line) -> None:
        """Show the loss and the speed of a line of the log."""
        names = [name for name in ("bits_per_byte", *line) if name in line and name.startswith("bits_per_")]
        if names and "tokens_per_second" in line:
            bits = f"{line[names[0]]:.3f} bits/{names[0].removeprefix('bits_per_')}"
            self._bar.note(f"{bits}, {line['tokens_per_second']:,.0f} tokens/s")

    def on_evaluation(self, done: int, total: int) -> None:
        """Show how many targets an evaluation has scored."""
        self._bar.aside("evaluating", done, total)


@contextlib.contextmanager
def curve_writers(folder: Path | None) -> Iterator[Callable[[Line], None]]:
    """Yield a callback that writes the numbers of a line of the log for TensorBoard; without a folder it does nothing.

    Raises:
        MissingDependencyError: the package tensorboard is not installed.
    """
    if folder is None or not _is_first():
        yield lambda line: None
        return
    require("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with contextlib.closing(SummaryWriter(str(folder))) as writer:

        def write(line: Line) -> None:
            for name, value in line.items():
                if name != "step":
                    writer.add_scalar(name, value, line["step"])

        yield write


def _resumed(
    out_dir: Path,
    architecture: str,
    model: dict[str, Any],
    training: dict[str, Any],
    files: tuple[Path, ...],
    valid_files: tuple[Path, ...],
) -> tuple[ModelConfig, TrainingConfig, tuple[Path, ...], tuple[Path, ...]]:
    """Return configurations and files of the run in `out_dir`; options of this command line override them.

    Raises:
        ConfigError: the options contradict each other.
        XltrainingError: the folder holds no run that can be resumed.
    """
    from dataclasses import replace

    from xltraining.architectures import architecture_of, config_from
    from xltraining.loop.saved_run import saved_run

    saved = saved_run(out_dir)
    config, training_config = saved.model_config, replace(saved.training_config, **training)
    kind = architecture if is_given("architecture") else architecture_of(config)
    if kind != architecture_of(config):
        config = model_config(kind, model, training_config)
    elif model:
        config = config_from(kind, config.to_dict() | model)
    return config, training_config, files or saved.train_files, valid_files or saved.valid_files
