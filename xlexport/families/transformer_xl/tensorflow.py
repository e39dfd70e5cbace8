"""Checkpoints of the authors' TensorFlow code, the only format in which they published their weights.

Variables are in the scope `transformer`. Their shapes show all settings except the evaluation settings. In contrast to
the PyTorch code:

- linear maps are (in, out), and projections (E_i, D) instead of (D, E_i);
- biases of attention are one variable, (n_layer, n_head, d_head) with `untie_r`;
- with `div_val` 1 all clusters are rows of one table; if the vocabulary is not cut, the output layer uses the
  embedding's projection;
- `proj_same_dim` leaves out the projection of a cluster that is as wide as the model;
- a document starts with `mem_len` zero rows, and with `same_length` a token sees `mem_len + 1` keys.

Source: kimiyoung/transformer-xl, tf/model.py and tf/train_gpu.py; LayerNorm is that of tf.contrib.layers.
"""

from __future__ import annotations

import glob
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlexport.checkpoints.files import CONFIG
from xlexport.checkpoints.source import Note, SourceCheckpoint, model_source
from xlexport.checkpoints.tensor_mapping import model_config, problems_listed
from xlexport.checkpoints.tensorflow_bundle import TensorBundle, ends_as_table, open_tensor_bundle
from xlexport.errors import CheckpointError, CheckpointNotFoundError
from xlexport.extras import require
from xlexport.families.transformer_xl.tensors import require_supported, with_evaluation

if TYPE_CHECKING:
    from torch import Tensor

    from xltraining.transformer_xl import TransformerXLConfig

__all__ = ["NAME", "load", "matches"]

NAME = "tensorflow"
STATE_FILE = "checkpoint"  # a text file that names the latest of a folder's checkpoints
LARGEST_STATE_FILE = 1 << 20
SCOPE = "transformer/"
TRAINING = ("beta1_power", "beta2_power", "global_step")
FLOATS = ("float16", "float32", "float64")
MOST_LAYERS, MOST_CLUSTERS = 1000, 100
LAYER_NORM_EPSILON = 1e-12
EVALUATION = {"tgt_len": "segment_len", "mem_len": "mem_len", "clamp_len": "clamp_len", "same_length": "same_length"}
LAYER_NAMES = {
    "attention.qkv.weight": "rel_attn/qkv/kernel",  # columns of queries, keys, values
    "attention.position.weight": "rel_attn/r/kernel",
    "attention.output.weight": "rel_attn/o/kernel",
    "attention.norm.weight": "rel_attn/LayerNorm/gamma",
    "attention.norm.bias": "rel_attn/LayerNorm/beta",
    "feed_forward.inner.weight": "ff/layer_1/kernel",
    "feed_forward.inner.bias": "ff/layer_1/bias",
    "feed_forward.outer.weight": "ff/layer_2/kernel",
    "feed_forward.outer.bias": "ff/layer_2/bias",
    "feed_forward.norm.weight": "ff/LayerNorm/gamma",
    "feed_forward.norm.bias": "ff/LayerNorm/beta",
}
LAYER_BIASES = {"attention.content_bias": "r_w_bias", "attention.position_bias": "r_r_bias"}
TRANSPOSED = ("/kernel", "/proj_W", "/proj")


# (n_layer, d_model, n_head, d_inner, div_val) of the published models: name, and the settings of their evaluation
# in tf/sota/*.sh: segment_len, mem_len, clamp_len. All of them used same_length.
PUBLISHED = {
    (24, 1024, 8, 3072, 1): ("enwik8 and text8 models", 128, 3800, 1000),
    (18, 1024, 16, 4096, 4): ("WikiText-103 model", 128, 1600, 1000),
    (24, 1280, 16, 8192, 4): ("One Billion Word model", 32, 128, -1),
}


def matches(path: Path) -> bool:
    """Return whether `path` is the prefix of a checkpoint, one of its files, or a folder with one."""
    return bool(_prefixes(path))


def load(path: Path, config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint; see `CheckpointFormat`. The optimizer's state is not read.

    Args:
        path: the common beginning of its files' names (`model.ckpt-0`), one of the files, or their folder.
        config: any of `tgt_len`, `mem_len`, `clamp_len` and `same_length`.
    """
    require("convert")
    from xltraining.checkpoint import Checkpoint
    from xltraining.transformer_xl import TransformerXLConfig

    evaluation = with_evaluation(path, {}, config)
    require_supported(path, evaluation)
    evaluation.pop("ext_len", None)
    bundle = open_tensor_bundle(_prefix(path))
    sizes = _sizes(bundle)
    hint = "Give a checkpoint of the authors' TensorFlow code."
    ours = model_config(TransformerXLConfig, bundle.prefix, {**sizes, **evaluation}, hint)
    state_dict, notes = _read(bundle, ours)
    return model_source(
        bundle.prefix,
        NAME,
        Checkpoint(ours, state_dict),
        files=bundle.files,
        notes=[*notes, *_published_note(ours)],
        needs=[need for name, need in EVALUATION.items() if name not in evaluation],
    )


def _prefix(path: Path) -> Path:
    prefixes = _prefixes(path)
    if not prefixes:
        raise CheckpointNotFoundError(
            f"{path}: no TensorFlow checkpoint.", hint="Give the common beginning of its files' names."
        )
    if len(prefixes) > 1:
        names = problems_listed(prefix.name for prefix in prefixes)
        raise CheckpointError(
            f"{path}: holds several checkpoints: {names}.", hint=f"Give one of them, for example {prefixes[0]}."
        )
    return prefixes[0]


def _prefixes(path: Path) -> list[Path]:
    """Return the checkpoint that `path` means; all of a folder's, if the folder does not name the latest."""
    if path.is_dir():
        if (path / CONFIG).exists():  # a Hugging Face folder, perhaps with its TensorFlow original
            return []
        indices = (file for file in sorted(path.glob("*.index")) if file.suffix and file.name.isprintable())
        return _latest(path) or [index.with_suffix("") for index in indices if ends_as_table(index)]
    if path.name == STATE_FILE and path.is_file():
        return _latest(path.parent)
    stem = re.sub(r"\.(index|meta|data-\d{5}-of-\d{5})$", "", path.name)
    prefix = path.with_name(stem) if stem else path
    return [prefix] if _is_checkpoint(prefix) else []


def _latest(folder: Path) -> list[Path]:
    """Return the checkpoint that the folder's text file names. Its folder is ignored: folders move, paths mislead."""
    file = folder / STATE_FILE
    if not file.is_file() or file.stat().st_size > LARGEST_STATE_FILE:
        return []
    match = re.search(rb'^model_checkpoint_path: "([^"]*)"', file.read_bytes(), re.MULTILINE)
    name = re.split(r"[/\\]", match[1].decode("ascii", "replace"))[-1] if match else ""
    if name in ("", ".", "..") or not name.isprintable():
        return []
    return [folder / name] if _is_checkpoint(folder / name) else []


def _is_checkpoint(prefix: Path) -> bool:
    """Return whether a table or data file of that name exists: then a message can name what is missing or damaged."""
    tables = (file for file in (prefix.with_name(f"{prefix.name}.index"), prefix) if file.is_file())
    shards = prefix.parent.glob(f"{glob.escape(prefix.name)}.data-?????-of-?????")
    return any(map(ends_as_table, tables)) or any(shards)


def _sizes(bundle: TensorBundle) -> dict[str, Any]:
    """Return the configuration, without evaluation settings, from the shapes of a few variables.

    Raises:
        CheckpointError: variables are missing, or have an impossible shape. The message lists all of them.
    """
    shapes = _Shapes(bundle)
    biases = shapes.of("r_w_bias", 2, 3)
    position = shapes.of("layer_0/rel_attn/r/kernel", 2)
    inner = shapes.of("layer_0/ff/layer_1/kernel", 2)
    cut = not shapes.has("adaptive_softmax/bias")
    counts = shapes.numbered("adaptive_softmax/cutoff_{}/b", 1) if cut else [(0,)]
    one_table = shapes.has("adaptive_embed/lookup_table")
    name = "adaptive_embed/lookup_table" if one_table else "adaptive_embed/cutoff_{}/lookup_table"
    tables = [shapes.of(name, 2)] if one_table else shapes.numbered(name, 2)
    n_layer = shapes.count_layers()
    shapes.check()

    widths = [table[1] for table in tables]
    folders = ["" if one_table else f"cutoff_{index}/" for index in range(len(counts))]
    projected = [shapes.has(f"adaptive_embed/{folder}proj_W") for folder in folders]
    projected_again = [shapes.has(f"adaptive_softmax/cutoff_{index}/proj") for index in range(len(counts))]
    return {
        "n_token": sum(count for (count,) in counts) if cut else tables[0][0],
        "n_layer": n_layer,
        "n_head": biases[-2],
        "d_head": biases[-1],
        "d_model": position[0],
        "d_inner": inner[1],
        "d_embed": widths[0],
        "cutoffs": tuple(itertools.accumulate(count for (count,) in counts[:-1])),
        "div_val": 1 if one_table else _div_val(widths),
        "tie_projs": tuple(there and not again for there, again in zip(projected, projected_again, strict=True)),
        "proj_same_dim": one_table or widths[0] != position[0] or projected[0],
        "untie_r": len(biases) == 3,
        "tie_weight": True,
        "pre_lnorm": False,
        "layer_norm_epsilon": LAYER_NORM_EPSILON,
        "first_memory": "zeros",
        "window_extra": 1,
    }


def _div_val(widths: list[int]) -> int:
    """Return the divisor by which the widths shrink; if there is none, the tables' shapes will not fit."""
    # With three clusters or more, the divisor is at most the root of the width; with two, it is the quotient.
    divisors = itertools.chain(range(2, math.isqrt(widths[0]) + 1), [widths[0] // max(1, widths[-1])])
    return next((d for d in divisors if all(widths[0] // d**i == width for i, width in enumerate(widths))), 2)


class _Shapes:
    """Shapes of the model's variables by their names without the scope, and the problems found in them."""

    def __init__(self, bundle: TensorBundle) -> None:
        self._prefix = bundle.prefix
        self._shapes = {name.removeprefix(SCOPE): entry.shape for name, entry in bundle.entries.items() if _ours(name)}
        self._first_names = list(bundle.entries)[:3]
        self._problems: list[str] = []

    def has(self, name: str) -> bool:
        return name in self._shapes

    def of(self, name: str, *ranks: int) -> tuple[int, ...]:
        """Return the shape of a required variable; if it is wrong, record a problem and return zeros."""
        shape = self._shapes.get(name)
        if shape is not None and len(shape) in ranks and 0 not in shape:  # an empty tensor can claim any sizes
            return shape
        what = "is missing" if shape is None else f"is of shape {shape}"
        self._problems.append(f"{SCOPE}{name} {what}")
        return (0,) * ranks[0]

    def numbered(self, name: str, rank: int) -> list[tuple[int, ...]]:
        """Return the shapes of the variables 0, 1, … of a numbered name; the first is required."""
        names = map(name.format, range(1, MOST_CLUSTERS))
        return [self.of(variable, rank) for variable in (name.format(0), *itertools.takewhile(self.has, names))]

    def count_layers(self) -> int:
        count = len({match[1] for name in self._shapes if (match := re.match(r"layer_(\d+)/", name))})
        if count > MOST_LAYERS:
            self._problems.append(f"there are {count:,} layers")
        return count

    def check(self) -> None:
        if self._problems:
            names = ", ".join(self._first_names) or "nothing"
            raise CheckpointError(
                f"{self._prefix}: not a Transformer-XL of the authors' TensorFlow code: "
                f"{problems_listed(self._problems)} (it begins with {names}).",
                hint="Give a checkpoint of that code.",
            )


def _ours(name: str) -> bool:
    return name.startswith(SCOPE)


@dataclass(frozen=True)
class _Source:
    """The origin of one of our parameters: a variable and its shape, or a part of it."""

    name: str
    shape: tuple[int, ...]
    part: int | slice | None


def _sources(config: TransformerXLConfig) -> dict[str, _Source]:
    """Return the variable of each of our untied parameters, in the model's order."""
    import torch

    from xltraining.transformer_xl import TransformerXL

    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in TransformerXL(config).state_dict().items()}
    names, tied = _names(config), TransformerXL.tied_names(config)
    return {ours: _source(config, *names[ours], shape) for ours, shape in shapes.items() if ours not in tied}


def _source(config: TransformerXLConfig, name: str, part: int | slice | None, shape: tuple[int, ...]) -> _Source:
    """Return the variable that holds our parameter of this shape: whole, transposed, or as a part."""
    if name.endswith(TRANSPOSED):
        return _Source(SCOPE + name, shape[::-1], part)
    if part is None:
        return _Source(SCOPE + name, shape, part)
    whole = (config.n_layer, *shape) if isinstance(part, int) else (config.n_token, *shape[1:])
    return _Source(SCOPE + name, whole, part)


def _names(config: TransformerXLConfig) -> dict[str, tuple[str, int | slice | None]]:
    """Return the variable's name, and the part of it, for every parameter that a model can have."""
    names: dict[str, tuple[str, int | slice | None]] = {
        "head.cluster_weight": ("adaptive_softmax/cutoff_0/cluster_W", None),
        "head.cluster_bias": ("adaptive_softmax/cutoff_0/cluster_b", None),
    }
    for index, bounds in enumerate(config.cluster_bounds):
        embed = "adaptive_embed" if config.div_val == 1 else f"adaptive_embed/cutoff_{index}"
        softmax = f"adaptive_softmax/cutoff_{index}"
        rows = slice(*bounds) if config.div_val == 1 else None
        names[f"word_emb.clusters.{index}.table"] = (f"{embed}/lookup_table", rows)
        names[f"word_emb.clusters.{index}.projection"] = (f"{embed}/proj_W", None)
        names[f"head.clusters.{index}.bias"] = (f"{softmax}/b" if config.cutoffs else "adaptive_softmax/bias", None)
        names[f"head.clusters.{index}.projection"] = (f"{softmax}/proj", None)
    for layer in range(config.n_layer):
        for ours, theirs in LAYER_NAMES.items():
            names[f"layers.{layer}.{ours}"] = (f"layer_{layer}/{theirs}", None)
        for ours, theirs in LAYER_BIASES.items():
            names[f"layers.{layer}.{ours}"] = (theirs, layer if config.untie_r else None)
    return names


def _read(bundle: TensorBundle, config: TransformerXLConfig) -> tuple[dict[str, Tensor], Iterator[str]]:
    """Return the state dict, in float32 without copies of float32 variables, and notes on it.

    Raises:
        CheckpointError: variables are missing, unexpected or of another shape. The message lists all. No variable has
            been read then.
    """
    import torch

    from xltraining.transformer_xl import TransformerXL

    sources = _sources(config)
    shapes = {source.name: source.shape for source in sources.values()}
    slots = {name for name in bundle.entries if name.rpartition("/")[0] in shapes}  # of the optimizer: NAME/Adam
    others = set(bundle.entries) - set(shapes) - slots
    problems = [*_misfits(bundle, shapes), *(f"{name} is unexpected" for name in sorted(filter(_ours, others)))]
    if problems:
        raise CheckpointError(
            f"{bundle.prefix}: not a Transformer-XL of the authors' TensorFlow code: {problems_listed(problems)}.",
            hint="Give a checkpoint of that code.",
        )

    arrays = {name: torch.from_numpy(bundle.read(name)).float() for name in shapes}
    state_dict = {}
    for ours, source in sources.items():
        tensor = arrays[source.name] if source.part is None else arrays[source.name][source.part]
        state_dict[ours] = tensor.t() if source.name.endswith(TRANSPOSED) else tensor
    state_dict |= {name: state_dict[owner] for name, owner in TransformerXL.tied_names(config).items()}
    return state_dict, _notes(bundle, shapes, slots, others - set(TRAINING))


def _misfits(bundle: TensorBundle, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    for name, shape in shapes.items():
        entry = bundle.entries.get(name)
        if entry is None:
            yield f"{name} is missing"
        elif entry.shape != shape:
            yield f"{name} is {entry.shape}, but the other shapes require {shape}"
        elif entry.dtype not in FLOATS:
            yield f"{name} is {entry.dtype}, not {' or '.join(FLOATS)}"


def _notes(bundle: TensorBundle, names: Iterable[str], slots: set[str], foreign: set[str]) -> Iterator[str]:
    dtypes = {bundle.entries[name].dtype for name in names} - {"float32"}
    if dtypes:
        yield f"Weights are {', '.join(sorted(dtypes))} in the file and become float32."
    if slots:
        kinds = ", ".join(sorted({name.rpartition("/")[2] for name in slots}))
        yield f"Left out: the optimizer's state, {len(slots)} tensors ({kinds})."
    if foreign:
        yield f"Left out, because it is not in the scope {SCOPE}: {problems_listed(sorted(foreign))}."


def _published_note(config: TransformerXLConfig) -> Iterator[str]:
    sizes = (config.n_layer, config.d_model, config.n_head, config.d_inner, config.div_val)
    if sizes in PUBLISHED:
        name, segment_len, mem_len, clamp_len = PUBLISHED[sizes]
        yield Note(
            f"The sizes are those of the published {name}. Its published scores are with --segment-len {segment_len} "
            f"--mem-len {mem_len} --set clamp_len={clamp_len} --set same_length=true.",
            options=("segment_len", "mem_len", "clamp_len", "same_length"),
        )
