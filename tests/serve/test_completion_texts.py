"""Completions: tokens joined are the text, offsets count characters of the request, and texts end where they should."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.manifests import with_tokenizer
from tests.helpers.paths import EMPTY, golden_bundle
from tests.serve.conftest import Start, error_of
from xlexport.serve.jobs import AnswerChoice
from xlexport.serve.token_places import ends_in_text, text_of_run
from xlruntime import GrowingText, Sampling, load
from xlruntime.tokenizers import ByteTokenizer, Vocabulary, VocabularyTokenizer

PROMPT = "The man — “slowly” — naïve 🙂"
END = {"id": 2, "name": "</s>", "source": "a test"}


@pytest.fixture
def start_with(start: Start, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that starts a server of a bundle with these fields of its tokenizer."""
    return lambda **tokenizer: start(with_tokenizer(golden_bundle(EMPTY), tmp_path / EMPTY, **tokenizer))


def events_of(client: Any, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                yield from json.loads(line.removeprefix("data: "))["choices"]


@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("echo", [False, True])
def test_tokens_joined_are_the_text_and_offsets_are_places_in_it(start: Start, echo: bool, as_ids: bool) -> None:
    client = start()
    prompt: Any = list(PROMPT.encode()) if as_ids else PROMPT
    body = {"prompt": prompt, "max_tokens": 30, "echo": echo, "logprobs": 1, "seed": 4}
    (whole,) = client.post("/v1/completions", json=body).json()["choices"]
    request = whole["text"] if echo else PROMPT + whole["text"]
    for choices in ([whole], list(events_of(client, body))):
        tokens = [token for choice in choices for token in choice["logprobs"]["tokens"]]
        offsets = [offset for choice in choices for offset in choice["logprobs"]["text_offset"]]
        assert "".join(tokens) == "".join(choice["text"] for choice in choices) == whole["text"]
        assert offsets == sorted(offsets)
        assert offsets[0] == (0 if echo else len(PROMPT))
        assert all(request[place:].startswith(token) for place, token in zip(offsets, tokens, strict=True))
    for token, row in zip(whole["logprobs"]["tokens"], whole["logprobs"]["top_logprobs"], strict=True):
        assert row is None or not token or token in row  # where clients look it up


def test_tokens_of_a_stop_have_no_text(start: Start) -> None:
    client = start()
    body = {"prompt": PROMPT, "max_tokens": 24, "logprobs": 0, "seed": 4}
    text = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    stopped = body | {"stop": text[9:12]}
    (whole,) = client.post("/v1/completions", json=stopped).json()["choices"]
    assert "".join(whole["logprobs"]["tokens"]) == whole["text"] == text[: text.index(text[9:12])]
    events = list(events_of(client, stopped))
    assert "".join(token for event in events for token in event["logprobs"]["tokens"]) == whole["text"]


def test_completions_end_at_end_tokens(start_with: Callable[..., Any]) -> None:
    model = load(golden_bundle(EMPTY), threads=1)
    free = list(model.generate(PROMPT, max_tokens=12, sampling=Sampling(0)))
    end = free[4]
    expected = bytes(free[: free.index(end)]).decode("utf-8", "replace")
    client = start_with(ends=[{**END, "id": end}])
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "logprobs": 0}
    (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (expected, "stop")
    (choice,) = client.post("/v1/completions", json={**body, "ignore_eos": True}).json()["choices"]
    assert (choice["text"], choice["finish_reason"]) == (bytes(free).decode("utf-8", "replace"), "length")
    further = {**body, "ignore_eos": True, "stop_token_ids": [free[2]]}
    (choice,) = client.post("/v1/completions", json=further).json()["choices"]
    assert choice["text"] == bytes(free[: free.index(free[2])]).decode("utf-8", "replace")
    session = client.post("/v1/sessions", json={}).json()["id"]
    fields = {"prompt": PROMPT, "max_completion_tokens": 12, "temperature": 0}
    answer = client.post(f"/v1/sessions/{session}/generate", json=fields).json()
    assert (answer["text"], answer["finish_reason"]) == (expected, "stop")
    both = {"prompt": "a", "max_tokens": 1, "max_completion_tokens": 2}
    assert error_of(client.post("/v1/completions", json=both), 400)["param"] == "max_completion_tokens"


def test_tokenizer_info_has_begin_and_end_tokens(start_with: Callable[..., Any]) -> None:
    client = start_with(begin={**END, "id": 1, "name": "<s>"}, ends=[END, {**END, "id": 3, "name": "<e>"}])
    info = client.get("/tokenizer_info").json()
    begin, end = (info["bos_token"], info["bos_token_id"]), (info["eos_token"], info["eos_token_ids"])
    assert (begin, end) == (("<s>", 1), ("</s>", [2, 3]))
    assert client.post("/tokenize", json={"prompt": "<s>"}).json()["tokens"] == [1]
    assert client.post("/tokenize", json={"prompt": "<s> "}).json()["tokens"] == list(b"<s> ")


def test_draws_wait_until_their_text_is_certain() -> None:
    choice = AnswerChoice(Sampling(), GrowingText(ByteTokenizer(), [], ["xyz"]))
    taken = []
    for byte in "aé🙂xyq".encode():
        choice.add(byte, None, None)  # type: ignore[arg-type]  # without probabilities
        delta = choice.take()
        taken.append((delta.text, delta.logged, list(delta.draws.tokens)))
    choice.end()
    last = choice.take()
    assert "".join(text for text, _, _ in taken) + last.text == "aé🙂xyq"
    assert "".join(logged for _, logged, _ in taken) + last.logged == "aé🙂xyq"
    assert [token for _, _, tokens in taken for token in tokens] + list(last.draws.tokens) == list("aé🙂xyq".encode())


@pytest.mark.parametrize("text", ["", "a", PROMPT, "\n\n", "é"])
def test_ends_of_bytes_and_of_characters(text: str) -> None:
    ids = list(text.encode())
    ends = ends_in_text(ByteTokenizer(), text, ids)
    assert ends is not None
    whole, run = text_of_run(ByteTokenizer(), ids)
    assert (whole, run.tolist()) == (text, ends.tolist())
    assert ends.tolist() == [len(bytes(ids[: n + 1]).decode("utf-8", "ignore")) for n in range(len(ids))]
    symbols = tuple(dict.fromkeys(PROMPT + "\n"))
    tokenizer = VocabularyTokenizer(Vocabulary("characters", symbols))
    if set(text) <= set(symbols):
        found = ends_in_text(tokenizer, text, tokenizer.encode(text))
        assert found is not None and found.tolist() == list(range(1, len(text) + 1))


def test_broken_bytes_have_places_too() -> None:
    text, ends = text_of_run(ByteTokenizer(2), [97 + 2, 0xE4 + 2, 0, 98 + 2, 0xC3 + 2])
    assert text == "a\ufffdb\ufffd"
    assert ends.tolist() == [1, 1, 1, 3, 4]
