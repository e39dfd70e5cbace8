"""Options of `train`: what a run may choose of a model's configuration and of its training."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.commands.options import PATH, Integers
from xlexport.terminal import tell

if TYPE_CHECKING:
    from xltraining.architectures import ModelConfig

__all__ = ["ARCHITECTURE_OPTIONS", "TRAINING_OPTIONS", "model_config", "train", "train_options"]


class _Names(click.ParamType[tuple[str, ...]]):
    """Names separated by commas."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        return value if isinstance(value, tuple) else tuple(part.strip() for part in value.split(",") if part.strip())


POSITIONS = ["axial", "absolute", "sinusoid", "rotary"]
# Of each architecture, field: (type, default, help).
ARCHITECTURE_OPTIONS: dict[str, dict[str, tuple[Any, Any, str]]] = {
    "transformer_xl": {
        "n_layer": (int, 6, "Layers."),
        "n_head": (int, 8, "Attention heads."),
        "d_model": (int, 256, "Width of the hidden states."),
        "d_head": (int, 32, "Width of a head."),
        "d_inner": (int, 1024, "Width inside the feed-forward blocks."),
        "d_embed": (int, None, "Width of the embeddings.  [default: that of the hidden states]"),
        "cutoffs": (Integers(), (), "Where the vocabulary is cut into clusters, such as 128,192.  [default: nowhere]"),
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
    },
    "reformer": {
        "attn_layers": (_Names(), ("local", "lsh", "local", "lsh"), "Attention of each layer: local, lsh or full."),
        "n_head": (int, 4, "Attention heads."),
        "d_model": (int, 256, "Width of the hidden states."),
        "d_head": (int, 64, "Width of a head."),
        "d_inner": (int, 1024, "Width inside the feed-forward blocks."),
        "tgt_len": (int, 512, "Tokens in a segment."),
        "mem_len": (int, 512, "Rows of memory that a layer keeps."),
        "n_hashes": (int, 2, "Rounds of hashing."),
        "n_buckets": (Integers(), (32,), "Buckets of a round, or even factors of their number, such as 64,128."),
        "chunk_length": (int, 64, "Keys that a token sees in a round of hashing, at most."),
        "hash_seed": (int, 0, "Of the hash rotations."),
        "redraw_hashes": (bool, False, "Whether each update draws hash rotations of its own."),
        "local_chunk_length": (int, 64, "Tokens in a chunk of local attention."),
        "local_chunks_before": (int, 1, "Chunks that local attention sees besides its own."),
        "position": (
            click.Choice(POSITIONS),
            "axial",
            "Embeddings by axes, one each, or sinusoids; or rotary.",
        ),
        "axial_shape": (Integers(), (64, 128), "Rows and columns of the table of positions."),
        "axial_dims": (
            Integers(),
            (64, 192),
            "Widths of their embeddings, by default a quarter of d-model and the rest.",
        ),
        "max_positions": (int, 8192, "Positions with an embedding, where they have one; the size of the axial table."),
        "activation": (click.Choice(["relu", "gelu", "gelu_tanh"]), "relu", "Inside the feed-forward blocks."),
        "ff_chunk": (int, 0, "Positions that a feed-forward block computes at a time, to save memory; 0: all."),
        "dropout": (float, 0.1, "Dropout."),
        "dropatt": (float, 0.0, "Dropout of attention weights."),
    },
}
TRAINING_OPTIONS: dict[str, tuple[Any, Any, str]] = {
    "task": (click.Choice(["bytes", "duplication"]), "bytes", "Text FILES, or copying a random word (no FILES)."),
    "word_length": (int, 255, "Symbols of the word that the duplication task repeats."),
    "steps": (int, 10_000, "Updates in all; 0 writes a fresh model."),
    "batch_size": (int, 16, "Parallel streams."),
    "optimizer": (click.Choice(["adam", "adafactor"]), "adam", "Adafactor keeps little state, and no momentum."),
    "learning_rate": (float, 2e-3, "Highest learning rate; for Adafactor a part of each weight's size, such as 0.1."),
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
    "reversible": (bool, True, "Whether a Reformer computes activations anew in the backward pass, to save memory."),
}
_LAYERS = {"local", "lsh", "full"}
# Options of a kind of layer that the model may not have.
_LAYER_OPTIONS = {
    "lsh": ("n_hashes", "n_buckets", "chunk_length", "hash_seed", "redraw_hashes"),
    "local": ("local_chunk_length", "local_chunks_before"),
}
_MODEL_OPTIONS = {name: entry for options in ARCHITECTURE_OPTIONS.values() for name, entry in options.items()}


def train_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options for the architecture, for what a run may choose of the model (those given), and for the training."""

    @functools.wraps(function)
    def collected(architecture: str, **values: Any) -> Any:
        model = {name: values.pop(name) for name in _MODEL_OPTIONS}
        model = {name: value for name, value in model.items() if value is not None}
        training = {name: values.pop(name) for name in TRAINING_OPTIONS}
        _refuse_what_does_not_count(architecture, model, training)
        return function(architecture=architecture, model=model, training=training, **values)

    decorated: Callable[..., Any] = collected
    for name, (kind, default, text) in reversed(TRAINING_OPTIONS.items()):
        decorated = _option(name, kind, text, default=default, show_default=default is not None)(decorated)
    for name, (kind, _, text) in reversed(_MODEL_OPTIONS.items()):
        decorated = _option(name, kind, text + _shown_defaults(name))(decorated)
    choice = click.Choice(list(ARCHITECTURE_OPTIONS))
    return click.option(
        "--architecture", type=choice, default="transformer_xl", show_default=True, help="Kind of model."
    )(decorated)


def _option(name: str, kind: Any, text: str, **more: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    flag = name.replace("_", "-")
    if kind is bool:
        return click.option(f"--{flag}/--no-{flag}", name, help=text, **{"default": None, **more})
    return click.option(f"--{flag}", name, type=kind, help=text, **more)


def _shown_defaults(name: str) -> str:
    """Each architecture's default of an option; one that only one has says so."""
    defaults = {
        architecture: _shown(options[name][1])
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
    """A given option that this run would not look at is a mistake."""
    problems = []
    foreign = [name for name in model if name not in ARCHITECTURE_OPTIONS[architecture]]
    if foreign:
        others = [name for name in ARCHITECTURE_OPTIONS if name != architecture]
        problems.append(f"{_flags(foreign)}: only for --architecture {' or '.join(others)}, not {architecture}")
        if "n_layer" in foreign:
            problems.append("a Reformer's layers are those that --attn-layers names")
    if architecture != "reformer" and _is_given("reversible"):
        problems.append("--reversible, --no-reversible: only for --architecture reformer")
    if architecture == "reformer":
        layers = model.get("attn_layers", ARCHITECTURE_OPTIONS["reformer"]["attn_layers"][1])
        for kind, options in _LAYER_OPTIONS.items():
            idle = [name for name in options if name in model]
            if idle and kind not in layers and _LAYERS.issuperset(layers):  # else that is what is wrong
                problems.append(f"{_flags(idle)}: only with {kind} layers, but --attn-layers is {','.join(layers)}")
    axes = {"axial_shape", "axial_dims"} & model.keys()
    if axes and model.get("position", "axial") != "axial":
        problems.append(f"{_flags(sorted(axes))}: only for --position axial")
    elif axes and architecture == "reformer":
        rows, widths = len(model.get("axial_shape", (0, 0))), len(model.get("axial_dims", (0, 0)))
        if rows != widths:
            problems.append(
                f"--axial-shape has {rows} and --axial-dims {widths} numbers{'' if len(axes) == 2 else ' by default'}: "
                "give both, with as many numbers each"
            )
    if training["task"] != "duplication" and _is_given("word_length"):
        problems.append("--word-length: only for --task duplication")
    if training["task"] == "duplication" and "tgt_len" in model:
        problems.append("--tgt-len: in the duplication task --word-length decides it")
    if problems:
        raise click.UsageError("; ".join(problems) + ".")


def _is_given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _flags(names: Iterable[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def model_config(architecture: str, given: dict[str, Any], training: dict[str, Any]) -> ModelConfig:
    """The model's configuration from the options given; what others decide is computed.

    Raises:
        ConfigError: the options do not go together.
    """
    from xltraining.architectures import config_from
    from xltraining.duplication import N_TOKEN, sequence_length

    values = dict(given)
    position = values.get("position", "axial")
    if architecture == "reformer" and position in ("sinusoid", "rotary"):
        values.setdefault("max_positions", 0)
    if architecture == "reformer" and position == "axial":
        options = ARCHITECTURE_OPTIONS["reformer"]
        width = values.get("d_model", options["d_model"][1])
        values.setdefault("max_positions", math.prod(values.get("axial_shape", options["axial_shape"][1])))
        values.setdefault("axial_dims", (width // 4, width - width // 4))
    if training["task"] == "duplication":
        length = sequence_length(training["word_length"])
        values |= {"n_token": N_TOKEN, "tgt_len": length, "mem_len": values.get("mem_len", length)}
    return config_from(architecture, values)


@click.command()
@click.argument("files", nargs=-1, type=PATH)
@click.option(
    "-o", "--out", "--output", "out_dir", required=True, type=PATH, help="Folder for checkpoint.pt and log.jsonl."
)
@click.option("--valid", "valid_files", multiple=True, type=PATH, help="Held-out text; may be given several times.")
@click.option("--resume", is_flag=True, help="Go on with the run in --out, exactly where it stopped.")
@train_options
def train(
    files: tuple[Path, ...],
    out_dir: Path,
    valid_files: tuple[Path, ...],
    resume: bool,
    architecture: str,
    model: dict[str, Any],
    training: dict[str, Any],
) -> None:
    """Train a byte-level Transformer-XL or Reformer on text FILES. Ctrl-C saves, --resume goes on."""
    from xlexport.extras import require

    require("train")
    from xltraining.train import TrainingConfig
    from xltraining.train import train as run_training

    result = run_training(
        model_config(architecture, model, training),
        TrainingConfig(**training),
        train_files=files,
        valid_files=valid_files,
        out_dir=out_dir,
        resume=resume,
        report=tell,
    )
    if result.interrupted:
        tell(f"stopped at step {result.step:,}; go on with --resume")
