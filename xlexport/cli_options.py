"""Options that several commands share, and those that mirror the fields of a configuration."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

__all__ = [
    "FORMATS",
    "PROTOCOLS",
    "checkpoint_options",
    "evaluation_options",
    "protocol_options",
    "runtime_options",
    "train_options",
]

PROTOCOLS = ("kimiyoung", "nvidia", "document")  # those of xlruntime.protocols, too heavy to import for --help

# Those of xlexport.checkpoints, for the same reason.
FORMATS = ("xltraining", "kimiyoung", "nvidia", "huggingface", "tensorflow", "state_dict")

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _all(*options: Decorator) -> Decorator:
    return lambda function: functools.reduce(lambda decorated, option: option(decorated), reversed(options), function)


def _read_config(context: click.Context, parameter: click.Parameter, file: Path | None) -> dict[str, Any] | None:
    from xlexport.checkpoints.files import read_json

    return None if file is None else read_json(file)


evaluation_options = _all(
    click.option("--segment-len", type=int, help="Tokens in one step.  [default: the model's own]"),
    click.option("--mem-len", type=int, help="Rows of memory that a layer keeps.  [default: the model's own]"),
    click.option("--clamp-len", type=int, help="Largest distinct distance; -1 is none.  [default: the model's own]"),
    click.option(
        "--same-length/--no-same-length",
        default=None,
        help="Whether every token sees equally many others.  [default: the model's own]",
    ),
)

checkpoint_options = _all(
    click.option(
        "--format",
        "format_name",
        type=click.Choice(FORMATS),
        help="Format of the checkpoint.  [default: found out from the content]",
    ),
    click.option(
        "--config",
        metavar="FILE",
        type=click.Path(path_type=Path),
        callback=_read_config,
        help="JSON file with hyper-parameters that the checkpoint does not hold, or evaluation settings of training.",
    ),
)

runtime_options = _all(
    click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N."),
    click.option("--threads", type=click.IntRange(1), help="Threads of one step.  [default: all cores]"),
)

protocol_options = _all(
    click.option(
        "--protocol",
        type=click.Choice(PROTOCOLS),
        default=PROTOCOLS[0],
        show_default=True,
        help="Whose walk: streams of equal length; the same after a warm-up; or one stream.",
    ),
    click.option(
        "--batch-size",
        type=click.IntRange(1),
        help="Parallel streams, on which the score depends.  [default: the protocol's own: 10, 16 or 1]",
    ),
    click.option(
        "--sentences/--no-sentences",
        default=None,
        help="Pack sentences into the streams.  [default: as kimiyoung does, where the vocabulary marks them]",
    ),
)


class _Integers(click.ParamType[tuple[int, ...]]):
    """Integers separated by commas."""

    name = "integers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(part) for part in value.split(",") if part.strip())
        except ValueError:
            self.fail(f"{value!r} is not a list of integers separated by commas.", param, ctx)


MODEL_OPTIONS: dict[str, tuple[Any, Any, str]] = {
    # field: (type, default, help)
    "n_layer": (int, 6, "Layers."),
    "n_head": (int, 8, "Attention heads."),
    "d_model": (int, 256, "Width of the hidden states."),
    "d_head": (int, 32, "Width of a head."),
    "d_inner": (int, 1024, "Width inside the feed-forward blocks."),
    "d_embed": (int, None, "Width of the embeddings.  [default: that of the hidden states]"),
    "cutoffs": (_Integers(), (), "Where the vocabulary is cut into clusters, such as 128,192.  [default: nowhere]"),
    "div_val": (int, 1, "How much narrower the embeddings of each further cluster are."),
    "tgt_len": (int, 128, "Tokens in a segment."),
    "mem_len": (int, 128, "Rows of memory that a layer keeps."),
    "clamp_len": (int, -1, "Largest distinct distance; -1 is none."),
    "dropout": (float, 0.1, "Dropout."),
    "dropatt": (float, 0.0, "Dropout of attention weights."),
    "first_memory": (click.Choice(["empty", "zeros"]), "empty", "What a document's memory starts with."),
    "same_length": (bool, False, "Whether every token sees equally many others."),
    "untie_r": (bool, True, "Whether each layer has u and v of its own."),
    "pre_lnorm": (bool, False, "Whether layers normalise their inputs instead of their outputs."),
}
TRAINING_OPTIONS: dict[str, tuple[Any, Any, str]] = {
    "steps": (int, 10_000, "Updates in all; 0 writes a fresh model."),
    "batch_size": (int, 16, "Parallel streams."),
    "learning_rate": (float, 2e-3, "Highest learning rate."),
    "min_lr_ratio": (float, 0.02, "Learning rate at the end, as a part of the highest."),
    "warmup_steps": (int, 300, "Updates until the highest learning rate."),
    "weight_decay": (float, 0.0, "Weight decay."),
    "clip": (float, 1.0, "Largest norm of the gradient."),
    "seed": (int, 0, "Of the first weights and of dropout."),
    "log_every": (int, 50, "Updates between lines of log.jsonl."),
    "eval_every": (int, 500, "Updates between evaluations."),
    "checkpoint_every": (int, 500, "Updates between checkpoints."),
    "device": (str, "cpu", "cpu, cuda or cuda:N."),
    "bf16": (bool, None, "bfloat16 autocast.  [default: on CUDA where it can]"),
    "threads": (int, None, "CPU threads.  [default: all cores]"),
}


def train_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options for what a byte-level run may choose of the model's and the training's configuration, as two dicts."""

    @functools.wraps(function)
    def collected(**values: Any) -> Any:
        model = {name: values.pop(name) for name in MODEL_OPTIONS}
        training = {name: values.pop(name) for name in TRAINING_OPTIONS}
        return function(model=model, training=training, **values)

    for name, (kind, default, text) in reversed([*MODEL_OPTIONS.items(), *TRAINING_OPTIONS.items()]):
        flag = name.replace("_", "-")
        declaration = f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}"
        option: dict[str, Any] = {"default": default, "show_default": default not in (None, ()), "help": text}
        if kind is not bool:
            option["type"] = kind
        collected = click.option(declaration, name, **option)(collected)
    return collected
