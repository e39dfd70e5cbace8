"""Reformers' settings `n_hashes` and `restart`, on the golden bundle that reads 200 tokens of a document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import xlruntime
from tests.helpers.invoking import Invoke
from tests.helpers.manifests import with_tokenizer
from tests.helpers.paths import BAND, golden_bundle

LONG = b"It was the best of times, it was the worst of times. " * 9  # 477 bytes


@pytest.fixture(scope="module")
def reformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Reformer of rule `band`, which reads bytes."""
    folder = tmp_path_factory.mktemp("reformer") / "bundle"
    return with_tokenizer(golden_bundle(BAND), folder, kind="bytes", first_id=2)


@pytest.fixture
def long(tmp_path: Path) -> Path:
    path = tmp_path / "long.txt"
    path.write_bytes(LONG)
    return path


@pytest.mark.full
def test_rounds_of_hashing_are_chosen_when_scoring(invoke: Invoke, reformer: Path, long: Path) -> None:
    command = ("score", reformer, long, "--restart", "--json")
    found = {rounds: invoke(*command, f"--set=n_hashes={rounds}").succeeded().object for rounds in (1, 2, 3)}
    own = invoke(*command).succeeded().object
    assert [score["n_hashes"] for score in found.values()] == [1, 2, 3]
    assert len({score["nats"] for score in found.values()}) == 3
    assert (own["nats"], own["n_hashes"]) == (found[3]["nats"], 3)
    (expected,) = xlruntime.load(reformer).score([LONG], n_hashes=1, restart=True)
    assert found[1]["nats"] == pytest.approx(expected.nats, abs=1e-3)  # threads may add up in another order


def test_long_document_is_refused_or_restarts(invoke: Invoke, reformer: Path, long: Path) -> None:
    error = invoke("score", reformer, long).error
    assert f"{long}: more than 201 tokens, but at most 201 are possible" in error
    assert error.endswith("let it begin again every 200 tokens (restart=True, --restart).")
    tokens = invoke("score", reformer, "-", "--restart", "--per", "token", stdin=LONG).succeeded().objects
    assert [token["index"] for token in tokens] == list(range(1, 477))
    assert [token["context"] for token in tokens][198:203] == [13, 13, 1, 2, 3]
    assert "".join(token["token"] for token in tokens) == LONG[1:].decode()


def test_corpus_is_evaluated_with_restarts(invoke: Invoke, reformer: Path, long: Path) -> None:
    assert "streams of 477 tokens" in invoke("evaluate", reformer, long, "--protocol", "document").error
    found = invoke("evaluate", reformer, long, "--protocol", "document", "--restart", "--set=n_hashes=2", "--json")
    score = found.succeeded().object
    expected = invoke("score", reformer, long, "--restart", "--set=n_hashes=2", "--json").succeeded().object
    assert score["nats"] == pytest.approx(expected["nats"], abs=1e-2)  # other segments: rounding of 476 tokens
    assert (score["n_hashes"], score["restart"]) == (2, True)
    shown = invoke("evaluate", reformer, long, "--protocol", "document", "--restart").succeeded().out
    assert "n_hashes 3, first memory empty, restart at the last position" in shown


@pytest.mark.full
def test_continuation_restarts(invoke: Invoke, reformer: Path) -> None:
    prompt = LONG[:190].decode()
    invoke("generate", reformer, prompt, "-n", "11", "--seed", "0").succeeded()
    error = invoke("generate", reformer, prompt, "-n", "12").error
    assert "the document with 12 tokens more: 202 tokens, but at most 201 are possible" in error
    ids = {}
    for rounds in ("1", "3"):
        options = ("-n", "40", "--restart", f"--set=n_hashes={rounds}", "--temperature", "0", "--json")
        ids[rounds] = invoke("generate", reformer, prompt, *options).succeeded().object["ids"]
    assert len(ids["1"]) == len(ids["3"]) == 40
    assert ids["1"] != ids["3"]


# Checkpoints without a number of buckets.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write only the settings, which are checked before any weights are read."""
    path = tmp_path / "reformer"
    path.mkdir()
    settings = {"model_type": "reformer", "is_decoder": True, "num_buckets": None, "attn_layers": ["local", "lsh"]}
    (path / "config.json").write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize(("given", "shown"), [("7", "7"), ("8,7", "(8, 7)"), ("0", "0")])
def test_numbers_of_buckets_that_cannot_be_are_shown_as_given(
    invoke: Invoke, folder: Path, given: str, shown: str
) -> None:
    assert invoke("inspect", folder, "--config", f"num_buckets={given}").error == (
        f"Error: {folder}: num_buckets is {shown}, expected an even number or several, such as 64,128."
    )


def test_folder_without_buckets_and_weights_is_not_described(invoke: Invoke, folder: Path) -> None:
    shown = invoke("inspect", folder)
    assert (shown.code, shown.out) == (1, "")
    assert shown.error.startswith(f"Error: {folder}: no model.safetensors or pytorch_model.bin in it")
