"""The routes, called over a socket: numbers are those of the library, and mistakes get clear answers."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load as tensors_of

from tests.helpers.paths import CHUNK, EMPTY, golden_bundle
from tests.serve.conftest import Start, error_of, metric
from xlruntime import Model, Sampling, load
from xlruntime.memory import Memory

pytestmark = pytest.mark.full

ROUNDING = 2e-5  # nats: sums over other batch sizes and slots, in 32 bits
TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom"


@pytest.fixture(scope="module")
def model() -> Model:
    return load(golden_bundle(EMPTY), threads=1)


def close(found: list[Any], expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING)


def test_official_client(start: Start, model: Model) -> None:
    openai = pytest.importorskip("openai", reason="the official client is not installed")
    client = openai.OpenAI(base_url=f"{start().base_url}/v1", api_key="any", max_retries=0)
    assert [entry.id for entry in client.models.list()] == [EMPTY]
    prompts = [TEXT, "a", TEXT[:20]]
    answer = client.completions.create(model=EMPTY, prompt=prompts, max_tokens=0, echo=True, logprobs=2)
    for prompt, choice in zip(prompts, answer.choices, strict=True):
        assert choice.text == prompt and choice.finish_reason == "length"
        assert choice.logprobs.token_logprobs[0] is choice.logprobs.top_logprobs[0] is None
        close(choice.logprobs.token_logprobs[1:], model.stream().feed(prompt).log_probs)
        assert choice.logprobs.tokens == list(prompt) and choice.logprobs.text_offset == list(range(len(prompt)))
        assert {len(top) for top in choice.logprobs.top_logprobs[1:]} <= {2, 3}
    assert answer.usage.prompt_tokens == sum(map(len, prompts))

    answer = client.completions.create(
        model=EMPTY, prompt=list(TEXT.encode()), max_tokens=9, n=3, seed=5, temperature=0.7, logprobs=1
    )
    for number, choice in enumerate(answer.choices):
        sampling = Sampling(0.7, seed=5 + number)
        ids = list(model.generate(TEXT, max_tokens=9, sampling=sampling))
        assert choice.text == bytes(ids).decode("utf-8", "replace")
        stream = model.stream()
        stream.feed(TEXT)
        close(choice.logprobs.token_logprobs, stream.feed(ids).log_probs)

    whole = client.completions.create(model=EMPTY, prompt=TEXT, max_tokens=12, seed=1)
    stop = whole.choices[0].text[3]
    (stopped,) = client.completions.create(model=EMPTY, prompt=TEXT, max_tokens=12, seed=1, stop=stop).choices
    assert (stopped.text, stopped.finish_reason) == (whole.choices[0].text.partition(stop)[0], "stop")
    rules: dict[str, Any] = {"repetition_penalty": 1.5, "min_p": 0.01}
    (penalised,) = client.completions.create(model=EMPTY, prompt=TEXT, seed=1, extra_body=rules).choices
    ids = list(model.generate(TEXT, max_tokens=16, sampling=Sampling(seed=1, **rules)))
    assert penalised.text == bytes(ids).decode("utf-8", "replace")
    chunks = list(
        client.completions.create(
            model=EMPTY, prompt=TEXT, max_tokens=12, seed=1, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage.completion_tokens == 12
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "length"
    with pytest.raises(openai.BadRequestError, match="logprobs"):
        client.completions.create(model=EMPTY, prompt="a", logprobs=11)
    with pytest.raises(openai.NotFoundError, match="no model x"):
        client.completions.create(model="x", prompt="a")


def test_rank_shows_in_equal_numbers(start: Start, model: Model) -> None:
    body = {"prompt": TEXT, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
    (choice,) = start().post("/v1/completions", json=body).json()["choices"]
    log = choice["logprobs"]
    own, top = log["token_logprobs"][1:-1], log["top_logprobs"][1:-1]
    ranks = [part.rank for part in model.score_tokens([TEXT], top=1)]
    expected = (np.concatenate([rank for rank in ranks if rank is not None]) == 1).tolist()
    assert [one == max(several.values()) for one, several in zip(own, top, strict=True)] == expected


def test_many_clients_at_once(start: Start, model: Model) -> None:
    client = start(most=8)
    texts = [(TEXT * 9)[number : number + 1 + 37 * number % 400] for number in range(64)]
    found: dict[int, Any] = {}

    def ask(number: int) -> None:
        body = {"prompt": texts[number], "max_tokens": number % 3, "echo": True, "logprobs": number % 2}
        found[number] = client.post("/v1/completions", json=body).json()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, text in enumerate(texts):
        (choice,) = found[number]["choices"]
        close(choice["logprobs"]["token_logprobs"][1 : len(text)], model.stream().feed(text).log_probs)
    assert metric(client, "xlexport_jobs_total") == metric(client, "xlexport_jobs_submitted_total") == 64
    assert metric(client, 'xlexport_requests_total{route="/v1/completions",status="200"}') == 64
    assert metric(client, 'xlexport_tokens_total{kind="read"') == sum(map(len, texts)) - 64


def test_client_is_answered_beside_a_greedy_one(start: Start) -> None:
    client = start(keys=["greedy", "other"], sessions=0)
    labels = [f'client="{hashlib.sha256(key).hexdigest()[:16]}"' for key in (b"greedy", b"other")]
    client.headers["authorization"] = "Bearer other"
    body = {"prompt": ["a", "a"], "n": 16, "max_tokens": 60_000, "stream": True}
    with client.stream("POST", "/v1/completions", json=body, headers={"authorization": "Bearer greedy"}) as greedy:
        lines = greedy.iter_lines()
        next(lines)
        assert metric(client, f'xlexport_client_jobs{{{labels[0]},model="{EMPTY}",state="drawing"}}') == 1
        for fields in ({"max_tokens": 8}, {"max_tokens": 0, "echo": True, "logprobs": 0}):
            assert client.post("/v1/completions", json={"prompt": "Hello", **fields}).status_code == 200
        assert metric(client, "xlexport_jobs_total") == 2
    error_of(client.post("/v1/sessions", json={}), 429)
    assert [metric(client, f"xlexport_refusals_total{{{label}}}") for label in labels] == [0, 1]


def test_session(start: Start, model: Model) -> None:
    client = start()
    own = client.post("/v1/sessions", json={}).json()
    route = f"/v1/sessions/{own['id']}"
    stream = model.stream()
    for piece in (TEXT, "", " and", list(b" more")):
        answer = client.post(f"{route}/feed", json={"input": piece}).json()
        position = stream.position
        scores = stream.feed(piece)
        assert answer["index"] == position and answer["session"]["tokens"] == stream.position
        close([score for score in answer["token_logprobs"] if score is not None], scores.log_probs)
        assert [seen for seen in answer["context"] if seen] == scores.context.tolist()
        assert answer["bits"] == pytest.approx(scores.bits.sum(), abs=1e-3)
    endings = [" x", " yes", ""]
    answers = client.post(f"{route}/score", json={"input": endings, "logprobs": 1}).json()["data"]
    for ending, answer in zip(endings, answers, strict=True):
        close(answer["token_logprobs"], stream.score_continuation(ending).log_probs)
        assert len(answer["logprobs"]["top_logprobs"]) == len(ending)
    single = client.post(f"{route}/score", json={"input": " yes"}).json()
    close(single["token_logprobs"], answers[1]["token_logprobs"])

    twin = client.post(f"{route}/fork").json()
    state = client.get(f"{route}/state").content
    expected = list(stream.generate(max_tokens=7, sampling=Sampling(0)))
    answer = client.post(f"{route}/generate", json={"max_tokens": 7, "temperature": 0, "logprobs": 1}).json()
    assert answer["token_ids"] == expected and answer["session"]["tokens"] == stream.position
    body = {"max_tokens": 7, "temperature": 0, "stream": True}
    events = client.post(f"/v1/sessions/{twin['id']}/generate", json=body).text.split("\n\n")
    sent = [json.loads(event.removeprefix("data: ")) for event in events if event.startswith("data: {")]
    assert sent[-1]["token_ids"] == expected
    assert "".join(event["text"] for event in sent[:-1]) == sent[-1]["text"] == answer["text"]
    headers = {"content-type": "application/octet-stream"}
    third = client.post("/v1/sessions/restore", content=state, headers=headers).json()
    again = client.post(f"/v1/sessions/{third['id']}/generate", json={"max_tokens": 7, "temperature": 0}).json()
    assert again["token_ids"] == expected

    assert len(client.get("/v1/sessions").json()["data"]) == 3 == metric(client, "xlexport_sessions ")
    assert client.get(route).json()["tokens"] == stream.position
    assert client.delete(route).json()["deleted"]
    assert error_of(client.get(route), 404)["code"] == "session_not_found"
    for wrong in (state[:-1], state.replace(model.bundle.fingerprint.encode(), b"0" * 64)):
        refused = client.post("/v1/sessions/restore", content=wrong, headers=headers)
        message = error_of(refused, 400)["message"]
        assert "the state: " in message and "/" not in message


def test_clients_leave_nothing_in_shared_rows(start: Start, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    client, step = start(), Model.step
    left: list[bool] = []

    def watched(self: Model, purpose: str, memory: Memory, *segment: Any) -> Any:
        left.extend(memory.array(entry)[memory.position == 0].any() for entry in memory.entries)
        return step(self, purpose, memory, *segment)

    monkeypatch.setattr(Model, "step", watched)
    for _ in range(2):
        client.post("/v1/completions", json={"prompt": TEXT, "max_tokens": 3, "echo": True, "logprobs": 0})
    route = f"/v1/sessions/{client.post('/v1/sessions', json={}).json()['id']}"
    client.post(f"{route}/feed", json={"input": "ab"})
    assert len(left) >= 3 * len(model.bundle.memory) and not any(left)
    for array in tensors_of(client.get(f"{route}/state").content).values():
        assert array.any(axis=(0, 1, 3)).sum() == 1  # of (B, H, slots, d_head)


def test_sessions_are_limited_and_expire(start: Start) -> None:
    client = start(sessions=2, session_seconds=90)
    for seconds in (1000, 60):
        made = client.post("/v1/sessions", json={"ttl_seconds": seconds})
        assert made.json()["ttl_seconds"] == min(seconds, 90)
    full = client.post("/v1/sessions", json={})
    assert error_of(full, 429)["code"] == "server_busy" and 1 <= int(full.headers["retry-after"]) <= 60
    assert client.delete(f"/v1/sessions/{made.json()['id']}").status_code == 200
    assert client.post("/v1/sessions", json={"ttl_seconds": 1e-9}).status_code == 201
    assert len(client.get("/v1/sessions").json()["data"]) == 1
    client = start(session_bytes=10)
    assert "10 bytes" in error_of(client.post("/v1/sessions", json={}), 429)["message"]
    client = start(CHUNK)
    assert error_of(client.post("/v1/sessions", json={}), 400)["code"] == "no_sessions"
    assert "token" in client.post("/v1/completions", json={"prompt": [1, 2]}).json()["usage"].popitem()[0]


def test_session_belongs_to_a_key(start: Start) -> None:
    client = start(keys=["one", "two"], sessions=4)
    client.headers["authorization"] = "Bearer one"
    own = client.post("/v1/sessions", json={}).json()["id"]
    assert client.post(f"/v1/sessions/{own}/fork").status_code == 201
    assert "2 sessions of this key" in error_of(client.post("/v1/sessions", json={}), 429)["message"]
    client.headers["authorization"] = "Bearer two"
    assert client.get("/v1/sessions").json()["data"] == []
    for method, route, body in (
        ("GET", "", None), ("GET", "/state", None), ("DELETE", "", None), ("POST", "/fork", None),
        ("POST", "/feed", {"input": "a"}), ("POST", "/score", {"input": "a"}), ("POST", "/generate", {"prompt": "a"}),
    ):  # fmt: skip
        error_of(client.request(method, f"/v1/sessions/{own}{route}", json=body), 404)
    assert client.post("/v1/sessions", json={}).status_code == 201
    client.headers["authorization"] = "Bearer one"
    assert client.get(f"/v1/sessions/{own}").json()["tokens"] == 0


def test_tokens(start: Start) -> None:
    client = start()
    many = client.post("/tokenize", json={"prompt": "a" * 30_000})
    assert many.headers["transfer-encoding"] == "chunked" and many.json()["tokens"] == [97] * 30_000
    assert client.post("/tokenize", json={"prompt": "é"}).json()["tokens"] == [0xC3, 0xA9]
    assert client.post("/detokenize", json={"tokens": [0xC3, 0xA9]}).json() == {"prompt": "é"}
    assert client.get("/tokenizer_info").json()["bos_token"] == "\n"
    assert error_of(client.post("/detokenize", json={"tokens": [256]}), 400)["code"] == "token"
    client = start(CHUNK)
    assert error_of(client.get("/tokenizer_info"), 404)["code"] == "no_prefix"
    assert "no tokenizer" in error_of(client.post("/tokenize", json={"prompt": "a"}), 400)["message"]


@pytest.mark.parametrize(
    ("body", "status", "what"),
    [
        (b"{", 400, "not JSON"),
        (b"\xff", 400, "not JSON"),
        (b"[]", 400, "body"),
        ({}, 400, "prompt: Field required"),
        ({"prompt": "a", "promt": 1}, 400, "promt: Extra inputs are not permitted"),
        ({"prompt": "a", "stream": True, "stream_options": {"include_usge": True}}, 400, "stream_options: Extra"),
        ({"prompt": [1, "a"]}, 400, "prompt: "),
        ({"prompt": [[1], 2]}, 400, "prompt: "),
        ({"prompt": [True]}, 400, "prompt: "),
        ({"prompt": [-1]}, 400, "prompt: "),
        ({"prompt": [256]}, 400, "id 256"),
        ({"prompt": ""}, 400, "no tokens"),
        ({"prompt": []}, 400, "empty list"),
        ({"prompt": "a\ud800"}, 400, ""),
        (b'{"prompt": "a", "n": 1, "n": 2}', 400, "a name twice"),
        (b'{"prompt": "a", "stream_options": {"include_usage": true, "include_usage": true}}', 400, "a name twice"),
        (b'{"prompt": "a", "frequency_penalty": NaN}', 400, "frequency_penalty: Input should be a finite number"),
        ({"prompt": "a", "n": 2**64}, 400, "n: Input should be less than"),
        ({"prompt": "a", "n": 17}, 400, "17 continuations, at most 16"),
        ({"prompt": ["a"] * 5, "n": 16}, 400, "80 continuations of all prompts together, at most 70"),
        ({"prompt": "a" * 101}, 400, "101 tokens to read, at most 100"),
        ({"prompt": "a", "max_tokens": 70_000}, 400, "70,000 tokens to draw"),
        ({"prompt": ["a"] * 6}, 400, "6 prompts, at most 5"),
        ({"prompt": "a", "temperature": -1}, 400, "temperature"),
        ({"prompt": "a", "top_p": 0}, 400, "top_p"),
        ({"prompt": "a", "best_of": 4}, 400, "best_of: not supported"),
        ({"prompt": "a", "presence_penalty": 1}, 400, "presence_penalty: not supported here; use repetition_penalty."),
        ({"prompt": "a", "logit_bias": {"1": 2}}, 400, "logit_bias: not supported here."),
        ({"prompt": "a", "repetition_penalty": 1e-300}, 400, "repetition_penalty"),
        ({"prompt": "a", "stop": ["x"] * 65}, 400, "stop"),
        ({"prompt": "a" * 1000}, 413, "larger than 900 bytes"),
        ({"prompt": [1] * 120}, 413, "more than 110 numbers"),
        ({"prompt": [[]] * 210}, 413, "more than 205 texts, names, lists and objects, of which 5 may be prompts"),
        (b'{"":1' + b',"":1' * 120 + b"}", 413, "more than 110 numbers"),
    ],
)
def test_mistakes(start: Start, body: Any, status: int, what: str) -> None:
    client = start(tokens=100, numbers=110, prompts=5, all_choices=70, body_bytes=900)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post("/v1/completions", content=raw, headers={"content-type": "application/json"})
    assert what in error_of(answer, status)["message"]
    assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).status_code == 200


def test_other_refusals(start: Start) -> None:
    client = start(EMPTY, CHUNK, keys=["one", "two"])
    assert client.get("/health").json() == {"status": "ok"}
    for headers in ({}, {"authorization": "Bearer on"}, {"authorization": "Basic one"}):
        refused = client.get("/v1/models", headers=headers)
        assert error_of(refused, 401)["code"] == "invalid_api_key" and refused.headers["www-authenticate"] == "Bearer"
    client.headers["authorization"] = "Bearer two"
    assert [entry["id"] for entry in client.get("/v1/models").json()["data"]] == [EMPTY, CHUNK]
    assert client.get(f"/v1/models/{CHUNK}").json()["sessions"] is False
    assert error_of(client.get("/v1/absent"), 404)["code"] == "not_found"
    chat = error_of(client.post("/v1/chat/completions", json={"messages": []}), 404)
    assert chat["code"] == "no_chat" and "/v1/completions" in chat["message"]
    assert client.get("/").json()["models"] == [EMPTY, CHUNK]
    assert error_of(client.get("/v1/completions"), 405)["code"] == "method_not_allowed"
    assert error_of(client.post("/v1/completions", json={"prompt": "a"}), 400)["code"] == "missing_model"
    plain = client.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"})
    assert error_of(plain, 415)["code"] == "unsupported_media_type"
    assert client.get("/v1/models", headers={"host": "evil.example"}).status_code == 200


def test_host_without_keys(start: Start) -> None:
    client = start(hosts=["Box"])
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1", "192.168.1.9:8000", "[::1]:8000", "box:1"):
        assert client.get("/v1/models", headers={"host": host}).status_code == 200
    for host in ("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.nip.io", "[::1", ":8000"):
        refused = client.get("/v1/sessions", headers={"host": host})
        assert error_of(refused, 421)["code"] == "unknown_host" and host in refused.json()["error"]["message"]
        assert client.get("/health", headers={"host": host}).status_code == 200
    own = client.post("/v1/sessions", json={}, headers={"origin": "http://box:1", "host": "box:1"}).json()["id"]
    for origin in ("http://evil.example", "null", "http://box:2"):
        forked = client.post(f"/v1/sessions/{own}/fork", headers={"origin": origin, "host": "box:1"})
        assert error_of(forked, 403)["code"] == "foreign_origin"


def test_metrics_and_log_name_routes_not_sessions(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    client = start()
    logger = logging.getLogger("xlexport.serve.access")
    logger.addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, logger.name):
            for name in ("s", "v1", "session", "feed"):  # parts of the route itself
                error_of(client.post(f"/v1/sessions/{name}/feed", json={"input": "a"}), 404)
            client.get("/v1/absent")
            client.get(f"/v1/sessions/{client.post('/v1/sessions', json={}).json()['id']}/absent")
            request_id = client.get("/health").headers["x-request-id"]
            while not any("/health" in record.getMessage() for record in caplog.records):
                pass  # a request is logged and counted after its answer was sent
    finally:
        logger.removeHandler(caplog.handler)
    assert any(record.getMessage().endswith(request_id) for record in caplog.records)
    routes = {line.split('"')[1] for line in client.get("/metrics").text.splitlines() if "{route=" in line}
    assert routes == {"/v1/sessions", "/v1/sessions/{session}/feed", "/health", "other"}
    logged = {record.getMessage().split()[2] for record in caplog.records if record.name == logger.name}
    assert logged - {"/metrics"} == routes - {"other"} | {"/v1/absent", "/v1/sessions/{session}/absent"}
