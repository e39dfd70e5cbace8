"""Documents of any lengths share a batch, and each has the same scores as alone."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.helpers.paths import EMPTY, ZEROS
from tests.runtime.conftest import Close, RandomIds
from xlruntime import Document, Memory, Model, OptionError
from xlruntime.scorer import Scorer

LENGTHS = (200, 1, 600, 63, 2, 1000, 64, 65)


@pytest.mark.parametrize("batch_size", [2, 3, 8])
def test_batch_equals_each_document_alone(batch_size: int, model: Model, random_ids: RandomIds, close: Close) -> None:
    documents = [random_ids(length, seed=length) for length in LENGTHS]
    found: dict[int, list[Any]] = defaultdict(list)
    for scores in model.score_tokens(documents, batch_size=batch_size):
        found[scores.number].append(scores)
    for number, document in enumerate(documents):
        alone, parts = model.stream().feed(document), found[number]
        close(np.concatenate([part.log_probs for part in parts]), alone.log_probs)
        for what in ("index", "tokens", "context"):
            np.testing.assert_array_equal(np.concatenate([getattr(part, what) for part in parts]), getattr(alone, what))
        assert [part.summary is not None for part in parts] == [False] * (len(parts) - 1) + [True]


@pytest.mark.parametrize("name", [EMPTY, ZEROS, "reformer_band", "two_rings"])  # with rings, windows and states
def test_later_batches_use_the_buffers_of_earlier_ones(
    name: str, golden: Callable[[str], Model], random_ids: RandomIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = golden(name)
    monkeypatch.setattr("xlruntime.fitting.STEP_TOKENS", 24)
    documents = [random_ids(n, seed=n) % model.bundle.vocab_size for n in (8, 8, 8, 6, 6, 6, 6)]
    with mock.patch.object(Memory, "again", autospec=True, side_effect=Memory.again) as again:
        nats = [score.nats for score in model.score(documents * 2, segment_len=8, batch_size="auto")]
    assert [call.args[1] for call in again.mock_calls] == [4, 3, 3]
    assert nats[:7] == nats[7:]
    assert nats[0] == pytest.approx(-float(model.stream(segment_len=8).feed(documents[0]).log_probs.sum()), rel=1e-5)


def test_results_come_in_the_order_of_the_documents(bytes_model: Model, random_ids: RandomIds) -> None:
    documents = [Document(f"of {n}", random_ids(n)) for n in (300, 2, 40, 0, 200, 1, 3)]
    found = list(bytes_model.score(documents, batch_size=3))
    assert [score.document for score in found] == [document.name for document in documents]
    assert [score.tokens for score in found] == [300, 2, 40, 0, 200, 1, 3]
    finished = [scores.document for scores in bytes_model.score_tokens(documents, batch_size=3) if scores.summary]
    assert finished != [score.document for score in found]  # else this test proves nothing
    assert sorted(finished) == sorted(score.document for score in found)


def test_documents_of_every_kind_of_source(bytes_model: Model, tmp_path: Path) -> None:
    text = "Loomings – Call me Ishmael."
    path = tmp_path / "loomings.txt"
    path.write_bytes(text.encode())
    ids = list(text.encode())
    with path.open("rb") as file:
        sources: list[Any] = [text, text.encode(), path, file, io.BytesIO(text.encode()), ids, np.array(ids, np.uint8)]
        found = list(bytes_model.score([*sources, Document("mine", path)]))
    assert [score.nats for score in found] == pytest.approx([found[0].nats] * 8, abs=1e-4)
    assert [score.document for score in found] == [
        "document 1", "document 2", str(path), str(path), "document 5", "document 6", "document 7", "mine",
    ]  # fmt: skip
    assert [score.bytes for score in found] == [len(ids)] * 5 + [0, 0, len(ids)]


def test_documents_are_read_only_when_a_row_is_free(bytes_model: Model, random_ids: RandomIds) -> None:
    begun = 0

    def documents() -> Iterator[Any]:
        nonlocal begun
        for length in (30, 12, 25, 60, 7):
            begun += 1
            yield random_ids(length)

    finished = 0
    for score in bytes_model.score_tokens(documents(), batch_size=2):
        finished += score.summary is not None
        assert begun <= finished + 2
    assert (begun, finished) == (5, 5)


def test_long_document_is_read_piece_by_piece(bytes_model: Model) -> None:
    asked: list[int] = []

    class Endless(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            asked.append(size)
            return b"ten bytes " * (size // 10)

    document: Any = Endless()
    scores = bytes_model.score_tokens([document], segment_len=500)
    for _ in range(20):
        assert len(next(scores)) == 500
    assert 0 < min(asked) <= max(asked) <= 1 << 16
    assert len(asked) <= 2


@pytest.mark.parametrize("batch_size", [0, -1])
def test_batch_size_out_of_range_is_refused_at_once(batch_size: int, bytes_model: Model) -> None:
    with pytest.raises(OptionError, match=f"batch size is {batch_size}, at least 1 is needed"):
        bytes_model.score(["text"], batch_size=batch_size)


@pytest.mark.parametrize("bos", [True, -1, 256])
def test_begin_token_out_of_range_is_refused_at_once(bos: int, bytes_model: Model) -> None:
    with pytest.raises(OptionError, match=f"bos is {bos}, expected 0 to 255, or False for no token"):
        bytes_model.score(["text"], bos=bos)


def test_ends_of_words_need_one_document_at_a_time(bytes_model: Model) -> None:
    with pytest.raises(OptionError, match="one document at a time, but batch size is 2"):
        Scorer(bytes_model, bytes_model.evaluation(), 2, starts_word=np.zeros(256, bool))
