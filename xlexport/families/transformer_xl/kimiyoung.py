"""`model.pt` of the authors' PyTorch code (kimiyoung/transformer-xl): a whole module, pickled by `torch.save(model)`.

The reader makes an inert record of each module. Its tensors are in `_parameters`, `_buffers` and `_modules`, its
configuration is in its attributes. Tied tensors are one tensor in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from xlexport.checkpoints.safe_pickle import Record, read, summarize
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.checkpoints.tensor_mapping import problems_listed
from xlexport.errors import CheckpointError
from xlexport.extras import require
from xlexport.families.transformer_xl.tensors import (
    CODE_BASES,
    require_supported,
    ties_of,
    torch_source,
    training_notes,
    with_evaluation,
)
from xlruntime.messages import shown

__all__ = ["NAME", "load", "matches"]

NAME = "kimiyoung"
MODEL = "MemTransformerLM"
ATTENTION_TYPES = range(4)
ABSOLUTE = (2, 3)  # attention types without settings that published scores change
MOST_PARTS, LONGEST_NAME = 50_000, 512
Part = TypeVar("Part")
SETTINGS = {  # attribute -> its value in files of code that did not have it yet; None: all versions have it
    "n_token": None,
    "n_layer": None,
    "n_head": None,
    "d_model": None,
    "d_head": None,
    "d_embed": None,
    "tgt_len": None,
    "mem_len": None,
    "ext_len": 0,
    "clamp_len": -1,
    "same_length": False,
    "attn_type": 0,
    "sample_softmax": -1,
}


def matches(path: Path) -> bool:
    """Return whether `path` is a pickled module of the authors' class; copies of their code may be in any package."""
    summary = None if path.is_dir() else summarize(path)
    return summary is not None and any(name.rpartition(".")[2] == MODEL for name in summary.globals)


def load(path: Path, config: Mapping[str, Any] | None = None) -> SourceCheckpoint:
    """Read the checkpoint; see `CheckpointFormat`. `config` has evaluation settings other than those of training."""
    require("convert")
    model = _model(path, read(path))
    settings = {name: model.get(name, default) for name, default in SETTINGS.items()}
    settings = with_evaluation(path, settings, config)
    parts = dict(_few(path, _parts(model)))  # counted before other code walks through them
    tensors = dict(_few(path, _tensors(parts)))
    require_supported(path, settings, tensors, ATTENTION_TYPES)
    _add_settings_of_parts(path, parts, settings)
    settings |= ties_of(tensors, len(settings["cutoffs"]) + 1)
    return torch_source(
        path,
        NAME,
        tensors,
        settings,
        CODE_BASES[NAME],
        files=[path],
        notes=[] if settings["attn_type"] in ABSOLUTE else training_notes(settings, config),
        attn_types=ATTENTION_TYPES,
    )


def _model(path: Path, content: Any) -> Record:
    """Return the language model, which may be in a wrapper such as `nn.DataParallel`."""
    model = content
    while isinstance(model, Record) and set(_children(model)) == {"module"}:
        model = _children(model)["module"]
    if not isinstance(model, Record) or model.name.rpartition(".")[2] != MODEL:
        kind = model.name if isinstance(model, Record) else type(model).__name__
        raise CheckpointError(f"{path}: holds a {kind[:60]}, expected a {MODEL}.", hint="Give the authors' model.pt.")
    return model


def _children(module: Record) -> dict[str, Any]:
    children = module.get("_modules")
    return children if isinstance(children, dict) else {}


def _few(path: Path, parts: Iterator[tuple[str, Part]]) -> Iterator[tuple[str, Part]]:
    """Pass on the named parts of a module, with a limit: a part that the file holds once may be at many places in it.

    Raises:
        CheckpointError: the module has far more parts than any model, or a part has a far longer name.
    """
    for count, (name, part) in enumerate(parts):
        if count == MOST_PARTS or len(name) > LONGEST_NAME:
            raise CheckpointError(
                f"{path}: a {MODEL} of more than {MOST_PARTS:,} parts, or with a name of more than {LONGEST_NAME} "
                "characters.",
                hint="Give the authors' model.pt.",
            )
        yield name, part


def _parts(module: Record, name: str = "") -> Iterator[tuple[str, Record]]:
    """Yield a module and all modules in it, with their names."""
    yield name, module
    for inner, child in _children(module).items():
        if isinstance(child, Record):
            yield from _parts(child, f"{name}.{inner}" if name else str(inner))


def _tensors(parts: Mapping[str, Record]) -> Iterator[tuple[str, Any]]:
    """Yield parameters and buffers with the names that `state_dict` would give them."""
    for prefix, part in parts.items():
        for kind in ("_parameters", "_buffers"):
            entries = part.get(kind)
            for name, tensor in entries.items() if isinstance(entries, dict) else ():
                if tensor is not None:
                    yield f"{prefix}.{name}" if prefix else str(name), tensor


def _add_settings_of_parts(path: Path, parts: Mapping[str, Record], settings: dict[str, Any]) -> None:
    """Add the settings of the model's parts (clusters, layer normalisation), and check that they scale as the authors'.

    Raises:
        CheckpointError: a part is missing, or is not the authors'. The message lists all problems.
    """
    embedding = parts.get("word_emb")
    layers = [part for name, part in parts.items() if name.startswith("layers.") and name.count(".") == 1]
    attentions = [part for name, part in parts.items() if name.endswith(".dec_attn")]
    norms = [part for name, part in parts.items() if name.endswith(".layer_norm")]
    if embedding is None or not layers or len(attentions) != len(layers):
        raise CheckpointError(f"{path}: a {MODEL} without word_emb or layers.", hint="Give the authors' model.pt.")
    cutoffs = embedding.get("cutoffs")
    epsilons, pre_lnorms = _values(norms, "eps", 1e-5), _values(attentions, "pre_lnorm", False)
    problems = [f"{name} is missing" for name in ("tgt_len", "mem_len") if settings[name] is None]
    if not isinstance(cutoffs, list | tuple):
        problems.append("word_emb.cutoffs is missing")
    if len(epsilons) != 1:
        problems.append(f"layer_norm.eps is {_briefly(epsilons)}, expected one for all")
    if len(pre_lnorms) != 1:
        problems.append("pre_lnorm is true in some layers, false in others")
    problems += _scale_problems(embedding, attentions, settings)
    if problems:
        raise CheckpointError(f"{path}: {problems_listed(problems)}. A model of changed code is another model.")
    settings["cutoffs"] = tuple(cutoffs or ())[:-1]
    settings["div_val"] = embedding.get("div_val", 1)
    settings["layer_norm_epsilon"], settings["pre_lnorm"] = epsilons[0], pre_lnorms[0]
    for name, part in (("dropout", parts.get("drop")), ("dropatt", parts.get("layers.0.dec_attn.dropatt"))):
        probability = part.get("p") if part is not None else None
        settings[name] = probability if isinstance(probability, float) and 0 <= probability < 1 else 0.0


def _values(parts: list[Record], attribute: str, default: Any) -> list[Any]:
    """Return the different values of an attribute; other values than numbers become text."""
    values = [part.get(attribute, default) for part in parts] or [default]
    return list(dict.fromkeys(value if isinstance(value, int | float) else shown(value) for value in values))


def _scale_problems(embedding: Record, attentions: list[Record], settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield a problem for each changed scale: changed copies of the code have the same names and shapes."""
    expected = {
        "word_emb.emb_scale": (embedding.get("emb_scale"), settings["d_model"], 0.5),
        **{
            f"layers.{index}.dec_attn.scale": (part.get("scale"), settings["d_head"], -0.5)
            for index, part in enumerate(attentions)
        },
    }
    for name, (scale, base, power) in expected.items():
        if scale is None or not isinstance(base, int) or base < 1:
            continue
        if not isinstance(scale, int | float) or not math.isclose(scale, base**power, rel_tol=1e-6):
            yield f"{name} is {_briefly([scale])}, expected {base**power:g}"


def _briefly(values: list[Any]) -> str:
    return ", ".join(map(shown, values[:4]))
