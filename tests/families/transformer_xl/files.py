"""Write checkpoints of Transformer-XLs as the code bases do, from an oracle's weights.

Classes of the authors' names exist only while a file is written: in modules of the authors' names, with the attributes
that the reader relies on, and without a line of the authors' code. The weights are Hugging Face's, under the names of
each code base, with the rows of the clusters in its order.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import itertools
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tests.checkpoints.config_file import change_config
from tests.checkpoints.refusals import refusal
from tests.oracles.comparison import LOG_PROB_TOLERANCE, MEMORY_TOLERANCE, eager_difference
from tests.oracles.huggingface import Oracle
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.errors import CheckpointError
from xlexport.formats import load
from xltraining.checkpoint import Checkpoint, build_model
from xltraining.transformer_xl import TransformerXLConfig

Settings = Mapping[str, Any]
Edit = Callable[[Any], Any]  # changes a module, or tensors by name, in place or by returning others
NONE: Settings = {}
ABSENT = object()  # the value of a setting that is left out

SMALL = TransformerXLConfig(
    n_token=40, n_layer=2, n_head=2, d_model=12, d_head=5, d_inner=16, tgt_len=6, mem_len=9, dropout=0.0, untie_r=False
)
CUT: dict[str, Any] = {"cutoffs": (8, 15, 30)}
VARIANTS: dict[str, dict[str, Any]] = {  # name: fields of the configuration
    "plain": {},
    "untied": {"tie_weight": False, "clamp_len": 4},
    "narrow": {"d_embed": 8, "tie_projs": (False,), "pre_lnorm": True},
    "cutoffs": {**CUT, "same_length": True},
    "cutoffs-narrow": {**CUT, "d_embed": 8, "tie_projs": (False, True, True, True)},
    "div_val": {**CUT, "div_val": 2, "tie_projs": (False, True, True, True), "same_length": True, "pre_lnorm": True},
    "div_val-untied": {**CUT, "div_val": 2, "tie_weight": False, "tie_projs": (False,) * 4, "clamp_len": 7},
    "div_val-narrow": {"cutoffs": (11,), "div_val": 3, "d_embed": 9, "tie_projs": (True, True)},
    "div_val-one-cluster": {"div_val": 4, "tie_projs": (False,)},
}
SOURCES = {  # module: its classes
    "mem_transformer": (
        *("MemTransformerLM", "AdaptiveEmbedding", "PositionalEmbedding", "PositionwiseFF", "MultiHeadAttn"),
        *("RelPartialLearnableMultiHeadAttn", "RelPartialLearnableDecoderLayer", "DecoderLayer"),
        *("RelLearnableMultiHeadAttn", "RelLearnableDecoderLayer"),
    ),
    "proj_adaptive_softmax": ("ProjectedAdaptiveLogSoftmax",),
}


def make_oracle(seed: int = 0, **changes: Any) -> Oracle:
    """Make an oracle of a small configuration, with the changes that a test gives."""
    return Oracle(replace(SMALL, **changes), seed)


def assert_computes(source: SourceCheckpoint, oracle: Oracle, batch_size: int = 2) -> None:
    """Assert that the model of `source` computes the same as the oracle over six segments, including memories."""
    ids = torch.randint(0, oracle.config.n_token, (batch_size, 37), generator=torch.Generator().manual_seed(1))
    edges = [0, 6, 12, 13, 20, 28, 36]
    segments = [(ids[:, a:b], ids[:, a + 1 : b + 1]) for a, b in itertools.pairwise(edges)]
    difference = eager_difference(oracle, source.build_model(), segments)
    assert difference.log_prob <= LOG_PROB_TOLERANCE
    assert difference.memory <= MEMORY_TOLERANCE


def authors_tensors(oracle: Oracle) -> dict[str, Tensor]:
    """Return the oracle's weights with the names and order of the authors' `state_dict`; tied ones are one tensor."""
    tensors = {}
    for name, parameter in oracle.model.state_dict().items():
        own = name.removeprefix("transformer.")
        if own.endswith(("dec_attn.r_w_bias", "dec_attn.r_r_bias")):  # their biases are the model's
            continue
        tensors[own] = parameter.flip(0) if own.startswith("crit.cluster_") else parameter
    return tensors


@contextlib.contextmanager
def authors_code(folder: Path, package: str = "") -> Iterator[Mapping[str, type[nn.Module]]]:
    """Yield classes by name, in modules that can be imported inside the block; their source is in `folder`.

    `package` is the prefix of the modules' names in copies of the code.
    """
    classes: dict[str, type[nn.Module]] = {}
    modules = {f"{package}{name}": names for name, names in SOURCES.items()}
    for name, names in modules.items():
        file = folder / f"{name}.py"
        file.write_text("from torch import nn\n" + "".join(f"\n\nclass {own}(nn.Module):\n    pass\n" for own in names))
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
        classes |= {own: getattr(sys.modules[name], own) for own in names}
    try:
        yield classes
    finally:
        for name in modules:
            del sys.modules[name]


def authors_module(oracle: Oracle, classes: Mapping[str, type[nn.Module]], **attributes: Any) -> nn.Module:
    """Make a model with the authors' modules, attributes and ties, and the oracle's weights."""
    config = oracle.config
    d_embed, ends = config.d_embed or config.d_model, [*config.cutoffs, config.n_token]
    content, same = config.to_dict(), "n_token d_model n_head d_head n_layer tgt_len mem_len same_length clamp_len"
    own = {name: content[name] for name in same.split()}
    own |= {"d_embed": d_embed, "ext_len": 0, "max_klen": config.tgt_len + config.mem_len}
    own |= {"attn_type": 0, "sample_softmax": -1, **attributes}
    model = _make(classes["MemTransformerLM"], own)
    cut = {"n_token": config.n_token, "d_embed": d_embed, "d_proj": config.d_model, "cutoffs": ends}
    cut |= {"cutoff_ends": [0, *ends], "div_val": config.div_val}
    model.word_emb = _make(classes["AdaptiveEmbedding"], {**cut, "emb_scale": config.d_model**0.5})
    model.crit = _make(classes["ProjectedAdaptiveLogSoftmax"], {**cut, "keep_order": False})
    model.drop = nn.Dropout(0.1)
    model.layers = nn.ModuleList(_layer(config, classes) for _ in range(config.n_layer))
    model.pos_emb = _make(classes["PositionalEmbedding"], {"demb": config.d_model})
    _add_clusters(model, config)

    tensors = authors_tensors(oracle)
    model.pos_emb.register_buffer("inv_freq", tensors["pos_emb.inv_freq"].clone())
    for name in ("r_w_bias", "r_r_bias"):
        model.register_parameter(name, nn.Parameter(tensors[name].clone()))
    if config.cutoffs:
        for name in ("cluster_weight", "cluster_bias"):
            model.crit.register_parameter(name, nn.Parameter(tensors[f"crit.{name}"].clone()))
    model.load_state_dict(tensors)
    return model


def _make(kind: type[nn.Module], attributes: Mapping[str, Any]) -> Any:
    module = kind()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def _layer(config: TransformerXLConfig, classes: Mapping[str, type[nn.Module]]) -> nn.Module:
    D, width, epsilon = config.d_model, config.n_head * config.d_head, config.layer_norm_epsilon
    scale = {"scale": config.d_head**-0.5, "pre_lnorm": config.pre_lnorm, "d_head": config.d_head}
    attention = _make(classes["RelPartialLearnableMultiHeadAttn"], scale)
    attention.qkv_net = nn.Linear(D, 3 * width, bias=False)
    attention.drop, attention.dropatt = nn.Dropout(0.1), nn.Dropout(0.0)
    attention.o_net, attention.r_net = nn.Linear(width, D, bias=False), nn.Linear(D, width, bias=False)
    attention.layer_norm = nn.LayerNorm(D, eps=epsilon)
    feed_forward = _make(classes["PositionwiseFF"], {"pre_lnorm": config.pre_lnorm, "d_inner": config.d_inner})
    feed_forward.CoreNet = nn.Sequential(
        nn.Linear(D, config.d_inner), nn.ReLU(), nn.Dropout(0.1), nn.Linear(config.d_inner, D), nn.Dropout(0.1)
    )
    feed_forward.layer_norm = nn.LayerNorm(D, eps=epsilon)
    return _make(classes["RelPartialLearnableDecoderLayer"], {"dec_attn": attention, "pos_ff": feed_forward})


def _add_clusters(model: Any, config: TransformerXLConfig) -> None:
    """Add tables, output layers and projections, tied as in the configuration."""
    D, tables = config.d_model, 1 if config.div_val == 1 else len(config.cutoffs) + 1
    sizes = [end - first for first, end in config.cluster_bounds] if config.div_val > 1 else [config.n_token]
    widths, projected = config.cluster_widths, config.div_val > 1 or config.cluster_widths[0] != D
    embedding, crit = model.word_emb, model.crit
    embedding.emb_layers = nn.ModuleList(nn.Embedding(sizes[i], widths[i]) for i in range(tables))
    embedding.emb_projs = nn.ParameterList(nn.Parameter(torch.empty(D, widths[i])) for i in range(tables * projected))
    crit.out_layers = nn.ModuleList(nn.Linear(widths[i], sizes[i]) for i in range(tables))
    crit.out_projs = nn.ParameterList()
    if config.tie_weight:
        for output, table in zip(crit.out_layers, embedding.emb_layers, strict=True):
            output.weight = table.weight
    for index, width in enumerate(widths):
        if not projected:
            crit.out_projs.append(None)
        elif config.ties_projection(index):
            crit.out_projs.append(embedding.emb_projs[0 if config.div_val == 1 else index])
        else:
            crit.out_projs.append(nn.Parameter(torch.empty(D, width)))


def keep(content: Any) -> None:
    """Change nothing."""


def edited(content: Any, edit: Edit) -> Any:
    """Return what an edit returned, or the content that it changed in place."""
    changed = edit(content)
    return changed if isinstance(changed, dict | nn.Module) else content


def rounded(oracle: Oracle, dtype: torch.dtype) -> Oracle:
    """Round the oracle's parameters, but not its sinusoids, as files in a lower precision do."""
    with torch.no_grad():
        for parameter in oracle.model.parameters():
            parameter.copy_(parameter.to(dtype))
    return oracle


def write_kimiyoung(
    oracle: Oracle, folder: Path, settings: Settings = NONE, edit: Edit = keep, archive: bool = True, package: str = ""
) -> Path:
    """Write the authors' `model.pt`; `settings` are attributes of the model."""
    with authors_code(folder, package) as classes:
        model = edited(authors_module(oracle, classes, **settings), edit)
        torch.save(model, folder / "model.pt", _use_new_zipfile_serialization=archive)
    return folder / "model.pt"


def nvidia_tensors(oracle: Oracle) -> dict[str, Tensor]:
    """Return the weights under the names of NVIDIA's `state_dict`: tied tensors lack a separate name in `crit`."""
    config = oracle.config
    result = {}
    for name, tensor in authors_tensors(oracle).items():
        if layer := re.fullmatch(r"crit\.out_layers\.(\d+)\.(weight|bias)", name):
            if layer[2] == "weight" and config.tie_weight:
                continue
            result[f"crit.out_layers_{'weights' if layer[2] == 'weight' else 'biases'}.{layer[1]}"] = tensor
        elif projection := re.fullmatch(r"crit\.out_projs\.(\d+)", name):
            if not config.ties_projection(int(projection[1])):
                result[name] = tensor
        else:
            result[name] = tensor
            if name.startswith("word_emb.emb_projs."):
                result[f"crit.shared_out_projs.{name.rpartition('.')[2]}"] = tensor
    return result


def write_nvidia(
    oracle: Oracle,
    folder: Path,
    settings: Settings = NONE,
    edit: Edit = keep,
    archive: bool = True,
    entries: Settings = NONE,
) -> Path:
    """Write NVIDIA's checkpoint; `settings` are of its model_config, `entries` further ones of the file."""
    config, content = oracle.config, oracle.config.to_dict()
    same = "n_token n_layer n_head d_model d_head d_inner tie_weight div_val pre_lnorm tgt_len mem_len cutoffs"
    model_config = {name: content[name] for name in (*same.split(), "same_length", "clamp_len")}
    model_config |= {"dropout": 0.1, "dropatt": 0.0, "dtype": None, "d_embed": config.d_embed or config.d_model}
    model_config |= {"tie_projs": list(config.tie_projs) or [False] * (1 + len(config.cutoffs))}
    model_config |= {"ext_len": 0, "attn_type": 0, "sample_softmax": -1, **settings}
    path = folder / "checkpoint_best.pt"
    file = {
        "args": argparse.Namespace(vocab="word", work_dir="LM-TFM", cuda=True),
        "model_config": {name: value for name, value in model_config.items() if value is not ABSENT},
        "model_state": OrderedDict(edited(nvidia_tensors(oracle), edit)),
        **entries,
    }
    torch.save(file, path, _use_new_zipfile_serialization=archive)
    return path


def write_huggingface(
    oracle: Oracle, folder: Path, settings: Settings = NONE, edit: Edit = keep, safetensors: bool = True
) -> Path:
    """Write a folder with transformers, or in its format from before safetensors; `settings` are of `config.json`."""
    folder = folder / "transfo-xl"
    folder.mkdir(exist_ok=True)
    if safetensors:
        oracle.model.save_pretrained(folder)
        if edit is not keep:
            save_file(edited(load_file(folder / "model.safetensors"), edit), folder / "model.safetensors")
    else:
        oracle.model.config.architectures = ["TransfoXLLMHeadModel"]
        oracle.model.config.save_pretrained(folder)
        torch.save(edited(oracle.model.state_dict(), edit), folder / "pytorch_model.bin")
    change_config(folder, tgt_len=oracle.config.tgt_len)
    change_config(folder, **settings)
    return folder


def write_state_dict(
    oracle: Oracle,
    folder: Path,
    _settings: Settings = NONE,
    edit: Edit = keep,
    *,
    tensors: Callable[[Oracle], Mapping[str, Any]],
    archive: bool = True,
) -> Path:
    """Write a bare state dict under the names that `tensors` returns."""
    torch.save(edited(dict(tensors(oracle)), edit), folder / "weights.pt", _use_new_zipfile_serialization=archive)
    return folder / "weights.pt"


@dataclass(frozen=True)
class Way:
    """A way to write an oracle's weights to files.

    Attributes:
        format: the format that reads them.
        write: the function that writes them.
        rules: what the code base implies, as fields of the oracle's configuration.
        needed: names of the settings that its files lack and the user must give.
    """

    format: str
    write: Callable[..., Path]
    rules: Settings = field(default_factory=dict)
    needed: tuple[str, ...] = ()

    def oracle(self, **changes: Any) -> Oracle:
        return make_oracle(**{**self.rules, **changes})

    def config(self, oracle: Oracle) -> dict[str, Any] | None:
        """Return only the settings that the user must give, because the files do not show them."""
        if not self.needed:
            return None
        config = oracle.config.to_dict()
        names = [*self.needed, *(["cutoffs"] if config["cutoffs"] and config["div_val"] == 1 else [])]
        return {name: config[name] for name in names}

    def load(self, oracle: Oracle, folder: Path, settings: Settings = NONE, edit: Edit = keep) -> SourceCheckpoint:
        """Write the files with these settings and edits, and read them."""
        path = self.write(oracle, folder, settings, edit)
        return load(path, config=self.config(oracle))

    def refusal(
        self,
        folder: Path,
        settings: Settings = NONE,
        edit: Edit = keep,
        oracle: Oracle | None = None,
        config: Settings | None = None,
        error: type[CheckpointError] = CheckpointError,
    ) -> str:
        """Return the message with which the files are refused; settings of a state dict are those of the user."""
        oracle = oracle or self.oracle()
        path, needed = self.write(oracle, folder, settings, edit), self.config(oracle)
        given = config if needed is None else {**needed, **settings, **(config or {})}
        return refusal(path, error, config=given)


def ours(oracle: Oracle) -> Mapping[str, Any]:
    state: dict[str, Any] = build_model(Checkpoint(oracle.config, oracle.state_dict())).state_dict()
    return state


LENGTHS = ("tgt_len", "mem_len", "clamp_len", "same_length", "pre_lnorm")
HUGGING_FACE: Settings = {"first_memory": "zeros", "untie_r": True}
OURS: Settings = {"first_memory": "zeros", "window_extra": 1, "untie_r": True}
_state_dict = functools.partial(functools.partial, write_state_dict)
WAYS: Mapping[str, Way] = {
    "kimiyoung": Way("kimiyoung", write_kimiyoung),
    "kimiyoung, legacy": Way("kimiyoung", functools.partial(write_kimiyoung, archive=False)),
    "nvidia": Way("nvidia", write_nvidia, {"window_extra": 1}),
    "nvidia, legacy": Way("nvidia", functools.partial(write_nvidia, archive=False), {"window_extra": 1}),
    "huggingface": Way("huggingface", write_huggingface, HUGGING_FACE),
    "huggingface, torch": Way("huggingface", functools.partial(write_huggingface, safetensors=False), HUGGING_FACE),
    "huggingface, torch, shared biases": Way(
        "huggingface", functools.partial(write_huggingface, safetensors=False), {"first_memory": "zeros"}
    ),
    "state_dict": Way("state_dict", _state_dict(tensors=authors_tensors), NONE, LENGTHS),
    "state_dict, legacy": Way("state_dict", _state_dict(tensors=authors_tensors, archive=False), NONE, LENGTHS),
    "state_dict of nvidia": Way("state_dict", _state_dict(tensors=nvidia_tensors), {"window_extra": 1}, LENGTHS),
    "state_dict of huggingface": Way(
        "state_dict", _state_dict(tensors=lambda oracle: oracle.model.state_dict()), HUGGING_FACE, LENGTHS
    ),
    "state_dict of huggingface, shared biases": Way(
        "state_dict", _state_dict(tensors=lambda oracle: oracle.model.state_dict()), {"first_memory": "zeros"}, LENGTHS
    ),
    "state_dict of ours": Way(
        "state_dict", _state_dict(tensors=ours), OURS, (*LENGTHS, "first_memory", "window_extra")
    ),
}
