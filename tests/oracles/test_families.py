"""The families against transformers, the equations of mamba_ssm and, for RWKV-7, its authors' package: whole documents.

transformers 4 and 5 run these tests: `.ci/run` puts version 5 in front of the path. What differs between them is in
docs/checkpoints.md.
"""

from __future__ import annotations

import importlib
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import xlruntime
from tests.checkpoints.config_file import change_config
from tests.checkpoints.refusals import refusal
from tests.helpers.tiers import thinned
from tests.oracles import mamba_ssm
from tests.oracles.comparison import LOG_PROB_TOLERANCE, MEMORY_TOLERANCE
from xlexport.checkpoints.files import read_weights
from xlexport.commands.inspect import checkpoint_rows
from xlexport.conversion import convert
from xlexport.conversion_options import ConversionOptions
from xlexport.errors import CheckpointError
from xlexport.families.recurrent.huggingface import FAMILIES
from xlexport.families.recurrent.mamba import Mamba1Sizes
from xlexport.families.recurrent.mamba2 import Mamba2Sizes
from xlexport.families.recurrent.rwkv7 import RWKV7, RWKV7Sizes
from xlexport.families.scan import chunk_sizes
from xlexport.formats import load

State = dict[str, Tensor]
V, TOKENS, BY_STEP = 61, 210, 0
CUTS = (BY_STEP, 1, 7, 64, 200)  # tokens of a segment
SIZES: dict[str, Any] = {"vocab_size": V, "hidden_size": 20, "num_hidden_layers": 3}
MAMBA = SIZES | {"state_size": 5}
MAMBA2 = MAMBA | {"num_heads": 8, "head_dim": 5, "n_groups": 2, "chunk_size": 32}
OTHERS = {"use_bias": True, "use_conv_bias": False, "layer_norm_epsilon": 1e-2}
CASES: dict[str, dict[str, Any]] = {  # by the family, and what differs in the case
    "mamba": MAMBA,
    "mamba, options": MAMBA
    | OTHERS
    | {"tie_word_embeddings": False, "conv_kernel": 2, "expand": 1, "time_step_rank": 3},
    "falcon_mamba": MAMBA | {"mixer_rms_eps": 1e-2, "tie_word_embeddings": False},
    "mamba2": MAMBA2,
    "mamba2, options": MAMBA2
    | OTHERS
    | {"tie_word_embeddings": True, "conv_kernel": 3, "n_groups": 1, "time_step_limit": (0.01, 0.5)},
    "mamba2, 8 groups": MAMBA2 | {"n_groups": 8},
    # transformers halves the hidden states twice.
    "rwkv": SIZES | {"num_hidden_layers": 5, "rescale_every": 2, "layer_norm_epsilon": 1e-4},
    "rwkv, options": SIZES
    | {"rescale_every": 0, "attention_hidden_size": 32, "intermediate_size": 72, "tie_word_embeddings": True},
}
RWKV7_SIZES = RWKV7Sizes(V, n_layer=3, d_model=48, n_head=3, d_inner=80, rank_w=6, rank_a=5, rank_v=4, rank_g=7)
RANGES = {  # of parameters: tokens keep from almost all to nothing of a state
    r"dt_bias|dt_proj\.bias": (-7, 3),  # steps of 0.001 to 3
    "A_log": (-2, 3),  # rates of 0.1 to 20
    "time_decay": (-8, 3),
    "w0": (-8, 4),
    r"time_mix|\.x_[rwkvag]$": (0, 1),
}


def draw(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return random weights as wide as those of trained models."""
    if limits := next((limits for pattern, limits in RANGES.items() if re.search(pattern, name)), None):
        return torch.empty(shape).uniform_(*limits)
    if re.search(r"norm|\bln", name):
        return torch.randn(shape) * 0.2 + name.endswith("weight")
    matrix = len(shape) == 2 and "emb" not in name
    return torch.randn(shape) * (shape[0 if re.search(r"\.[wavg][12]$", name) else 1] ** -0.5 if matrix else 0.5)


def write(folder: Path, name: str, **changes: Any) -> Any:
    """Save a model as transformers does, change its config.json, and return the model."""
    kind, _, options = name.partition(", ")
    config = transformers.CONFIG_MAPPING[kind](**CASES[name])
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    torch.manual_seed(1)
    for key, parameter in model.named_parameters():
        parameter.data = draw(key, tuple(parameter.shape))
    if name == "rwkv":
        model.rwkv.blocks[4].attention.key.weight.data *= 200  # keys far below -88, where exp(key) is zero
    # transformers cannot write all tied weights in safetensors.
    model.save_pretrained(folder, safe_serialization=not options)
    change_config(folder, **changes)
    return model


def authors(folder: Path, name: str, ids: Tensor) -> Tensor:
    """Return the logits of documents by the equations of mamba_ssm, for the tensors of a folder."""
    case, tensors = CASES[name], read_weights(folder)[1]
    options = {}
    if name.startswith("mamba2"):
        limits = case.get("time_step_limit", (0.0, math.inf))
        options = {"groups": case["n_groups"], "head_dim": case["head_dim"], "limits": limits}
    epsilon = case.get("layer_norm_epsilon", 1e-5)
    return torch.stack([mamba_ssm.log_probs(tensors, document, epsilon, **options) for document in ids])


def outputs(model: Any, ids: Tensor) -> tuple[Tensor, State]:
    """Return the logits of transformers' whole forward, and its last state with our axes and names."""
    kind = model.config.model_type
    # transformers itself cannot return states of RWKV whose widths differ.
    has_state = kind != "rwkv" or model.config.attention_hidden_size == model.config.hidden_size
    whole = model(ids, use_cache=has_state)
    if kind == "rwkv":
        names = ("shift_ffn", "shift_att", "numerator", "denominator", "exponent") if has_state else ()
        return whole.logits, {name: value.mT for name, value in zip(names, whole.state or (), strict=True)}
    cache = whole.cache_params
    if hasattr(cache, "layers"):  # transformers 5
        layers = [(layer.conv_states[0], layer.recurrent_states[0]) for layer in cache.layers]
        states = tuple(zip(*layers, strict=True))
    else:
        states = cache.conv_states, cache.ssm_states
    convs, ssms = (torch.stack(list(of_layers), dim=1) for of_layers in states)
    return whole.logits, {"conv": convs[..., 1 - model.config.conv_kernel :].mT, "ssm": ssms.mT}


@pytest.fixture(scope="module")
def ids() -> Tensor:
    """Return two documents, with a token that is repeated 60 times: then all keys of a chunk are equal."""
    tokens = torch.randint(V, (2, TOKENS), generator=torch.Generator().manual_seed(3))
    tokens[:, 100:160] = 7
    return tokens


def compare(model: Any, logits: Tensor, last: State, ids: Tensor) -> None:
    """Read documents in segments of several lengths, and by steps."""
    wanted = logits.log_softmax(dim=2)
    assert wanted.std() > 0.3  # the weights matter
    for S in CUTS:
        state, made = model.first_memory(len(ids)), []
        for tokens in ids.split(S or 1, dim=1):
            logits, state = model.module.step(tokens[:, 0], state) if S == BY_STEP else model(tokens, state)
            made.append(logits.view(*tokens.shape, V))
        assert (torch.cat(made, dim=1).log_softmax(dim=2) - wanted).abs().max() < LOG_PROB_TOLERANCE, S
        for name, value in last.items():
            difference = (state[name] - value).abs() / value.abs().clamp(min=1)
            assert difference.max() < MEMORY_TOLERANCE / 10, (name, S)


@pytest.mark.parametrize("name", thinned(CASES, ["mamba, options", "mamba2", "mamba2, 8 groups"]))
@torch.inference_mode()
def test_any_segments_against_the_whole_forward(name: str, ids: Tensor, tmp_path: Path) -> None:
    library = write(tmp_path, name)
    if CASES[name].get("n_groups", 1) > 1 and transformers.__version__ < "5":
        pytest.skip("transformers 4 normalises all groups of a Mamba-2 together")
    compare(load(tmp_path).build_model(), *outputs(library, ids), ids)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("mamba")])
@torch.inference_mode()
@pytest.mark.full
def test_any_segments_against_the_equations_of_mamba_ssm(name: str, ids: Tensor, tmp_path: Path) -> None:
    write(tmp_path, name)
    compare(load(tmp_path).build_model(), authors(tmp_path, name, ids), {}, ids)


@pytest.fixture(scope="module")
def package() -> Iterator[Any]:
    """Import the authors' package, which reads its settings from the environment and prints while it is imported."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it compiles its functions with TorchScript
        for name, value in {"RWKV_V7_ON": "1", "RWKV_JIT_ON": "0", "RWKV_CUDA_ON": "0"}.items():
            patch.setenv(name, value)
        yield importlib.import_module("rwkv.model")


def file_tensors() -> State:
    """Return tensors as in the files of RWKV-7's authors; the first layer has some that it does not use."""
    torch.manual_seed(2)
    tensors = {name: draw(name, tuple(value.shape)) for name, value in RWKV7(RWKV7_SIZES).state_dict().items()}
    unused = {f"blocks.0.att.{name}": torch.randn(shape) for name, shape in (("v0", (1, 1, 48)), ("v1", (48, 4)))}
    return {name: value.bfloat16() for name, value in (tensors | unused).items()}


@torch.inference_mode()
@pytest.mark.full
def test_rwkv7(package: Any, ids: Tensor, tmp_path: Path) -> None:
    torch.save(file_tensors(), tmp_path / "model.pth")
    source = load(tmp_path / "model.pth")
    assert (source.format, source.tokenizer) == ("rwkv", "none")
    assert {**source.config, **vars(RWKV7_SIZES)} == source.config
    assert [note[:20] for note in source.notes] == ["Weights are bfloat16", "No tokenizer.json or"]
    library = package.RWKV(str(tmp_path / "model"), "cpu fp32")
    documents = [library.forward(document.tolist(), None, full_output=True) for document in ids]
    names = ("shift_att", "wkv", "shift_ffn")
    last = {
        name: torch.stack([torch.stack(states[place::3]) for _, states in documents])
        for place, name in enumerate(names)
    }
    compare(source.build_model(), torch.stack([logits for logits, _ in documents]), last, ids)


@torch.inference_mode()
def test_small_decays_after_large_ones_in_a_chunk() -> None:
    """Compare float32 with float64: a difference of cumulative sums of 1e5 would be wrong by about 0.01."""
    from xlexport.families.recurrent.mamba2 import _chunked

    draw = torch.Generator().manual_seed(4)
    x, B, C = (torch.randn(1, 200, 1, *shape, generator=draw) for shape in ((2, 3), (4,), (4,)))
    decay = torch.full((1, 200, 1, 2), -1e-3)
    decay[:, ::50] = -1e5  # forgets everything, and exp of its negative would be infinite
    h, sizes = torch.randn(1, 1, 2, 4, 3, generator=draw), chunk_sizes(200, 64)
    made = _chunked(x, B, C, decay, h, sizes)
    wanted = _chunked(x.double(), B.double(), C.double(), decay.double(), h.double(), sizes)
    for one, other in zip(made, wanted, strict=True):
        assert (one - other).abs().max() <= 1e-4 * other.abs().max()


@pytest.mark.release
@pytest.mark.parametrize("name", ["falcon_mamba", "mamba2"])
def test_bundle_against_whole_documents(name: str, ids: Tensor, tmp_path: Path) -> None:
    model = write(tmp_path / "folder", name)
    options = ConversionOptions.of(segments=1000, segment_len=16)
    report = convert(load(tmp_path / "folder"), tmp_path / "bundle", options).report
    assert report.passed and report.segments == 1000
    bundle = xlruntime.load(tmp_path / "bundle", threads=1)
    with torch.inference_mode():
        groups = name == "mamba2"  # which transformers 4 normalises together
        logits = authors(tmp_path / "folder", name, ids[:1, :-1]) if groups else model(ids[:1, :-1]).logits
    log_probs = logits.log_softmax(dim=2)
    wanted = log_probs.gather(2, ids[:1, 1:, None])[0, :, 0].numpy()
    for segment_len in CUTS[1:]:
        stream = bundle.stream(segment_len=segment_len)
        np.testing.assert_allclose(stream.feed(ids[0].tolist()).log_probs, wanted, atol=LOG_PROB_TOLERANCE)


# Folders and files.


@pytest.mark.parametrize("kind", FAMILIES)
def test_defaults_are_those_of_transformers(kind: str) -> None:
    module, name = FAMILIES[kind]
    sizes = getattr(importlib.import_module(f"xlexport.families.recurrent.{module}"), f"{name}Sizes")
    config = transformers.CONFIG_MAPPING[kind]()
    assert sizes.from_huggingface({"model_type": kind}) == sizes.from_huggingface(config.to_dict())


def test_a_folder_says_what_it_is(tmp_path: Path) -> None:
    model = write(tmp_path, "mamba2")
    source = load(tmp_path)
    rows = [f"{name}: {value}" for name, value in checkpoint_rows(source)]
    assert {"checkpoint: huggingface, recurrent (Mamba-2)", "vocabulary: none, 61 tokens"} < set(rows)
    assert any("model mamba2" in row for row in rows) and any("takes token ids only" in row for row in rows)
    assert source.parameters == model.num_parameters()
    json.dumps(source.config, allow_nan=False)


def test_tied_weights_by_either_name_and_in_half_precision(tmp_path: Path) -> None:
    model, file = write(tmp_path, "mamba"), tmp_path / "model.safetensors"
    tensors = load_file(file)
    assert load(tmp_path).parameters == model.num_parameters()
    table = tensors.pop("backbone.embeddings.weight")
    half = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    same = {"backbone.embedding.weight": table, "lm_head.weight": table.clone()}
    save_file({**half, **same}, file)
    source = load(tmp_path)
    module = source.build_model().module
    assert module.lm_head.weight is module.backbone.embeddings.weight and torch.equal(module.lm_head.weight, table)
    assert any("bfloat16" in note for note in source.notes)
    save_file({**half, **same, "lm_head.weight": table + 1}, file)
    assert "differs from" in refusal(tmp_path)


def test_tokenizer_next_to_the_file_and_foreign_settings(tmp_path: Path) -> None:
    file, tokenizer = tmp_path / "model.pth", tmp_path / "tokenizer.json"
    torch.save({"state_dict": file_tensors()}, file)
    tokenizer.write_text("{}", "utf-8")
    source = load(file)
    assert source.tokenizer == tokenizer and tokenizer in source.files
    assert [note[:20] for note in source.notes] == ["The file holds the w", "Weights are bfloat16"]
    assert "shows all of its settings itself. Leave out --config" in refusal(file, config={"n_layer": 2})


WRONG_FOLDERS: list[tuple[str, dict[str, Any], str]] = [  # changes of a config.json, and parts of the message
    (
        "mamba",
        {"hidden_act": "relu", "expand": 1e300, "layer_norm_epsilon": "1", "tie_word_embeddings": 1},
        "hidden_act is 'relu', expected 'silu'; expand is 1e+300, expected … layer_norm_epsilon is '1', expected … "
        "tie_word_embeddings is 1, expected true or false. Copy the folder again.",
    ),
    ("mamba", {"tie_word_embeddings": False}, "the tensors do not fit the configuration: lm_head.weight is missing."),
    ("mamba", {"quantization_config": {"quant_method": "bitsandbytes"}}, "says quantization_config 'bitsandbytes'"),
    ("mamba2", {"n_groups": 3}, "num_heads is 8, expected a multiple of n_groups 3"),
    ("mamba2", {"time_step_limit": [1, 0]}, "time_step_limit is [1, 0], expected two numbers, the smaller one first"),
    ("mamba2", {"time_step_limit": [0, 10**400]}, "expected two numbers"),
    ("rwkv", {"rescale_every": 0.5}, "rescale_every is 0.5, expected a whole number from -1 to"),
]


def test_wrong_sizes() -> None:
    config = {"num_hidden_layers": True, "hidden_size": 1 << 40, "vocab_size": 0, "conv_kernel": 1, "state_size": 6}
    said = (
        "config.json: num_hidden_layers is True, expected a whole number from 1 to 1,000; hidden_size is "
        "1099511627776, expected a whole number from 1 to 1,048,576; vocab_size is 0, expected a whole number from 1 "
        "to 16,777,216; "
        "conv_kernel is 1, expected a whole number from 2 to 64. Copy the folder again."
    )
    with pytest.raises(CheckpointError, match=f"^{re.escape(said)}$"):
        Mamba1Sizes.from_huggingface(config)
    with pytest.raises(CheckpointError, match="a state of 35,184,372,088,832 numbers, expected at most"):
        Mamba1Sizes.from_huggingface({"intermediate_size": 1 << 20, "state_size": 1 << 20})
    with pytest.raises(CheckpointError, match="num_heads × head_dim is 25, expected expand × hidden_size 40"):
        Mamba2Sizes.from_huggingface({"num_heads": 5, "head_dim": 5, "hidden_size": 20, "n_groups": 1})


@pytest.mark.parametrize("name", CASES)
def test_sizes_come_from_the_tensors(name: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    right = load(tmp_path).config
    keys = {"vocab_size": 60, "hidden_size": 21, "num_hidden_layers": 9, "intermediate_size": 33}
    change_config(tmp_path, **keys, time_step_rank="auto")
    source = load(tmp_path)
    assert source.config == right
    said = {f"config.json says {key} {value}, the tensors" for key, value in keys.items()}
    assert {note.rpartition(" ")[0] for note in source.notes[: len(keys)]} == said
    change_config(tmp_path, **dict.fromkeys(keys))
    assert load(tmp_path).config == right and not any("the tensors" in note for note in load(tmp_path).notes)


@pytest.mark.parametrize("name", ["mamba", "mamba2", "mamba2, 8 groups"])
@torch.inference_mode()
@pytest.mark.full
def test_folders_of_mamba_ssm(name: str, ids: Tensor, tmp_path: Path) -> None:
    write(tmp_path, name)
    case = CASES[name]
    mixer = {"layer": "Mamba2", "ngroups": case["n_groups"], "headdim": 5} if "mamba2" in name else {}
    own = {"d_model": 20, "n_layer": 3, "vocab_size": 64, "ssm_cfg": mixer, "rms_norm": True}
    (tmp_path / "config.json").write_text(json.dumps({**own, "tie_embeddings": name == "mamba"}), "utf-8")
    compare(load(tmp_path).build_model(), authors(tmp_path, name, ids), {}, ids)
    limits = {"ssm_cfg": {**mixer, "dt_limit": [0.01, 0.5]}}  # only Mamba-2 has them
    (tmp_path / "config.json").write_text(json.dumps({**own, "tie_embeddings": name == "mamba", **limits}), "utf-8")
    assert load(tmp_path).config.get("dt_most") == (0.5 if mixer else None)
    for change, said in (({"rms_norm": False}, "rms_norm is False, expected True"), ({"ssm_cfg": 3}, "has layers 3")):
        (tmp_path / "config.json").write_text(json.dumps({**own, **change}), "utf-8")
        assert said in refusal(tmp_path)


@torch.inference_mode()
@pytest.mark.full
def test_rwkv4_of_its_authors(ids: Tensor, tmp_path: Path) -> None:
    library = write(tmp_path / "folder", "rwkv, options")
    names = {"rwkv.embeddings.": "emb.", "rwkv.": "", "pre_ln": "ln0", "attention.": "att.", "feed_forward.": "ffn."}
    names |= {"time_mix_key": "time_mix_k", "time_mix_value": "time_mix_v", "time_mix_receptance": "time_mix_r"}
    tensors = {}
    for name, tensor in library.state_dict().items():
        for theirs, other in names.items():
            name = name.replace(theirs, other)  # noqa: PLW2901
        tensors[name] = tensor
    torch.save({"model": tensors}, tmp_path / "model.pth")
    source = load(tmp_path / "model.pth")
    assert source.notes[0] == "The file holds the weights under model." and source.config["model"] == "rwkv"
    compare(source.build_model(), *outputs(library, ids), ids)


def test_rwkv7_of_fla(tmp_path: Path) -> None:
    """Compare folders with the authors' files, as fla computes only on GPUs."""
    torch.manual_seed(2)
    sizes = RWKV7Sizes(V, n_layer=2, d_model=64, n_head=1, d_inner=80, rank_w=6, rank_a=5, rank_v=4, rank_g=7)
    tensors = {name: torch.randn(tensor.shape) for name, tensor in RWKV7(sizes).state_dict().items()}
    torch.save(tensors, tmp_path / "model.pth")
    folder = dict(of_fla(name, tensor) for name, tensor in tensors.items())
    save_file({name: tensor.contiguous() for name, tensor in folder.items()}, tmp_path / "model.safetensors")
    config = {"model_type": "rwkv7", "norm_eps": 1e-5, "hidden_act": "sqrelu", "num_hidden_layers": 7}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    source, expected = load(tmp_path), load(tmp_path / "model.pth")
    assert source.config == {**expected.config, "head_epsilon": 64 * 1e-5}
    own, theirs = (each.build_model().state_dict() for each in (source, expected))
    assert own.keys() == theirs.keys() and all(torch.equal(own[name], theirs[name]) for name in own)
    change_config(tmp_path, norm_eps=1e-3, hidden_act="relu", attn={"layers": [1]})
    assert "hidden_act is 'relu', expected 'sqrelu'; attn is " in refusal(tmp_path)


def of_fla(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """Return a tensor of the authors' file as fla names and lays it out."""
    for pattern, other in (
        (r"^emb\.", "model.embeddings."), (r"^ln_out\.", "model.norm."), (r"^head\.", "lm_head."),
        (r"^blocks\.0\.ln0\.", "model.layers.0.pre_norm."), (r"^blocks\.", "model.layers."),
        (r"\.ln1\.", ".attn_norm."), (r"\.ln2\.", ".ffn_norm."), (r"\.att\.", ".attn."), (r"\.ln_x\.", ".g_norm."),
        (r"\.receptance\.", ".r_proj."), (r"attn\.key\.", "attn.k_proj."), (r"attn\.value\.", "attn.v_proj."),
        (r"\.output\.", ".o_proj."), (r"\.([wavg])1$", r".\1_lora.lora.0.weight"),
        (r"\.([wavg])2$", r".\1_lora.lora.2.weight"), (r"\.([wav])0$", r".\1_lora.lora.2.bias"),
    ):  # fmt: skip
        name = re.sub(pattern, other, name)
    if re.search(r"lora\.[02]\.weight$", name):
        return name, tensor.T
    return name, tensor.flatten() if name.endswith(("bias", "k_k", "k_a")) else tensor


@torch.inference_mode()
@pytest.mark.full
def test_tuned_states_of_rwkv7(package: Any, ids: Tensor, tmp_path: Path) -> None:
    torch.save(file_tensors(), tmp_path / "model.pth")
    states = {f"blocks.{layer}.att.time_state": torch.randn(3, 16, 16) for layer in range(3)}
    torch.save(file_tensors() | states, tmp_path / "tuned.pth")
    library = package.RWKV(str(tmp_path / "model"), "cpu fp32")
    first = [part for own in states.values() for part in (torch.zeros(48), own, torch.zeros(48))]
    logits = [
        library.forward(document.tolist(), [part.clone() for part in first], full_output=True)[0] for document in ids
    ]
    compare(load(tmp_path / "tuned.pth").build_model(), torch.stack(logits), {}, ids)


@pytest.mark.parametrize(("name", "changes", "said"), WRONG_FOLDERS, ids=range(len(WRONG_FOLDERS)))
def test_wrong_folders(name: str, changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    write(tmp_path, name, **changes)
    assert re.search(".*".join(map(re.escape, said.split(" … "))), refusal(tmp_path))


def test_weights_that_are_not_finite_and_foreign_settings(tmp_path: Path) -> None:
    write(tmp_path, "mamba")
    assert "Leave out 'mem_len' of --config" in refusal(tmp_path, config={"mem_len": 5})
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["backbone.norm_f.weight"][3] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors")
    assert "infinite or undefined weights in backbone.norm_f.weight" in refusal(tmp_path)


WRONG_FILES: list[tuple[Callable[[State], dict[str, Any]], str]] = [  # changes of a file, and a part of the message
    (
        lambda own: older("time_decay"),
        r"an RWKV-4 by the names of its tensors, but the tensors that show its sizes are missing",
    ),
    (lambda own: older("time_decay", "time_maa_x"), r"RWKV-6 by the names of its tensors, expected RWKV-7 or RWKV-4\."),
    (lambda own: without(own, "emb.weight"), r"missing or of an impossible shape: emb\.weight\. Copy"),
    (lambda own: without(own, "blocks.0.ln1.weight"), r"impossible shape: blocks\.0\.ln1\.weight"),
    (lambda own: own | {"blocks.0.att.r_k": torch.zeros(5, 16)}, r"impossible shape: blocks\.0\.att\.r_k"),
    (lambda own: without(own, "blocks.1.att.k_k"), r"blocks\.1\.att\.k_k is missing"),
    (lambda own: {**own, "x": Hostile()}, r"pathlib\.Path\.touch|getattr"),
]


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("touched"),)


def older(*names: str) -> State:
    return {"emb.weight": torch.zeros(V, 4), **{f"blocks.0.att.{name}": torch.zeros(4) for name in names}}


def without(tensors: State, name: str) -> State:
    return {other: tensor for other, tensor in tensors.items() if other != name}


@pytest.mark.parametrize(("change", "said"), WRONG_FILES, ids=[said[:20] for _, said in WRONG_FILES])
def test_wrong_files(
    change: Callable[[State], dict[str, Any]], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(change(file_tensors()), tmp_path / "model.pth")
    assert re.search(said, refusal(tmp_path / "model.pth"))
    assert [file.name for file in tmp_path.iterdir()] == ["model.pth"]
