"""The `train` command and its options: choices of the model's configuration and of its training.

`architectures/<name>/training.py` declares the options of a model, `xltraining/training_config.py` those of a run.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.architectures import FIRST, Option, architectures
from xlexport.architectures import architecture as known_architecture
from xlexport.architectures.options import flags
from xlexport.commands.long_help import LongCommand
from xlexport.commands.options import OUTPUT, PATH, all_of, declared
from xlexport.commands.train_settings import read_run_settings
from xlexport.terminal import INTERRUPTED, quiet_option, tell

if TYPE_CHECKING:
    from xltraining.data.token_shards import PreparedData
    from xltraining.language_model import ModelConfig
    from xltraining.training_config import TrainingConfig

__all__ = ["ARCHITECTURE_OPTIONS", "TRAINING_OPTIONS", "model_config", "train", "train_options"]


_FROM_SETTINGS = "xlexport.train.settings"  # a key of click's context: names of options that the file gives
TRAINED = {one.name: one for one in architectures() if one.training_options}
# For each architecture, the fields of its configuration by name.
ARCHITECTURE_OPTIONS = {name: {option.name: option for option in one.training_options} for name, one in TRAINED.items()}
_TASK_OPTIONS = {"word_length": "duplication", "image_size": "images"}  # options of one task
_COMMON = (
    Option(
        "task",
        "choice",
        "Train on text FILES; on copying a random word (no FILES); on crops of photographs (PNG or JPEG FILES); "
        "or on FILES of pairs: source, tab, target.",
        "bytes",
        choices=("bytes", "duplication", "images", "pairs"),
    ),
    Option("word_length", "integer", "Symbols of the word that the duplication task repeats.", 255),
    Option("image_size", "integer", "Width and height of an image of the images task, in pixels.", 64),
    Option("steps", "integer", "Updates in all; 0 writes a fresh model.", 10_000),
    Option("batch_size", "integer", "Parallel streams.", 16),
    Option(
        "micro_batches",
        "integer",
        "Groups of streams that are computed one after the other, to save memory.  [default: one for each process]",
    ),
    Option("shuffle", "boolean", "Read the documents of prepared data in random orders.", False),
    Option(
        "optimizer",
        "choice",
        "Adafactor keeps little state, and no momentum. Muon is for matrices, with AdamW for the rest.",
        "adam",
        choices=("adam", "adamw", "adafactor", "muon"),
    ),
    Option(
        "learning_rate",
        "number",
        "Highest learning rate; for Adafactor relative to each weight's size, such as 0.1.",
        2e-3,
    ),
    Option(
        "schedule",
        "choice",
        "Learning rate after the warm-up.",
        "cosine",
        choices=("cosine", "inverse_sqrt", "constant"),
    ),
    Option("min_lr_ratio", "number", "Learning rate at the end, as a fraction of the highest.", 0.02),
    Option("warmup_steps", "integer", "Updates until the highest learning rate.", 300),
    Option("weight_decay", "number", "Weight decay.", 0.0),
    Option("clip", "number", "Largest norm of the gradient.", 1.0),
    Option(
        "loss", "choice", "Positions of a segment that count: all, or the later half.", "full", choices=("full", "half")
    ),
    Option(
        "average_from",
        "number",
        "Share of the steps after which weights are averaged, such as 0.6.  [default: no average]",
    ),
    Option("seed", "integer", "Seed of the initial weights and of dropout.", 0),
    Option("log_every", "integer", "Updates between lines of log.jsonl.", 50),
    Option("eval_every", "integer", "Updates between evaluations.", 500),
    Option("checkpoint_every", "integer", "Updates between checkpoints.", 500),
    Option("best", "boolean", "Keep the weights with the best score on held-out text in best.pt.", False),
    Option("device", "text", "cpu, cuda or cuda:N.", "cpu"),
    Option("bf16", "boolean", "bfloat16 autocast.  [default: on CUDA devices that support it]", None),
    Option("compile", "boolean", "Translate the model with torch.compile first.", False),
    Option("sharded", "boolean", "Divide weights among the processes (FSDP2) instead of copying them.", False),
    Option("threads", "integer", "CPU threads.  [default: all cores]", None),
)
_RUN_OPTIONS = {name: one.run_options for name, one in TRAINED.items()}
TRAINING_OPTIONS = {option.name: option for options in (_COMMON, *_RUN_OPTIONS.values()) for option in options}
_RUN_NAMES = {name: {option.name for option in options} for name, options in _RUN_OPTIONS.items()}
_MODEL_OPTIONS = {name: entry for options in ARCHITECTURE_OPTIONS.values() for name, entry in options.items()}


def _headings() -> dict[str, list[str]]:
    """Return the names of options by heading; options of one architecture have a heading of their own."""
    device = ["device", "bf16", "compile", "sharded", "threads"]
    found = {
        "Run": ["out_dir", "valid_files", "resume", "quiet", "architecture", "task", *_TASK_OPTIONS],
        "Settings": ["settings", "overrides"],
        "Curves": ["plot", "tensorboard"],
        "Device": device,
    }
    for name in (*_MODEL_OPTIONS, *TRAINING_OPTIONS):
        owners = [one for one in TRAINED if name in ARCHITECTURE_OPTIONS[one] or name in _RUN_NAMES[one]]
        if len(owners) == 1:
            found.setdefault(f"{TRAINED[owners[0]].title} only", []).append(name)
        elif owners:
            found.setdefault("Model settings", []).append(name)
        elif name not in (*found["Run"], *device):
            found.setdefault("Training", []).append(name)
    return found


def train_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the architecture, the model (only values that are given) and the training."""

    @functools.wraps(function)
    def collected(
        architecture: str,
        settings: Path | None,
        overrides: tuple[str, ...],
        files: tuple[Path, ...],
        valid_files: tuple[Path, ...],
        **values: Any,
    ) -> Any:
        read = read_run_settings(settings, overrides, _MODEL_OPTIONS, TRAINING_OPTIONS)
        model = {name: values.pop(name) for name in _MODEL_OPTIONS}
        model = {**read.model, **{name: value for name, value in model.items() if value is not None}}
        training = {name: values.pop(name) for name in TRAINING_OPTIONS}
        training |= {name: value for name, value in read.training.items() if not _is_given(name)}
        if read.architecture is not None and not _is_given("architecture"):
            architecture = _known(read.architecture)
        files, valid_files = files or read.data, valid_files or read.valid
        given = {*read.training, *(["architecture"] if read.architecture else [])}
        click.get_current_context().meta[_FROM_SETTINGS] = given
        if not values["resume"]:
            _refuse_what_does_not_count(architecture, model, training)
        return function(
            architecture=architecture, model=model, training=training, files=files, valid_files=valid_files, **values
        )

    decorated: Callable[..., Any] = all_of(
        click.option("--settings", type=PATH, metavar="FILE", help="Settings of the run in TOML."),
        click.option(
            "--set",
            "overrides",
            multiple=True,
            metavar="NAME=VALUE",
            help="A setting as in the file, such as model.n_layer=6; may be given several times.",
        ),
    )(collected)
    for option in reversed(TRAINING_OPTIONS.values()):
        show_default = option.default is not None
        decorated = declared(replace(option, common=True), default=option.default, show_default=show_default)(decorated)
    for option in reversed(_MODEL_OPTIONS.values()):
        decorated = declared(replace(option, common=True), help=option.help + _shown_defaults(option.name))(decorated)
    choice = click.Choice(list(TRAINED))
    return click.option("--architecture", type=choice, default=FIRST, show_default=True, help="Kind of model.")(
        decorated
    )


def _shown_defaults(name: str) -> str:
    """Return each architecture's default of an option as help; if only one has the option, its name comes first."""
    defaults = {
        architecture: _shown(options[name].default)
        for architecture, options in ARCHITECTURE_OPTIONS.items()
        if name in options
    }
    if len(defaults) == 1:
        ((architecture, default),) = defaults.items()
        return f"  [{architecture}; default: {default}]" if default else f"  [{architecture}]"
    if len(set(defaults.values())) == 1:
        return f"  [default: {next(iter(defaults.values()))}]"
    return "  [default: " + ", ".join(f"{default} ({name})" for name, default in defaults.items()) + "]"


def _shown(default: Any) -> str:
    if default is None or default == ():
        return ""
    if isinstance(default, bool):
        return "yes" if default else "no"
    return ",".join(map(str, default)) if isinstance(default, tuple) else str(default)


def _refuse_what_does_not_count(architecture: str, model: dict[str, Any], training: dict[str, Any]) -> None:
    """Refuse options that were given but have no effect on this run."""
    problems = []
    foreign = [name for name in model if name not in ARCHITECTURE_OPTIONS[architecture]]
    if foreign:
        others = [
            name for name, options in ARCHITECTURE_OPTIONS.items() if name != architecture and options.keys() & foreign
        ]
        problems.append(f"{flags(foreign)}: only for --architecture {' or '.join(others)}, not {architecture}")
        if (hint := TRAINED[architecture].foreign_hint(foreign)) is not None:
            problems.append(hint)
    for name in sorted(set().union(*_RUN_NAMES.values()) - _RUN_NAMES[architecture]):
        if _is_given(name):
            option, owners = TRAINING_OPTIONS[name], [one for one, names in _RUN_NAMES.items() if name in names]
            flag = replace(option, common=True).spelling
            given = f"{flag}, --no-{flag.removeprefix('--')}" if option.kind == "boolean" else flag
            problems.append(f"{given}: only for --architecture {' or '.join(owners)}")
    problems += TRAINED[architecture].training_problems(model)
    for name, task in _TASK_OPTIONS.items():
        if training["task"] != task and _is_given(name):
            problems.append(f"{flags([name])}: only for --task {task}")
    if training["task"] == "duplication" and "tgt_len" in model:
        problems.append("--tgt-len: in the duplication task --word-length decides it")
    if problems:
        raise click.UsageError("; ".join(problems) + ".")


def _is_given(name: str) -> bool:
    """Return whether the command line or the settings file gives an option."""
    context = click.get_current_context()
    on_line = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    return on_line or name in context.meta.get(_FROM_SETTINGS, ())


def _known(architecture: str) -> str:
    if architecture not in TRAINED:
        raise click.UsageError(f"architecture: expected one of {', '.join(TRAINED)}, found {architecture!r}.")
    return architecture


def model_config(
    architecture: str, given: dict[str, Any], training: dict[str, Any], data: PreparedData | None = None
) -> ModelConfig:
    """Return the model's configuration from the options given; fields that depend on others are computed.

    Args:
        data: prepared data, which decides the size of the vocabulary, and the clusters unless they are given.

    Raises:
        ConfigError: the options contradict each other.
    """
    from xltraining.architectures import config_from
    from xltraining.data.duplication import N_TOKEN, sequence_length

    values = known_architecture(architecture).training_config(given)
    if training["task"] == "duplication":
        length = sequence_length(training["word_length"])
        values |= {"n_token": N_TOKEN, "tgt_len": length, "mem_len": values.get("mem_len", length)}
    elif data is not None:
        values["n_token"] = data.n_token
        if "cutoffs" in ARCHITECTURE_OPTIONS[architecture]:
            values.setdefault("cutoffs", data.cutoffs)
    return config_from(architecture, values)


@click.command(
    cls=LongCommand,
    examples=(
        ("xlexport train book.txt --valid other.txt --out run", "Train, and report bits per byte of held-out text."),
        ("xlexport train --out run --resume --steps 20000", "Go on, and further than before."),
        ("xlexport train data --out run --settings run.toml --set model.n_layer=6", "Prepared data, and a file."),
    ),
    headings=_headings(),
)
@click.argument("files", nargs=-1, type=PATH)
@click.option(
    "-o", "--out", "--output", "out_dir", required=True, type=PATH, help="Folder for checkpoint.pt and log.jsonl."
)
@click.option("--valid", "valid_files", multiple=True, type=PATH, help="Held-out text; may be given several times.")
@click.option("--resume", is_flag=True, help="Go on with the run in --out; more --steps lead it further.")
@click.option("--plot", type=OUTPUT, metavar="FILE", help="Draw the curves of the run into a .png or .svg at its end.")
@click.option("--tensorboard", type=PATH, metavar="FOLDER", help="Write the curves for TensorBoard, too.")
@quiet_option
@train_options
def train(
    files: tuple[Path, ...],
    out_dir: Path,
    valid_files: tuple[Path, ...],
    resume: bool,
    plot: Path | None,
    tensorboard: Path | None,
    architecture: str,
    model: dict[str, Any],
    training: dict[str, Any],
) -> int:
    """Train a language model on text FILES, as bytes, on a folder of `xlexport prepare`, or on photographs.

    Ctrl-C saves, --resume goes on. `torchrun -m xlexport train …` trains one model in several processes.
    """
    from xlexport.extras import packages_of, require

    require("train", *packages_of("images") if training["task"] == "images" else ())
    if plot is not None:
        from xlexport.figures import check_picture

        check_picture(plot)
    from xlexport.commands.train_progress import curve_writers, training_progress
    from xltraining.data.token_shards import is_prepared, read_prepared
    from xltraining.train import TrainingConfig
    from xltraining.train import train as run_training

    if resume:
        config, training_config, files, valid_files = _resumed(
            out_dir, architecture, model, training, files, valid_files
        )
    data = read_prepared(files[0]) if len(files) == 1 and is_prepared(files[0]) else None
    if data is not None and (unknown := data.files_without_digest):
        tell(
            f"{files[0]}: an earlier version prepared it, without digests of {', '.join(unknown)}, so changes of these "
            "files are not noticed. New data has them: xlexport prepare."
        )
    if not resume:
        config, training_config = model_config(architecture, model, training, data), TrainingConfig(**training)
    steps = training_config.steps
    with curve_writers(tensorboard) as write_line, training_progress(steps) as (on_step, show_line):

        def on_line(line: Mapping[str, Any]) -> None:
            show_line(line)
            write_line(line)

        result = run_training(
            config,
            training_config,
            train_files=files,
            valid_files=valid_files,
            out_dir=out_dir,
            resume=resume,
            report=tell,
            on_step=on_step,
            on_line=on_line,
        )
    if plot is not None and (out_dir / "log.jsonl").exists() and os.environ.get("RANK", "0") == "0":
        from xlexport.analysis.training_plot import plot_training

        plot_training(out_dir / "log.jsonl", plot)
        tell(f"wrote {plot}")
    if result.interrupted:
        tell(f"stopped at step {result.step:,}; go on with --resume")
        return INTERRUPTED
    return 0


def _resumed(
    out_dir: Path,
    architecture: str,
    model: dict[str, Any],
    training: dict[str, Any],
    files: tuple[Path, ...],
    valid_files: tuple[Path, ...],
) -> tuple[ModelConfig, TrainingConfig, tuple[Path, ...], tuple[Path, ...]]:
    """Return what the run in `out_dir` was started with; options of this command line take the place of its own.

    Raises:
        ConfigError: the options contradict each other.
        XltrainingError: the folder holds no run that can be resumed.
    """
    from dataclasses import replace

    from xltraining.architectures import architecture_of, config_from
    from xltraining.loop.saved_run import saved_run

    saved = saved_run(out_dir)
    kind = architecture if _is_given("architecture") else architecture_of(saved.model_config)
    config = saved.model_config
    if kind != architecture_of(config):
        config = model_config(kind, model, training)
    elif model:
        config = config_from(kind, config.to_dict() | model)
    given = {name: value for name, value in training.items() if _is_given(name)}
    return config, replace(saved.training_config, **given), files or saved.train_files, valid_files or saved.valid_files
