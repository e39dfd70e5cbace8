"""The `train` command and its options: choices of the model's configuration and of its training.

`architectures/<name>/training.py` declares the options of a model, `xltraining/training_config.py` those of a run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.architectures import FIRST, Option, architectures
from xlexport.architectures import architecture as known_architecture
from xlexport.architectures.options import flags
from xlexport.commands.long_help import LongCommand
from xlexport.commands.options import PATH, declared
from xlexport.progress_bar import progress_lines
from xlexport.terminal import INTERRUPTED, is_quiet, quiet_option, tell

if TYPE_CHECKING:
    from xltraining.language_model import ModelConfig
    from xltraining.training_config import TrainingConfig

__all__ = ["ARCHITECTURE_OPTIONS", "TRAINING_OPTIONS", "model_config", "train", "train_options"]


TRAINED = {one.name: one for one in architectures() if one.training_options}
# For each architecture, the fields of its configuration by name.
ARCHITECTURE_OPTIONS = {name: {option.name: option for option in one.training_options} for name, one in TRAINED.items()}
_COMMON = (
    Option(
        "task",
        "choice",
        "Train on text FILES, or on copying a random word (no FILES).",
        "bytes",
        choices=("bytes", "duplication"),
    ),
    Option("word_length", "integer", "Symbols of the word that the duplication task repeats.", 255),
    Option("steps", "integer", "Updates in all; 0 writes a fresh model.", 10_000),
    Option("batch_size", "integer", "Parallel streams.", 16),
    Option(
        "optimizer", "choice", "Adafactor keeps little state, and no momentum.", "adam", choices=("adam", "adafactor")
    ),
    Option(
        "learning_rate",
        "number",
        "Highest learning rate; for Adafactor relative to each weight's size, such as 0.1.",
        2e-3,
    ),
    Option("min_lr_ratio", "number", "Learning rate at the end, as a fraction of the highest.", 0.02),
    Option("warmup_steps", "integer", "Updates until the highest learning rate.", 300),
    Option("weight_decay", "number", "Weight decay.", 0.0),
    Option("clip", "number", "Largest norm of the gradient.", 1.0),
    Option("seed", "integer", "Seed of the initial weights and of dropout.", 0),
    Option("log_every", "integer", "Updates between lines of log.jsonl.", 50),
    Option("eval_every", "integer", "Updates between evaluations.", 500),
    Option("checkpoint_every", "integer", "Updates between checkpoints.", 500),
    Option("device", "text", "cpu, cuda or cuda:N.", "cpu"),
    Option("bf16", "boolean", "bfloat16 autocast.  [default: on CUDA devices that support it]", None),
    Option("threads", "integer", "CPU threads.  [default: all cores]", None),
)
_RUN_OPTIONS = {name: one.run_options for name, one in TRAINED.items()}
TRAINING_OPTIONS = {option.name: option for options in (_COMMON, *_RUN_OPTIONS.values()) for option in options}
_RUN_NAMES = {name: {option.name for option in options} for name, options in _RUN_OPTIONS.items()}
_MODEL_OPTIONS = {name: entry for options in ARCHITECTURE_OPTIONS.values() for name, entry in options.items()}


def _headings() -> dict[str, list[str]]:
    """Return the names of options by heading; options of one architecture have a heading of their own."""
    device = ["device", "bf16", "threads"]
    found = {
        "Run": ["out_dir", "valid_files", "resume", "quiet", "architecture", "task", "word_length"],
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
    def collected(architecture: str, **values: Any) -> Any:
        model = {name: values.pop(name) for name in _MODEL_OPTIONS}
        model = {name: value for name, value in model.items() if value is not None}
        training = {name: values.pop(name) for name in TRAINING_OPTIONS}
        if not values["resume"]:
            _refuse_what_does_not_count(architecture, model, training)
        return function(architecture=architecture, model=model, training=training, **values)

    decorated: Callable[..., Any] = collected
    for option in reversed(TRAINING_OPTIONS.values()):
        show_default = option.default is not None
        decorated = declared(option, default=option.default, show_default=show_default)(decorated)
    for option in reversed(_MODEL_OPTIONS.values()):
        decorated = declared(option, help=option.help + _shown_defaults(option.name))(decorated)
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
    for other, options in _RUN_OPTIONS.items():
        for option in options:
            if other != architecture and _is_given(option.name):
                given = (
                    f"{option.flag}, --no-{option.flag.removeprefix('--')}" if option.kind == "boolean" else option.flag
                )
                problems.append(f"{given}: only for --architecture {other}")
    problems += TRAINED[architecture].training_problems(model)
    if training["task"] != "duplication" and _is_given("word_length"):
        problems.append("--word-length: only for --task duplication")
    if training["task"] == "duplication" and "tgt_len" in model:
        problems.append("--tgt-len: in the duplication task --word-length decides it")
    if problems:
        raise click.UsageError("; ".join(problems) + ".")


def _is_given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def model_config(architecture: str, given: dict[str, Any], training: dict[str, Any]) -> ModelConfig:
    """Return the model's configuration from the options given; fields that depend on others are computed.

    Raises:
        ConfigError: the options contradict each other.
    """
    from xltraining.architectures import config_from
    from xltraining.duplication import N_TOKEN, sequence_length

    values = known_architecture(architecture).training_config(given)
    if training["task"] == "duplication":
        length = sequence_length(training["word_length"])
        values |= {"n_token": N_TOKEN, "tgt_len": length, "mem_len": values.get("mem_len", length)}
    return config_from(architecture, values)


@click.command(
    cls=LongCommand,
    examples=(
        ("xlexport train book.txt --valid other.txt --out run", "Train, and report bits per byte of held-out text."),
        ("xlexport train --out run --resume --steps 20000", "Go on, and further than before."),
        ("xlexport train book.txt --out run --architecture reformer --chunk-length 32", "Another kind of model."),
    ),
    headings=_headings(),
)
@click.argument("files", nargs=-1, type=PATH)
@click.option(
    "-o", "--out", "--output", "out_dir", required=True, type=PATH, help="Folder for checkpoint.pt and log.jsonl."
)
@click.option("--valid", "valid_files", multiple=True, type=PATH, help="Held-out text; may be given several times.")
@click.option("--resume", is_flag=True, help="Go on with the run in --out; more --steps lead it further.")
@quiet_option
@train_options
def train(
    files: tuple[Path, ...],
    out_dir: Path,
    valid_files: tuple[Path, ...],
    resume: bool,
    architecture: str,
    model: dict[str, Any],
    training: dict[str, Any],
) -> int:
    """Train a byte-level language model on text FILES. Ctrl-C saves, --resume goes on."""
    from xlexport.extras import require

    require("train")
    from xltraining.train import TrainingConfig
    from xltraining.train import train as run_training

    if resume:
        config, training_config, files, valid_files = _resumed(
            out_dir, architecture, model, training, files, valid_files
        )
    else:
        config, training_config = model_config(architecture, model, training), TrainingConfig(**training)
    progress, steps = progress_lines("training"), training_config.steps
    result = run_training(
        config,
        training_config,
        train_files=files,
        valid_files=valid_files,
        out_dir=out_dir,
        resume=resume,
        report=tell,
        on_step=lambda step: progress(step, steps),
        show_bar=not is_quiet(),
    )
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
    from xltraining.run import saved_run

    saved = saved_run(out_dir)
    kind = architecture if _is_given("architecture") else architecture_of(saved.model_config)
    config = saved.model_config
    if kind != architecture_of(config):
        config = model_config(kind, model, training)
    elif model:
        config = config_from(kind, config.to_dict() | model)
    given = {name: value for name, value in training.items() if _is_given(name)}
    return config, replace(saved.training_config, **given), files or saved.train_files, valid_files or saved.valid_files
