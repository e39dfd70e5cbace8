"""Mamba, Falcon-Mamba and Mamba-2 against transformers' whole forward, with decays over their real range and beyond."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import xlruntime
from tests.checkpoints.refusals import refusal
from tests.checkpoints.transformer_xl_files import change_config
from tests.oracles.comparison import LOG_PROB_TOLERANCE, MEMORY_TOLERANCE
from xlexport.checkpoints import load
from xlexport.commands.inspect import checkpoint_rows
from xlexport.convert import ConversionOptions, convert
from xlexport.families.chunks import chunk_sizes

TOKENS = 310
MAMBA = {"vocab_size": 61, "hidden_size": 20, "num_hidden_layers": 3, "state_size": 5}
MAMBA2 = MAMBA | {"num_heads": 6, "head_dim": 5, "expand": 1.5, "n_groups": 2, "chunk_size": 32}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("Mamba", MAMBA),
    "mamba, all options": (
        "Mamba",
        MAMBA
        | {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False, "conv_kernel": 2, "expand": 1}
        | {"time_step_rank": 3, "layer_norm_epsilon": 1e-2},
    ),
    "falcon_mamba": ("FalconMamba", MAMBA | {"mixer_rms_eps": 1e-2, "tie_word_embeddings": False}),
    "mamba2": ("Mamba2", MAMBA2),
    "mamba2, all options": (
        "Mamba2",
        MAMBA2
        | {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True, "conv_kernel": 3, "n_groups": 1}
        | {"time_step_limit": (0.01, 0.5), "layer_norm_epsilon": 1e-2},
    ),
}


def oracle(name: str) -> Any:
    """Return the model of transformers with random weights: tokens keep from almost all to nothing of a state."""
    kind, settings = CASES[name]
    config = getattr(transformers, f"{kind}Config")(**settings)
    draw = torch.Generator().manual_seed(len(name))
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith(("dt_bias", "dt_proj.bias")):
                parameter.uniform_(-7, 3, generator=draw)  # steps of 0.001 to 3
            elif key.endswith("A_log"):
                parameter.uniform_(-2, 3, generator=draw)  # rates of 0.1 to 20
            elif "norm" in key:
                parameter.uniform_(0.5, 1.5, generator=draw)
            else:
                parameter.normal_(0, 0.2, generator=draw)
    return model


def write(folder: Path, name: str, **changes: Any) -> Any:
    """Save a model as transformers does, change its config.json, and return the model."""
    model = oracle(name)
    # transformers cannot write the tied weights of Mamba-2 in safetensors.
    model.save_pretrained(folder, safe_serialization="options" not in name)
    change_config(folder, **changes)
    return model


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("folder")
    return write(folder, request.param), folder


def random_ids(n_token: int, B: int = 2) -> Tensor:
    return torch.randint(n_token, (B, TOKENS), generator=torch.Generator().manual_seed(2))


@torch.inference_mode()
def test_any_segments_against_the_whole_forward(case: tuple[Any, Path]) -> None:
    model, folder = case
    eager = load(folder).build_model()
    ids = random_ids(model.config.vocab_size)
    whole = model(ids, use_cache=True)
    wanted, cache = whole.logits.log_softmax(dim=2), whole.cache_params
    assert wanted.std() > 0.3  # the weights matter
    for S in (0, 1, 7, 64, 300):  # 0: by `step`
        state, made = eager.first_memory(len(ids)), []
        for part in ids.split(S or 1, dim=1):
            if S:
                logits, state = eager(part, state)
            else:
                logits, state = eager.module.step(part[:, 0], state)
                logits = logits[:, None]
            made.append(logits.log_softmax(dim=2))
        assert (torch.cat(made, dim=1) - wanted).abs().max() <= LOG_PROB_TOLERANCE, S
        ssm = torch.stack(list(cache.ssm_states), dim=1).mT  # ours has the inputs on the last axis
        assert (state["ssm"] - ssm).abs().max() <= MEMORY_TOLERANCE, S
        K = model.config.conv_kernel
        conv = torch.stack(list(cache.conv_states), dim=1)[..., 1 - K :].mT
        assert (state["conv"] - conv).abs().max() <= MEMORY_TOLERANCE, S


@torch.inference_mode()
def test_small_decays_after_large_ones_in_a_chunk() -> None:
    """Compare float32 with float64: a difference of cumulative sums of 1e5 would be wrong by about 0.01."""
    from xlexport.families.mamba2 import _chunked

    draw = torch.Generator().manual_seed(4)
    x, B, C = (torch.randn(1, 200, 1, *shape, generator=draw) for shape in ((2, 3), (4,), (4,)))
    decay = torch.full((1, 200, 1, 2), -1e-3)
    decay[:, ::50] = -1e5  # forgets everything, and exp of its negative would be infinite
    h = torch.randn(1, 1, 2, 4, 3, generator=draw)
    sizes = chunk_sizes(200, 64)
    made = _chunked(x, B, C, decay, h, sizes)
    wanted = _chunked(x.double(), B.double(), C.double(), decay.double(), h.double(), sizes)
    for one, other in zip(made, wanted, strict=True):
        assert (one - other).abs().max() <= 1e-4 * other.abs().max()


@pytest.mark.parametrize(("S", "sizes"), [(1, (1, 1)), (64, (1, 64)), (65, (2, 64)), (129, (3, 64))])
def test_chunks(S: int, sizes: tuple[int, int]) -> None:
    assert chunk_sizes(S, 64) == sizes


@pytest.mark.full
@pytest.mark.parametrize("name", ["mamba", "falcon_mamba", "mamba2"])
def test_bundle_against_the_whole_forward(name: str, tmp_path: Path) -> None:
    model = write(tmp_path / "folder", name)
    options = ConversionOptions.of(verify_segments=1000, segment_len=16)
    report = convert(load(tmp_path / "folder"), tmp_path / "bundle", options)
    assert report.passed and report.segments == 1000
    bundle = xlruntime.load(tmp_path / "bundle", threads=1)
    ids = random_ids(model.config.vocab_size, B=1)
    with torch.inference_mode():
        log_probs = model(ids[:, :-1], use_cache=False).logits.log_softmax(dim=2)
    wanted = log_probs.gather(2, ids[:, 1:, None])[0, :, 0].numpy()
    for segment_len in (1, 7, 64, 300):
        stream = bundle.stream(segment_len=segment_len)
        np.testing.assert_allclose(stream.feed(ids[0].tolist()).log_probs, wanted, atol=LOG_PROB_TOLERANCE)


# Folders.


@torch.inference_mode()
def test_a_folder_of_rwkv(tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = transformers.RwkvConfig(vocab_size=61, hidden_size=20, num_hidden_layers=3, context_length=50)
    model = transformers.RwkvForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    ids = random_ids(61)
    logits, _ = load(tmp_path).build_model()(ids)
    difference = logits.log_softmax(dim=2) - model(ids).logits.log_softmax(dim=2)
    assert difference.abs().max() <= LOG_PROB_TOLERANCE


def test_a_folder_says_what_it_is(tmp_path: Path) -> None:
    model = write(tmp_path, "mamba2")
    source = load(tmp_path)
    rows = dict(checkpoint_rows(source))
    assert rows["checkpoint"] == "huggingface, recurrent"
    assert "model mamba2" in " ".join(value for name, value in checkpoint_rows(source) if name == "config")
    assert rows["vocabulary"] == "none, 61 tokens" and "takes token ids only" in rows["note"]
    assert source.parameters == model.num_parameters()
    json.dumps(source.config, allow_nan=False)


def test_tied_weights_by_either_name_and_in_half_precision(tmp_path: Path) -> None:
    model, folder = write(tmp_path, "mamba"), tmp_path
    tensors = load_file(folder / "model.safetensors")
    assert load(folder).parameters == model.num_parameters()
    table = tensors.pop("backbone.embeddings.weight")
    half = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    same = {"backbone.embedding.weight": table, "lm_head.weight": table.clone()}
    save_file({**half, **same}, folder / "model.safetensors")
    source = load(folder)
    module = source.build_model().module
    assert module.lm_head.weight is module.backbone.embeddings.weight and torch.equal(module.lm_head.weight, table)
    assert any("bfloat16" in note for note in source.notes)
    save_file({**half, **same, "lm_head.weight": table + 1}, folder / "model.safetensors")
    assert "differs from" in refusal(folder)


HUGE, WHOLE = 1 << 40, "expected a whole number from 1 to"
WRONG: list[tuple[str, dict[str, Any], str]] = [  # a case, changes of its config.json, and a part of the message
    ("mamba", {"hidden_act": "relu"}, "hidden_act is 'relu', expected 'silu'"),
    ("mamba", {"hidden_size": "20"}, f"hidden_size is '20', {WHOLE} 1,048,576"),
    ("mamba", {"hidden_size": HUGE}, f"hidden_size is {HUGE}, {WHOLE}"),
    ("mamba", {"num_hidden_layers": True}, f"num_hidden_layers is True, {WHOLE} 1,000"),
    (
        "mamba",
        {"vocab_size": 0, "use_bias": 1},
        "expected a whole number from 1 to 16,777,216; use_bias is 1, expected true or false",
    ),
    ("mamba", {"conv_kernel": 1}, "conv_kernel is 1, expected a whole number from 2 to 64"),
    ("mamba", {"time_step_rank": [2]}, f"time_step_rank is [2], {WHOLE}"),
    ("mamba", {"layer_norm_epsilon": -1}, "layer_norm_epsilon is -1, expected a number between 0 and"),
    ("mamba", {"intermediate_size": 1 << 20, "state_size": 1 << 20}, "a state of 3,298,534,883,328 numbers"),
    ("mamba", {"state_size": 6}, "mixer.A_log is (40, 5) in the file, (40, 6) by the configuration"),
    ("mamba", {"num_hidden_layers": 2}, "backbone.layers.2.mixer.A_log is unexpected"),
    ("mamba", {"tie_word_embeddings": False}, "lm_head.weight is missing"),
    ("falcon_mamba", {"mixer_rms_eps": "x"}, "mixer_rms_eps is 'x', expected a number"),
    ("mamba2", {"num_heads": 5}, "num_heads × head_dim is 25, expected expand × hidden_size 30"),
    ("mamba2", {"n_groups": 4}, "num_heads is 6, expected a multiple of n_groups 4"),
    ("mamba2", {"time_step_limit": [1, 0]}, "time_step_limit is [1, 0], expected two numbers, the smaller one first"),
    ("mamba2", {"expand": 1e300}, "expand is 1e+300, expected a number between 0 and"),
]


@pytest.mark.parametrize(("name", "changes", "said"), WRONG, ids=lambda value: str(value)[:30])
def test_wrong_folders(name: str, changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    write(tmp_path, name, **changes)
    assert said in refusal(tmp_path)


def test_weights_that_are_not_finite_and_a_foreign_choice(tmp_path: Path) -> None:
    folder = tmp_path
    write(folder, "mamba")
    assert "Leave out 'mem_len' of --config" in refusal(folder, config={"mem_len": 5})
    tensors = load_file(folder / "model.safetensors")
    tensors["backbone.norm_f.weight"][3] = torch.nan
    save_file(tensors, folder / "model.safetensors")
    assert "infinite or undefined weights in backbone.norm_f.weight" in refusal(folder)
