"""The number of buckets of a Hugging Face folder whose configuration does not have one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints.refusals import refusal
from tests.checkpoints.test_huggingface_format import change_config
from tests.checkpoints.test_huggingface_reformer_format import computes, make
from xlexport.checkpoints import load
from xlexport.errors import MissingAnswerError


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


def test_there_are_lengths_of_one_factor_and_of_two() -> None:
    """Check that the test above compares both kinds of lengths."""
    assert 2 * max(math.isqrt(2048 // 16), 16) * 8 >= 2 * (2048 // 16)
    assert 2 * max(math.isqrt(2048 // 4), 4) < 2 * (1000 // 4)


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
