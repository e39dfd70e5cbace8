"""Hugging Face folders of Reformers, written by transformers itself; `tests/oracles` has what they compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import ReformerConfig, ReformerModel, ReformerModelWithLMHead

from tests.checkpoints.config_file import change_config
from tests.checkpoints.refusals import refusal
from tests.helpers.tokenizer_kinds import sentence_pieces
from tests.oracles.reformer_configurations import ReformerCase
from tests.oracles.reformers import HuggingFaceReformer, assert_computes
from xlexport.errors import MissingAnswerError
from xlexport.families.reformer import huggingface
from xlexport.formats import load
from xlexport.tokenizer_choice import choose_tokenizer
from xlruntime.bundle import TextToken, TokenizerEntry
from xltraining.reformer.lsh import draw_rotations

ENWIK8 = {  # google/reformer-enwik8's config.json
    "attn_layers": ["local", "local", "lsh", "local"] * 3,
    "vocab_size": 258,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "attention_head_size": 128,
    "feed_forward_size": 4096,
    "local_attn_chunk_length": 128,
    "lsh_attn_chunk_length": 256,
    "num_hashes": 4,
    "num_buckets": 512,
    "axial_pos_shape": [128, 512],
    "axial_pos_embds_dim": [256, 768],
    "max_position_embeddings": 65536,
}
CRIME_AND_PUNISHMENT = {
    "attn_layers": ["local", "lsh"] * 3,
    "vocab_size": 320,
    "hidden_size": 256,
    "num_attention_heads": 2,
    "attention_head_size": 64,
    "feed_forward_size": 512,
    "num_hashes": 1,
    "num_buckets": [64, 128],
    "axial_pos_shape": [512, 1024],
    "axial_pos_embds_dim": [64, 192],
    "max_position_embeddings": 524288,
}
PUBLISHED = {"enwik8": (ENWIK8, 149_182_722), "crime-and-punishment": (CRIME_AND_PUNISHMENT, 2_748_224)}


def make(**settings: Any) -> HuggingFaceReformer:
    return HuggingFaceReformer(ReformerCase("small", {"attn_layers": ["local", "lsh"], **settings}, ()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make(num_buckets=[4, 6], num_hashes=2).save(tmp_path / "reformer")


def computes(folder: Path, oracle: HuggingFaceReformer, T: int = 100, **given: Any) -> None:
    assert_computes(load(folder, **given).build_model(), oracle, T)


def test_configuration_is_that_of_the_folder(folder: Path) -> None:
    source = load(folder)
    assert (source.format, source.architecture) == ("huggingface", "reformer")
    assert source.notes == ()
    assert source.needs == ()
    assert [file.name for file in source.files] == ["config.json", "model.safetensors"]
    stated = {
        "rule": "chunk",
        "reads_last": True,
        "tgt_len": 2048,
        "mem_len": 2048,
        "max_positions": 2048,
        "hash_seed": 11,
        "dropout": 0.0,
        "attn_layers": ["local", "lsh"],
        "n_buckets": [4, 6],
    }
    assert stated.items() <= source.config.items()
    assert load(folder, config={"num_buckets": (4, 6)}).config == source.config


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes_of_the_published_models(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use zeros that take no room; the number of parameters is that of the published files."""
    settings, parameters = PUBLISHED[name]
    folder = tmp_path / name
    config = ReformerConfig(**settings, is_decoder=True)
    config.save_pretrained(folder)
    change_config(folder, num_chunks_before=1, num_chunks_after=0, output_past=True, intermediate_size=3072)  # of 2020
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in ReformerModelWithLMHead(config).state_dict().items()}
    zero = torch.zeros(1)
    tensors = {name: zero.expand(shape) for name, shape in shapes.items()}
    tensors |= {
        f"reformer.encoder.layers.2.attention.self_attention.{name}_float16": zero
        for name in ("mask_value", "self_mask_value")
    }
    monkeypatch.setattr(huggingface, "read_weights", lambda path: ([], tensors))
    source = load(folder)
    assert source.parameters == parameters
    assert source.config["max_positions"] == settings["max_position_embeddings"]
    assert source.config["n_buckets"] == ([512] if name == "enwik8" else [64, 128])
    if name == "enwik8":
        assert choose_tokenizer(source).spec == TokenizerEntry("bytes", first_id=2)
        assert any("bytes + 2" in note for note in source.notes)


@pytest.mark.parametrize("kept", ["lm_head.bias", "lm_head.decoder.bias"])
def test_bias_of_the_output_layer_by_either_name(kept: str, tmp_path: Path) -> None:
    oracle = make()
    folder = oracle.save(tmp_path / "reformer")
    tensors = load_file(folder / "model.safetensors")
    names = [name for name in ("lm_head.bias", "lm_head.decoder.bias") if name in tensors]  # version 5 saves both
    bias = [tensors.pop(name) for name in names][-1]
    save_file(tensors, folder / "model.safetensors")
    assert "lm_head.decoder.bias is missing" in refusal(folder)
    save_file({**tensors, kept: bias}, folder / "model.safetensors")
    computes(folder, oracle)
    # transformers 5 saves two parameters; its output layer uses the decoder's.
    save_file({**tensors, "lm_head.bias": bias + 1, "lm_head.decoder.bias": bias}, folder / "model.safetensors")
    computes(folder, oracle)


def test_torch_file_and_parts_are_read(tmp_path: Path) -> None:
    oracle = make()
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    oracle.model.config.save_pretrained(whole)
    torch.save(oracle.model.state_dict(), whole / "pytorch_model.bin")
    computes(whole, oracle)
    oracle.model.save_pretrained(parts, max_shard_size="8KB")
    assert len(list(parts.glob("*.safetensors"))) > 1
    computes(parts, oracle)


def test_keys_that_are_left_out_are_those_of_transformers(tmp_path: Path) -> None:
    """Leave out every key that can have its default, as `save_pretrained` does."""
    model = ReformerModelWithLMHead(ReformerConfig(is_decoder=True, num_buckets=4, hash_seed=0))
    model.save_pretrained(tmp_path)
    stated = json.loads((tmp_path / "config.json").read_text())
    assert "lsh_attn_chunk_length" in stated  # this version writes all of them
    kept = ("is_decoder", "num_buckets", "hash_seed", "model_type", "architectures")
    (tmp_path / "config.json").write_text(json.dumps({name: stated[name] for name in kept}))
    tokens = torch.randint(320, (1, 200), generator=torch.Generator().manual_seed(1))
    eager = load(tmp_path).build_model()
    with torch.no_grad():
        wanted = model.eval()(tokens, use_cache=False).logits
        assert (eager.logits(eager(tokens)[0]) - wanted).abs().max() <= 1e-4  # as above; its logits are below 1


# Buckets.


def test_missing_buckets_must_be_given(tmp_path: Path) -> None:
    folder = make(num_buckets=None).save(tmp_path / "reformer")
    message = refusal(folder, MissingAnswerError)
    assert "config.json has no num_buckets" in message
    assert "--config num_buckets=N (or N,M for two factors), or --config max_length=T" in message
    for given, factors in ((6, [6]), ([4, 6], [4, 6]), ((8,), [8])):
        assert load(folder, config={"num_buckets": given}).config["n_buckets"] == factors


@pytest.mark.parametrize(
    ("length", "settings"),
    [
        (17, {}),
        (100, {}),
        (2048, {}),
        (2048, {"lsh_attn_chunk_length": 8}),
        (1000, {"lsh_attn_chunk_length": 4, "local_attn_chunk_length": 4}),
        (70, {"local_attn_chunk_length": 64}),
        (700, {"attn_layers": ["lsh"], "lsh_attn_chunk_length": 4, "max_position_embeddings": 1024}),
    ],
)
@pytest.mark.full
def test_buckets_for_a_length_are_those_that_transformers_sets(
    length: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    oracle = make(num_buckets=None, **settings)
    folder = oracle.save(tmp_path / "reformer")
    with torch.no_grad():
        oracle.model(torch.zeros(1, length, dtype=torch.int64), use_cache=False)
    found = oracle.model.config.num_buckets
    factors = [found] if isinstance(found, int) else list(found)
    source = load(folder, config={"max_length": length})
    assert source.config["n_buckets"] == factors
    (note,) = [note for note in source.notes if "num_buckets is" in note]
    assert f"a first document of {length:,} tokens" in note
    computes(folder, oracle, length, config={"max_length": length})


@pytest.mark.parametrize(
    ("stated", "given", "said"),
    [
        (None, {"num_buckets": 7}, "num_buckets is 7, expected an even number or several"),
        (None, {"num_buckets": [4, 3]}, "num_buckets is [4, 3], expected an even number or several"),
        (None, {"num_buckets": "x"}, "num_buckets is 'x', expected"),
        (None, {"num_buckets": True}, "num_buckets is True, expected"),
        (None, {"num_buckets": []}, "num_buckets is [], expected"),
        (None, {"max_length": 0}, "max_length is 0, expected a number of tokens"),
        (None, {"max_length": 16}, "max_length is 16, expected more than a chunk of 16 and at most 2,048"),
        (None, {"max_length": 2049}, "expected more than a chunk of 16 and at most 2,048"),
        (None, {"num_buckets": 4, "max_length": 64}, "leave out one of them"),
        (8, {"num_buckets": 4}, "num_buckets is 8 in config.json: leave out num_buckets"),
        (8, {"max_length": 64}, "num_buckets is 8 in config.json: leave out num_buckets"),
        (7, {}, "n_buckets must be even numbers"),
        ([], {}, "n_buckets must be even numbers"),
        ("x", {}, "n_buckets must be a tuple of integers"),
    ],
)
def test_invalid_buckets(stated: Any, given: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = make().save(tmp_path / "reformer")
    change_config(folder, num_buckets=stated)
    assert said in refusal(folder, config=given)


def test_local_layers_alone_need_no_buckets(tmp_path: Path) -> None:
    folder = make(attn_layers=["local"] * 2, num_buckets=None, hash_seed=None).save(tmp_path / "reformer")
    assert load(folder).notes == ()
    assert "no layer hashes" in refusal(folder, config={"num_buckets": 8})


# Rotations.


@pytest.mark.parametrize("seed", [None, 5])
def test_rotations(seed: int | None, tmp_path: Path) -> None:
    """Draw rotations once without a seed, else those of transformers, which are the same in every layer."""
    folder = make(hash_seed=seed, num_hashes=3, attn_layers=["lsh", "local", "lsh"]).save(tmp_path / "reformer")
    before = torch.get_rng_state()
    source = load(folder)
    model = source.build_model()
    assert torch.equal(torch.get_rng_state(), before)
    for layer in (0, 2):
        if seed is None:
            wanted = draw_rotations(2, 8, 4, 3, seed=0, layer=layer)
        else:
            wanted = torch.randn(2, 8, 3, 4, generator=torch.Generator().manual_seed(seed)).transpose(1, 2)
        assert torch.equal(model.layers[layer].attention.rotations, wanted)
    if seed is None:
        (note,) = source.notes
        assert "drawn once, from seed 0" in note and "transformers draws new ones at every call" in note
        assert model.with_evaluation(n_hashes=5).layers[0].attention.rotations.shape[1] == 5
    else:
        assert source.notes == ()


# Tokenizers.


def test_sentencepiece_model_in_the_folder(tmp_path: Path) -> None:
    folder = make(vocab_size=15).save(tmp_path / "reformer")
    pytest.importorskip("sentencepiece")
    (folder / "spiece.model").write_bytes(sentence_pieces(15, ["the cat sat on the mat"] * 5))
    source = load(folder)
    assert source.tokenizer == folder / "spiece.model"
    assert folder / "spiece.model" in source.files
    choice = choose_tokenizer(source)
    assert (choice.spec.kind, choice.spec.file) == ("sentencepiece", "tokenizer.model")
    assert choice.spec.ends == (TextToken(2, "</s>", "generation_config.json"),)
    assert choice.content == (folder / "spiece.model").read_bytes()
    ids_only = TokenizerEntry("none", ends=(TextToken(2, "2", "generation_config.json"),))
    assert choose_tokenizer(source, "none").spec == ids_only


@pytest.mark.parametrize(("n_token", "first_id"), [(256, 0), (258, 2)])
def test_bytes(n_token: int, first_id: int, tmp_path: Path) -> None:
    source = load(make(vocab_size=n_token).save(tmp_path / "reformer"))
    assert source.tokenizer == ("bytes" if n_token == 258 else None)
    assert choose_tokenizer(source, "bytes").spec == TokenizerEntry("bytes", first_id=first_id)


# Refusals.


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"is_decoder": False}, "is_decoder is not true: tokens see later ones"),
        ({"is_decoder": None}, "is_decoder is not true"),
        ({"attn_layers": ["local", "full"]}, "attn_layers is ('local', 'full'), expected layers of local and lsh"),
        ({"attn_layers": ["local", ["lsh"]]}, "expected layers of local and lsh"),
        ({"attn_layers": "lsh"}, "attn_layers must be a tuple of texts, found 'lsh'"),
        ({"attn_layers": []}, "attn_layers must name at least one layer"),
        ({"attn_layers": 5, "local_num_chunks_before": 2}, "attn_layers must be a tuple of texts, found 5"),
        ({"lsh_num_chunks_after": 1}, "lsh_num_chunks_after is 1: a language model does not see later chunks"),
        ({"local_num_chunks_after": 1}, "local_num_chunks_after is 1"),
        ({"hidden_act": "silu"}, "hidden_act is 'silu', expected one of relu, gelu"),
        ({"hidden_act": {"a": 1}}, "hidden_act is {'a': 1}, expected"),
        ({"hash_seed": "x"}, "hash_seed is 'x', expected an integer"),
        ({"hash_seed": 1 << 40}, "expected an integer of up to 31 bits"),
        ({"lsh_attn_chunk_length": 24}, "chunk lengths must divide max_positions 2,048, found 24 (lsh)"),
        ({"lsh_attn_chunk_length": 0}, "chunk_length must be at least 1, found 0"),
        ({"local_attn_chunk_length": "8"}, "local_chunk_length must be an integer, found '8'"),
        ({"axial_pos_shape": [32, 32]}, "weights.1 is (1, 64, 24) in the file, (1, 32, 24) by the configuration"),
        ({"axial_pos_shape": [2048]}, "must have the same axes"),
        ({"axial_pos_shape": {"a": 1}}, "axial_shape must be a tuple of integers"),
        ({"axial_pos_embds_dim": [8, 8]}, "axial_dims must add up to d_model 32, found 16"),
        (
            {"num_attention_heads": 4},
            "self_attention.query.weight is (16, 32) in the file, (32, 32)",
        ),
        ({"attn_layers": ["lsh", "lsh"]}, "layers.0.attention.self_attention.query_key.weight is missing"),
        ({"attn_layers": ["local", "lsh", "lsh"]}, "layers.2.attention.layer_norm.weight is missing"),
        ({"attn_layers": ["local"], "num_buckets": None}, "layers.1.attention.layer_norm.weight is unexpected"),
        ({"vocab_size": 51}, "word_embeddings.weight is (50, 32) in the file, (51, 32) by the configuration"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], said: str, folder: Path) -> None:
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**content, **settings}))
    assert said in refusal(folder)


def test_all_unsupported_settings_are_reported_at_once(folder: Path) -> None:
    change_config(folder, is_decoder=False, hidden_act="silu", num_buckets=None, lsh_num_chunks_after=1)
    message = refusal(folder, config={"n_head": 3})
    for said in ("is_decoder", "hidden_act", "no num_buckets", "lsh_num_chunks_after", "'n_head' cannot be given"):
        assert said in message


@pytest.mark.parametrize(
    "settings",
    [
        {"num_hashes": 1 << 30},
        {"num_hashes": 5000, "num_buckets": 1 << 20},
        {"num_buckets": [1 << 30]},
        {"num_buckets": [2] * 100_000},
        {"num_buckets": [10**4000] * 8},
        {"attn_layers": ["lsh"] * 1_000_000},
        {"axial_pos_shape": [1] * 100_000, "axial_pos_embds_dim": [1] * 100_000},
        {"axial_pos_shape": [10**4000] * 8},
        {"lsh_attn_chunk_length": 10**4000, "num_buckets": None},
        {"max_position_embeddings": 10**4000, "axial_pos_embds": False, "num_buckets": None},
        {"vocab_size": 1 << 60},
        {"hash_seed": -(10**4000)},
    ],
    ids=", ".join,
)
def test_sizes_from_a_file_take_neither_memory_nor_time(settings: dict[str, Any], folder: Path) -> None:
    change_config(folder, **settings)
    if settings.get("num_buckets", 0) is None:
        assert len(refusal(folder, config={"max_length": 10**9})) < 2000
    else:
        assert len(refusal(folder)) < 2000


def test_model_without_output_layer_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    ReformerModel(make().model.config).save_pretrained(folder)
    assert "without an output layer" in refusal(folder)


def test_half_precision_is_read(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor.half() for name, tensor in tensors.items()}, folder / "model.safetensors")
    source = load(folder)
    assert source.notes == ("Weights are float16 in the file and become float32.",)
    model = source.build_model()
    assert torch.equal(model.word_emb.weight, tensors["reformer.embeddings.word_embeddings.weight"].half().float())


def test_positions_that_transformers_would_not_use_are_noted(folder: Path) -> None:
    change_config(folder, max_position_embeddings=1024)
    (note,) = load(folder).notes
    assert note == "Documents may have 2,048 tokens, the size of axial_pos_shape; transformers accepts 1,024."


def test_short_documents_with_several_local_chunks_before_are_noted(tmp_path: Path) -> None:
    """Note documents in which transformers' chunks look back around the document at themselves."""
    oracle = make(attn_layers=["local"] * 2, local_num_chunks_before=3)
    folder = oracle.save(tmp_path / "reformer")
    (note,) = load(folder).notes
    assert note.startswith("Local attention in documents of 9 to 24 tokens counts each key once")
    computes(folder, oracle, 8)
    computes(folder, oracle, 25)
    with pytest.raises(AssertionError):
        computes(folder, oracle, 24)


def test_lengths_of_rule_band_may_be_given(folder: Path) -> None:
    source = load(folder, config={"tgt_len": 64, "mem_len": 128})
    assert (source.config["tgt_len"], source.config["mem_len"]) == (64, 128)
