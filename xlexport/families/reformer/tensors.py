"""Code that the formats of Reformers share: users' choices, hash rotations, and sources made of tensors."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlexport.checkpoints.source import SourceCheckpoint, float_notes, model_source
from xlexport.checkpoints.tensor_mapping import Origin, TensorMapping, model_config
from xlruntime.messages import shown

if TYPE_CHECKING:
    from torch import Tensor

    from xltraining.reformer import ReformerConfig

__all__ = [
    "BUCKET_CHOICES",
    "EVALUATION_SETTINGS",
    "axial_table",
    "bucket_choices",
    "evaluation_lengths",
    "reformer_source",
]

BUCKET_CHOICES = ("num_buckets", "max_length")
EVALUATION_SETTINGS = ("tgt_len", "mem_len")  # of rule band alone
LENGTH = 4096  # of segments and memory if --rule band is chosen for models that have neither
ROTATIONS = ".rotations"
DRAWN_ONCE = (
    "Hash rotations are drawn once, from seed 0, and belong to the bundle. {} draws new ones at every call, so scores "
    "of its own runs differ from each other, and from these."
)


def bucket_choices(config: Mapping[str, Any] | None) -> tuple[tuple[int, ...] | None, int | None, list[str]]:
    """Return the user's choice of buckets: their factors, the longest document, and the problems of both."""
    choices, problems = dict(config or {}), []
    buckets, length = choices.get("num_buckets"), choices.get("max_length")
    factors = (buckets,) if isinstance(buckets, int) else buckets

    def is_even(number: object) -> bool:
        return isinstance(number, int) and not isinstance(number, bool) and number > 0 and number % 2 == 0

    if factors is not None and not (isinstance(factors, list | tuple) and all(map(is_even, factors)) and factors):
        problems.append(f"num_buckets is {shown(buckets)}, expected an even number or several, such as 64,128")
        factors = None
    if length is not None and (not isinstance(length, int) or isinstance(length, bool) or length < 1):
        problems.append(f"max_length is {shown(length)}, expected a number of tokens")
        length = None
    if factors is not None and length is not None:
        problems.append("num_buckets and max_length are both given: leave out one of them")
    return None if factors is None else tuple(factors), length, problems


def evaluation_lengths(config: Mapping[str, Any] | None, max_positions: object) -> dict[str, Any]:
    """Return `tgt_len` and `mem_len`, which have an effect only if rule `band` is chosen for the model."""
    longest = min(LENGTH, max_positions) if isinstance(max_positions, int) and max_positions > 0 else LENGTH
    choices = {name: value for name, value in (config or {}).items() if name in EVALUATION_SETTINGS}
    return {**dict.fromkeys(EVALUATION_SETTINGS, longest), **choices}


def axial_table(shape: tuple[int, ...], axis: int, axes: int) -> tuple[int, ...]:
    """Return the shape to which an axis' table of positions (rows, width) is broadcast among `axes` axes."""
    return (*[1] * axis, shape[0], *[1] * (axes - axis - 1), shape[1])


def reformer_source(
    path: Path,
    format: str,
    values: Mapping[str, Any],
    tensors: Mapping[str, Any],
    origin: Callable[[str, tuple[int, ...]], Origin],
    *,
    rotations: "Callable[[ReformerConfig], Iterable[Tensor]] | None",
    code_base: str,
    files: Iterable[Path],
    frequencies: Mapping[str, int] | None = None,
    tokenizer: str | Path | None = None,
    notes: Iterable[str] = (),
) -> SourceCheckpoint:
    """Make the source of a Reformer from another code base.

    Args:
        values: fields of `ReformerConfig`.
        tensors: under the code base's names.
        origin: returns the place of a parameter's tensor in the file, from our name and shape of the parameter.
        rotations: the source's hash rotations of each LSH layer; None if it has no fixed ones.
        code_base: its name, for the note that the rotations are drawn here.
        frequencies: buffers of sinusoids' frequencies by name, and the widths of the vectors that they turn.

    Raises:
        CheckpointError: the settings are invalid, or the tensors do not fit them. The message lists all problems.
    """
    import torch

    from xltraining.checkpoint import Checkpoint
    from xltraining.reformer import Reformer, ReformerConfig
    from xltraining.reformer.lsh import draw_rotations

    config = model_config(ReformerConfig, path, values)
    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in Reformer(config).state_dict().items()}
    mapping, state_dict = TensorMapping(tensors), {}
    for name, shape in shapes.items():
        if name.endswith(ROTATIONS):
            continue
        tensor = mapping.take(origin(name, shape))
        if tensor is not None:
            state_dict[name] = tensor.reshape(shape)  # axial tables have more axes, of size 1
    for name, width in (frequencies or {}).items():
        mapping.check_frequencies(name, width)
    mapping.require_fit(path)

    hashed = [layer for layer, kind in enumerate(config.attn_layers) if kind == "lsh"]
    if rotations is None:
        sizes = config.n_head, config.d_head, config.rotation_columns, config.n_hashes, config.hash_seed
        tables: Iterable[Tensor] = (draw_rotations(*sizes, layer) for layer in hashed)
        notes = [*notes, *([DRAWN_ONCE.format(code_base)] if hashed else [])]
    else:
        tables = rotations(config)
    names = [f"layers.{layer}.attention{ROTATIONS}" for layer in hashed]
    state_dict |= zip(names, tables, strict=True)
    return model_source(
        path,
        format,
        Checkpoint(config, state_dict),
        files=files,
        tokenizer=tokenizer,
        notes=[*notes, *float_notes(tensors)],
    )
