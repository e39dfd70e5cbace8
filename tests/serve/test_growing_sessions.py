"""Sessions of texts in pieces: scores are those of the whole text, and states carry the text that is held."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.bundles import byte_pairs
from tests.helpers.manifests import with_tokenizer
from tests.helpers.paths import golden_bundle
from tests.serve.conftest import Start
from xlruntime import load

NAME = "post_lnorm_same_length_empty"  # whose scores do not depend on the pieces
TEXT = "the cat and the otter, then rain.  the end"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a bundle of byte pairs."""
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(byte_pairs()), "utf-8")
    return with_tokenizer(golden_bundle(NAME), tmp_path / NAME, file, kind="tokenizers", settled="gpt2")


@pytest.fixture
def client(start: Start, folder: Path) -> Any:
    return start(folder)


def begun(client: Any) -> str:
    return f"/v1/sessions/{client.post('/v1/sessions', json={}).json()['id']}"


@pytest.mark.full
def test_pieces_have_the_scores_of_the_whole_text(client: Any, folder: Path) -> None:
    stream = load(folder, threads=1).stream()
    expected = [*stream.feed(TEXT).log_probs.tolist(), *stream.flush().log_probs.tolist()]
    whole = client.post(f"{begun(client)}/feed", json={"input": TEXT, "end": True}).json()
    assert whole["token_logprobs"][1:] == pytest.approx(expected, abs=1e-5)
    assert whole["session"]["held"] == 0
    for cut in range(len(TEXT) + 1):
        session, scores = begun(client), []
        for piece, end in ((TEXT[:cut], False), (TEXT[cut:], True)):
            answer = client.post(f"{session}/feed", json={"input": piece, "end": end}).json()
            scores += answer["token_logprobs"]
        assert scores[1:] == pytest.approx(expected, abs=1e-5), cut


def test_held_text_is_scored_in_a_preview_forked_and_saved(client: Any, folder: Path) -> None:
    session = begun(client)
    answer = client.post(f"{session}/feed", json={"input": TEXT[:9], "logprobs": 0}).json()
    assert (answer["session"]["held"], "".join(answer["logprobs"]["tokens"])) == (6, "the")
    preview = client.post(f"{session}/preview", json={}).json()
    assert client.get(session).json()["held"] == 6
    twin = client.post(f"{session}/fork").json()
    state = client.get(f"{session}/state").content
    restored = client.post(
        "/v1/sessions/restore", content=state, headers={"content-type": "application/octet-stream"}
    ).json()
    assert twin["held"] == restored["held"] == 6
    for one in (session, f"/v1/sessions/{twin['id']}", f"/v1/sessions/{restored['id']}"):
        ended = client.post(f"{one}/feed", json={"input": "", "end": True}).json()
        assert ended["token_logprobs"] == pytest.approx(preview["token_logprobs"], abs=1e-6)


def test_continuations_count_the_tokens_that_end_in_them(client: Any) -> None:
    session = begun(client)
    client.post(f"{session}/feed", json={"input": "the cat an"})
    body = {"input": ["d the otter", "y"], "logprobs": 1}
    first, second = client.post(f"{session}/score", json=body).json()["data"]
    assert "".join(first["logprobs"]["tokens"]) == "and the otter"  # the token `and` begins in the held text
    assert first["index"] + len(first["token_ids"]) > second["index"]
    assert len(first["context"]) == len(first["token_ids"]) == len(first["token_logprobs"])
