"""Code that the formats of Transformer-XLs share: the authors' names of tensors, and hyper-parameters.

NVIDIA's and Hugging Face's code descends from the authors' and keeps their names, except for a prefix and the output
layer. This module has the only mapping from these names to the parameters of
`xltraining.transformer_xl.TransformerXL`, and its checks.

Settings are plain values under the field's names: the fields of `TransformerXLConfig`, and `attn_type`, `ext_len` and
`sample_softmax`. Each of the last two has only one supported value, and of `attn_type` a code base may have only one.
They are stated by the file or follow from the tensors; contradictions are reported.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from xlexport.checkpoints.source import Note, SourceCheckpoint, float_kinds, float_notes, model_source
from xlexport.checkpoints.tensor_mapping import Origin, TensorMapping, model_config, problems_listed, same
from xlexport.errors import CheckpointError
from xlexport.families.options import spellings
from xlruntime.messages import shown

if TYPE_CHECKING:
    from torch import Tensor

    from xlruntime.tokenizers.vocabulary import Vocabulary
    from xltraining.transformer_xl import TransformerXLConfig

__all__ = [
    "ANCHOR",
    "CLUSTER_NAMES",
    "CLUSTER_ROWS",
    "CODE_BASES",
    "EVALUATION_SETTINGS",
    "HUGGING_FACE_PREFIX",
    "LAYER_NAMES",
    "SETTINGS",
    "SIZES",
    "CodeBase",
    "canonical_tensors",
    "contradictions",
    "plain_cutoffs",
    "plain_names",
    "problem_of_memory",
    "require_supported",
    "sizes_of",
    "ties_of",
    "torch_source",
    "training_notes",
    "with_evaluation",
]

ANCHOR = "word_emb.emb_layers.0.weight"  # every file has it, perhaps behind a prefix
HUGGING_FACE_PREFIX = "transformer."
FREQUENCIES = "pos_emb.inv_freq"  # a buffer: the sinusoids' frequencies, which follow from d_model
LAYER_NAMES = {
    "attention.qkv.weight": "dec_attn.qkv_net.weight",
    "attention.query.weight": "dec_attn.q_net.weight",
    "attention.key_value.weight": "dec_attn.kv_net.weight",
    "attention.position.weight": "dec_attn.r_net.weight",
    "attention.output.weight": "dec_attn.o_net.weight",
    "attention.content_bias": "dec_attn.r_w_bias",
    "attention.position_bias": "dec_attn.r_r_bias",
    "attention.norm.weight": "dec_attn.layer_norm.weight",
    "attention.norm.bias": "dec_attn.layer_norm.bias",
    "feed_forward.inner.weight": "pos_ff.CoreNet.0.weight",
    "feed_forward.inner.bias": "pos_ff.CoreNet.0.bias",
    "feed_forward.outer.weight": "pos_ff.CoreNet.3.weight",
    "feed_forward.outer.bias": "pos_ff.CoreNet.3.bias",
    "feed_forward.norm.weight": "pos_ff.layer_norm.weight",
    "feed_forward.norm.bias": "pos_ff.layer_norm.bias",
}
STACKED = {  # tensors of all layers in one, by encoding
    "shaw": {
        "attention.content_bias": "r_w_bias",
        "attention.distance_key": "r_emb",
        "attention.distance_bias": "r_bias",
    },
    "learned": {"attention.places": "r_emb"},
}
GLOBAL_BIASES = {"attention.content_bias": "r_w_bias", "attention.position_bias": "r_r_bias"}
CLUSTER_NAMES = {  # {} is the cluster's number; several names: code bases name the same tensor differently
    "word_emb.clusters.{}.table": ("word_emb.emb_layers.{}.weight",),
    "word_emb.clusters.{}.projection": ("word_emb.emb_projs.{}", "crit.shared_out_projs.{}"),
    "head.clusters.{}.weight": ("crit.out_layers.{}.weight", "crit.out_layers_weights.{}"),
    "head.clusters.{}.bias": ("crit.out_layers.{}.bias", "crit.out_layers_biases.{}"),
    "head.clusters.{}.projection": ("crit.out_projs.{}",),
}
CLUSTER_ROWS = {"head.cluster_weight": "crit.cluster_weight", "head.cluster_bias": "crit.cluster_bias"}
SIZES = ("n_token", "n_layer", "n_head", "d_model", "d_head", "d_inner", "d_embed")
# Options of convert, score and evaluate, by the fields of the configuration.
OPTIONS = {"tgt_len": "segment_len", "mem_len": "mem_len", "clamp_len": "clamp_len", "same_length": "same_length"}
CHOICES = ("cutoffs", "div_val", "tie_weight", "tie_projs", "pre_lnorm", "untie_r", "layer_norm_epsilon")
WITHOUT_EFFECT = ("dropout", "dropatt")  # on a trained model
EVALUATION_SETTINGS = ("tgt_len", "mem_len", "ext_len", "clamp_len", "same_length")
KINDS = ("attn_type", "sample_softmax")
SETTINGS = (*SIZES, *CHOICES, *WITHOUT_EFFECT, *EVALUATION_SETTINGS, *KINDS)
MOST_CLUSTERS = 1000
NOT_FIELDS = (*KINDS, "ext_len", "n_cutoffs")
ENCODINGS = ("relative", "shaw", "sinusoidal", "learned")  # by attn_type
ATTENTION_TYPES = {
    1: "learned relative positions, a vector and a bias for each distance and layer (after Shaw et al. 2018)",
    2: "absolute sinusoids that are added to the embeddings (Vaswani et al. 2017)",
    3: "learned absolute positions that are added in every layer (Al-Rfou et al. 2018)",
}
OUTPUT_WEIGHTS = ("crit.out_layers.{}.weight", "crit.out_layers_weights.{}")


@dataclass(frozen=True)
class CodeBase:
    """Behaviour of a code base that its weights do not show.

    Attributes:
        reversed_clusters: whether the last row of `cluster_weight` belongs to the first tail cluster.
        first_memory: the memory at the start of a document.
        window_extra: number of keys that a token sees beyond `mem_len` with `same_length`.
    """

    reversed_clusters: bool
    first_memory: Literal["empty", "zeros"]
    window_extra: int


CODE_BASES = {
    "kimiyoung": CodeBase(reversed_clusters=True, first_memory="empty", window_extra=0),
    "nvidia": CodeBase(reversed_clusters=True, first_memory="empty", window_extra=1),
    "huggingface": CodeBase(reversed_clusters=False, first_memory="zeros", window_extra=0),
}


def plain_names(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors by the authors' names, without a prefix such as `module.` or `transformer.`."""
    anchors = [name for name in tensors if name.endswith(ANCHOR)]
    inner = min(anchors, key=len, default=ANCHOR).removesuffix(ANCHOR)
    outer = inner.removesuffix(HUGGING_FACE_PREFIX)  # Hugging Face's output layer lacks this prefix
    return {
        name.removeprefix(inner) if name.startswith(inner) else name.removeprefix(outer): tensor
        for name, tensor in tensors.items()
    }


def canonical_tensors(
    path: Path,
    config: TransformerXLConfig,
    tensors: Mapping[str, Any],
    *,
    reversed_clusters: bool,
    tables_are_cut: bool = False,
) -> dict[str, Tensor]:
    """Return the state dict of our `TransformerXL` from tensors under the names of the authors' code.

    Tensors that are float32 already are not copied. Tensors that the configuration ties may be absent.

    Args:
        tensors: as `plain_names` returns them.
        reversed_clusters: see `CodeBase`.
        tables_are_cut: each cluster of a vocabulary has a table of its own even if all are equally wide.

    Raises:
        CheckpointError: lists every tensor that is missing, unexpected, of another shape than in the configuration, or
            different from the tensor to which it is tied.
    """
    from xltraining.transformer_xl import TransformerXL

    tied = TransformerXL.tied_names(config)
    mapping = TensorMapping(tensors)
    width = config.n_head * config.d_head
    if config.encoding == "learned" and width != config.d_model:
        mapping.problems.append(f"n_head × d_head is {width}, d_model {config.d_model}, but r_emb has vectors of both")
    result: dict[str, Tensor] = {}
    for name, origin in _origins(config, tables_are_cut).items():
        tensor = mapping.take(origin, optional=name in tied)
        owner = result.get(tied.get(name, ""))
        if tensor is not None and owner is not None and not same(tensor, owner):
            mapping.problems.append(f"{mapping.name_of(origin)} differs from what the configuration ties it to")
        tensor = owner if name in tied else tensor
        if tensor is not None:
            result[name] = tensor.flatten(1) if name.endswith(".places") else tensor
    mapping.check_frequencies(FREQUENCIES, config.d_model)
    mapping.require_fit(path)
    for name in CLUSTER_ROWS:
        if name in result:
            result[name] = result[name].flip(0) if reversed_clusters else result[name]
    return result


def _origins(config: TransformerXLConfig, tables_are_cut: bool) -> dict[str, Origin]:
    """Return the origin of each of our parameters, in the model's order: owners of tied tensors come first."""
    import torch

    from xltraining.transformer_xl import TransformerXL

    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in TransformerXL(config).state_dict().items()}
    one_table = config.div_val == 1 and not tables_are_cut
    origins = {}
    for name, shape in shapes.items():
        cluster = re.match(r"(\w+\.clusters\.)(\d+)(\.\w+)", name)
        layer = re.match(r"layers\.(\d+)\.(.+)", name)
        if name in CLUSTER_ROWS:
            origins[name] = Origin((CLUSTER_ROWS[name],), shape)
        elif cluster is not None:
            names = CLUSTER_NAMES[f"{cluster[1]}{{}}{cluster[3]}"]
            index = int(cluster[2])
            if one_table and not name.endswith("projection"):
                whole = (config.n_token, *shape[1:])
                origins[name] = Origin(tuple(name.format(0) for name in names), whole, config.cluster_bounds[index])
            else:
                shared = one_table and name.startswith("word_emb")  # one projection of the one table
                origins[name] = Origin(tuple(name.format(0 if shared else index) for name in names), shape)
        else:
            assert layer is not None  # the model does not have other parameters
            if stack := STACKED.get(config.encoding, {}).get(layer[2]):
                # The authors keep places in heads.
                heads = (config.n_head, config.d_head) if config.encoding == "learned" else shape[1:]
                origins[name] = Origin((stack,), (config.n_layer, shape[0], *heads), index=int(layer[1]))
                continue
            theirs = f"layers.{layer[1]}.{LAYER_NAMES[layer[2]]}"
            is_global = layer[2] in GLOBAL_BIASES and layer[1] == "0" and not config.untie_r
            origins[name] = Origin((GLOBAL_BIASES[layer[2]], theirs) if is_global else (theirs,), shape)
    return origins


def sizes_of(tensors: Mapping[str, Any], div_val: object = None) -> dict[str, Any]:
    """Return the settings that follow from the tensors' names and shapes.

    Args:
        tensors: as `plain_names` returns them; other objects, empty tensors and strange shapes are ignored.
        div_val: the source's value. It is kept if it fits, since several values can give the same widths.

    Returns:
        Settings that are known for certain: `n_layer`, `n_head`, `d_head`, `d_model`, `d_inner`, `n_token`, `d_embed`,
        `n_cutoffs` (their number), and `cutoffs` and `div_val` if each cluster has its table.
    """

    def shape(name: str, rank: int) -> tuple[int, ...] | None:
        axes = tuple(getattr(tensors.get(name), "shape", ()))
        return axes if len(axes) == rank and 0 not in axes else None  # an empty tensor can claim any sizes

    sizes: dict[str, Any] = {}
    layers = {int(match[1]) for name in tensors if (match := re.match(r"layers\.(\d{1,6})\.", name))}
    if layers:
        sizes["n_layer"] = len(layers)
    if bias := shape("r_w_bias", 2) or shape("layers.0.dec_attn.r_w_bias", 2):
        sizes["n_head"], sizes["d_head"] = bias
    if embedded := shape("r_emb", 4):
        _, sizes["max_klen"], sizes["n_head"], sizes["d_head"] = embedded
    if output := shape("layers.0.dec_attn.o_net.weight", 2):
        sizes["d_model"] = output[0]
    if inner := shape("layers.0.pos_ff.CoreNet.0.weight", 2):
        sizes["d_inner"] = inner[0]
    numbered = itertools.takewhile(
        bool, (shape(f"word_emb.emb_layers.{index}.weight", 2) for index in range(MOST_CLUSTERS))
    )
    tables = [table for table in numbered if table]
    if not tables:
        return sizes
    rows, widths = [table[0] for table in tables], [table[1] for table in tables]
    sizes |= {"n_token": sum(rows), "d_embed": widths[0]}
    cluster_weight = shape("crit.cluster_weight", 2)
    sizes["n_cutoffs"] = max(len(tables) - 1, min(cluster_weight[0], MOST_CLUSTERS) if cluster_weight else 0)
    if len(tables) > 1 or not sizes["n_cutoffs"]:
        sizes["cutoffs"] = tuple(itertools.accumulate(rows[:-1]))
    if len(tables) > 1:
        values = itertools.chain([div_val], range(1, widths[0] // widths[1] + 1))
        for value in values:
            if not isinstance(value, int) or not 1 <= value <= widths[0]:
                continue
            if all(width == widths[0] // value**index for index, width in enumerate(widths)):
                return {**sizes, "div_val": value}
    return sizes


def ties_of(tensors: Mapping[str, Any], n_clusters: int, *, absent_is_tied: bool = False) -> dict[str, Any]:
    """Return `tie_weight` and `tie_projs` as the tensors show them: tied tensors share memory or are equal.

    Args:
        absent_is_tied: whether an absent tensor of the output layer is a tied one; if not, the file is incomplete.
    """

    def tied(names: Iterable[str], owner: str) -> bool:
        present = [tensors[name] for name in names if name in tensors]
        return all(_same(tensor, tensors.get(owner)) for tensor in present) if present else absent_is_tied

    tables = range(sum(1 for name in tensors if re.fullmatch(r"word_emb\.emb_layers\.\d+\.weight", name)))
    own = [f"word_emb.emb_projs.{index}" for index in range(n_clusters)]
    projections = [name if name in tensors else "word_emb.emb_projs.0" for name in own]
    return {
        "tie_weight": all(
            tied([name.format(index) for name in OUTPUT_WEIGHTS], f"word_emb.emb_layers.{index}.weight")
            for index in tables
        ),
        "tie_projs": tuple(tied([f"crit.out_projs.{index}"], owner) for index, owner in enumerate(projections)),
    }


def _same(one: object, other: object) -> bool:
    import torch

    return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and same(one, other)


def contradictions(settings: Mapping[str, Any], sizes: Mapping[str, Any]) -> list[str]:
    """Return the settings in which the source contradicts its tensors, one sentence each."""
    problems = [
        f"{name} is {_value(settings[name])} by the configuration, {_value(value)} by the tensors"
        for name, value in sizes.items()
        if settings.get(name, value) != value
    ]
    if "cutoffs" in settings and "cutoffs" not in sizes and "n_cutoffs" in sizes:
        number = len(settings["cutoffs"]) if isinstance(settings["cutoffs"], tuple) else -1
        if number != sizes["n_cutoffs"]:
            text = _value(settings["cutoffs"])
            problems.append(f"cutoffs is {text} by the configuration, of length {sizes['n_cutoffs']} by the tensors")
    return problems


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return shown(list(value) if isinstance(value, tuple) else value)


def require_supported(
    path: Path, settings: Mapping[str, Any], names: Iterable[str] = (), attn_types: Collection[int] = (0,)
) -> None:
    """Refuse what the step graphs cannot compute, or what is not known of a code base.

    Args:
        names: names of the tensors, which also show unsupported parts.
        attn_types: kinds of attention whose tensors the caller reads.

    Raises:
        CheckpointError: the message lists all unsupported settings, with the reasons.
    """
    tensor_names = set(names)
    attn_type, ext_len = settings.get("attn_type", 0) or _attention_type(tensor_names), settings.get("ext_len", 0)
    problems = []
    if type(attn_type) is not int or attn_type not in attn_types:
        what = ATTENTION_TYPES.get(attn_type, "unknown here") if isinstance(attn_type, int) else "not a number"
        problems.append(
            f"attn_type {_value(attn_type)} is {what}, which is read from model.pt of the authors' PyTorch code only"
        )
    memory = problem_of_memory(attn_type, settings.get("mem_len"))
    if memory and not problems:
        problems.append(memory)
    if ext_len not in (0, None):
        problems.append(
            f"ext_len {_value(ext_len)} feeds the last tokens of a segment once more with the next one, as context "
            "that is neither predicted nor in memory, but a step graph predicts all that it is fed"
        )
    sample_softmax = settings.get("sample_softmax", -1)
    if "out_layer.weight" in tensor_names or not isinstance(sample_softmax, int) or sample_softmax > 0:
        problems.append(
            f"sample_softmax {_value(sample_softmax)} is an output layer that is trained on samples of the "
            "vocabulary, which no published model uses"
        )
    if problems:
        hint = "`convert` does not support such models."
        if len(problems) == 1 and (memory or ext_len not in (0, None)) and attn_type in attn_types:
            hint = f'Give --config with {{"{"mem_len" if memory else "ext_len"}": 0}} to go without.'
        raise CheckpointError(f"{path}: {'; '.join(problems)}.", hint=hint)


def problem_of_memory(attn_type: object, mem_len: object) -> str | None:
    """Return why a model with absolute places has no memory in the graphs, or None if it has none anyway."""
    if attn_type not in (2, 3) or not mem_len:
        return None
    return (
        f"mem_len {_value(mem_len)} with attn_type {_value(attn_type)}: the authors' code adds positions to the "
        "rows of memory again with every segment, so that a row depends on how often it was read"
        + (", and stops at the first segment" if attn_type == 2 else "")
    )


def _attention_type(names: set[str]) -> int:
    """Return the number of the kind of attention that has tensors with these names."""
    if "layers.0.dec_attn.kv_net.weight" in names:
        return 3 if "r_emb" in names else 2
    return 1 if "r_bias" in names else 0


def with_evaluation(path: Path, settings: Mapping[str, Any], config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings of a checkpoint with its own configuration, with the user's evaluation settings.

    Raises:
        CheckpointError: `config` holds other settings. The message names them.
    """
    foreign = sorted(set(config or ()) - set(EVALUATION_SETTINGS))
    if foreign:
        raise CheckpointError(
            f"{path}: holds its own configuration, so {', '.join(map(ascii, foreign))} cannot be given.",
            hint=f"Leave out all but {', '.join(EVALUATION_SETTINGS)}.",
        )
    return {name: _plain(value) for name, value in {**settings, **(config or {})}.items()}


def _plain(value: object) -> object:
    """Return a value that can be compared and shown; for other objects, the name of their type."""
    if isinstance(value, list | tuple):
        return [_plain_one(part) for part in value]
    return _plain_one(value)


def _plain_one(value: object) -> object:
    return value if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


def training_notes(settings: Mapping[str, Any], config: Mapping[str, Any] | None) -> list[str]:
    """Return a note on the evaluation settings that remain those of training, because `config` lacks them."""
    names = [name for name in OPTIONS if name not in (config or ())]
    if not names:
        return []
    values = _and([f"{name} {str(settings[name]).lower()}" for name in names])
    are = "are those" if len(names) > 1 else "is that"
    options = [OPTIONS[name] for name in names]
    spelled = _and([spellings([option]) for option in options])
    return [Note(f"{values} {are} of training; published scores use others: give {spelled}.", options)]


def _and(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def torch_source(
    path: Path,
    format: str,
    tensors: Mapping[str, Any],
    settings: Mapping[str, Any],
    code_base: CodeBase,
    *,
    files: Iterable[Path],
    tokenizer: str | Vocabulary | Path | None = None,
    notes: Iterable[str] = (),
    tables_are_cut: bool = False,
    attn_types: Collection[int] = (0,),
) -> SourceCheckpoint:
    """Make the source of a checkpoint in the authors' names.

    Args:
        tensors: as `plain_names` returns them.
        settings: the source's own settings; sizes that it leaves out come from the tensors.
        tables_are_cut: see `canonical_tensors`.
        attn_types: see `require_supported`.

    Raises:
        CheckpointError: it is of an unsupported kind, contradicts itself, or its tensors do not fit. The message lists
            all problems.
    """
    from xltraining.checkpoint import Checkpoint
    from xltraining.transformer_xl import TransformerXLConfig

    require_supported(path, settings, tensors, attn_types)
    attn_type = settings.get("attn_type", 0) or _attention_type(set(tensors))
    if ANCHOR not in tensors:
        raise CheckpointError(f"{path}: no {ANCHOR} in it, so not a Transformer-XL.", hint="Check the path.")
    if not any(name.startswith("crit.") for name in tensors):
        raise CheckpointError(
            f"{path}: a Transformer-XL without an output layer (no crit.…), so it gives no probabilities.",
            hint="Give the checkpoint of the whole language model.",
        )
    settings = plain_cutoffs({name: _plain(value) for name, value in settings.items() if value is not None})
    sizes = sizes_of(tensors, settings.get("div_val"))
    problems = contradictions(settings, sizes)
    if problems:
        raise CheckpointError(
            f"{path}: {problems_listed(problems)}.", hint="Give the configuration that it was trained with."
        )
    same_dim = sizes.get("d_embed") == sizes.get("d_model")
    values = {
        "untie_r": "r_w_bias" not in tensors or attn_type != 0,
        "encoding": ENCODINGS[attn_type],
        # A table as wide as the model still has a projection, which 1 excludes.
        "div_val": 2 if same_dim and "word_emb.emb_projs.0" in tensors else 1,
        "first_memory": code_base.first_memory,
        "window_extra": code_base.window_extra,
        **sizes,
        **settings,
    }
    values["tie_projs"] = _tie_for_each_cluster(values)
    fields = {name: value for name, value in values.items() if name not in NOT_FIELDS}
    config = model_config(TransformerXLConfig, path, fields)
    state_dict = canonical_tensors(
        path, config, tensors, reversed_clusters=code_base.reversed_clusters, tables_are_cut=tables_are_cut
    )
    return model_source(
        path,
        format,
        Checkpoint(config, state_dict),
        files=files,
        tokenizer=tokenizer,
        notes=[*notes, *_dtype_notes(tensors)],
    )


def plain_cutoffs(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with cutoffs as a tuple, without the vocabulary's end, which old files include."""
    cutoffs = settings.get("cutoffs")
    if not isinstance(cutoffs, list | tuple):
        return dict(settings)
    ends_in_vocabulary = bool(cutoffs) and cutoffs[-1] == settings.get("n_token")
    return {**settings, "cutoffs": tuple(cutoffs[:-1] if ends_in_vocabulary else cutoffs)}


def _tie_for_each_cluster(values: Mapping[str, Any]) -> Any:
    """Return one tie for each cluster, as the code bases read them: missing ties are false, more are ignored."""
    ties, cutoffs = values.get("tie_projs", ()), values.get("cutoffs", ())
    if not isinstance(ties, list | tuple) or not isinstance(cutoffs, tuple):
        return ties
    n_clusters = len(cutoffs) + 1
    return (*ties, *[False] * n_clusters)[:n_clusters]


def _dtype_notes(tensors: Mapping[str, Any]) -> list[str]:
    notes = float_notes(tensors)
    if "float16" in float_kinds(tensors):
        notes.append(
            "A model in float16 computes positions in float16 too, beyond 2,048 inexactly; here they are float32, so "
            "scores can differ from such a run."
        )
    return notes
