"""Token ids that the model lacks are refused before anything runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from xlruntime import Document, Model, TokenError
from xlruntime.documents import as_ids, check_ids

OUTSIDE = [
    ([5, 256], r"token 1 has id 256, expected 0 to 255 \(1 such\)"),
    ([-1], r"token 0 has id -1, expected 0 to 255 \(1 such\)"),
    ([1, 2, 300, 999, -7], r"token 2 has id 300, expected 0 to 255 \(3 such\)"),
    (np.array([2**63], np.uint64), r"token 0 has id .*, expected 0 to 255"),
]
NOT_IDS = [
    ([1.0, 2.0], r"whole numbers along one axis, found float64 of shape \(2,\)"),
    (np.zeros((2, 3), np.int64), r"whole numbers along one axis, found int64 of shape \(2, 3\)"),
    (np.zeros((0, 3), np.int64), r"along one axis, found int64 of shape \(0, 3\)"),
    (np.array(7), r"along one axis, found int64 of shape \(\)"),
    ([True, False], r"whole numbers along one axis, found bool"),
    ([1, True], r"whole numbers along one axis, found true or false among them"),
    (["a", "b"], r"whole numbers along one axis, found <U1"),
    ([2**70], r"whole numbers along one axis, found object"),
    ([[1], [2, 3]], r"whole numbers along one axis, found uneven lists"),
]


@pytest.mark.parametrize(("ids", "message"), OUTSIDE + NOT_IDS)
def test_wrong_ids_are_refused(ids: Any, message: str, bytes_model: Model) -> None:
    stream = bytes_model.stream()
    for refused in (lambda: stream.feed(ids), lambda: stream.generate(ids, max_tokens=1)):
        with pytest.raises(TokenError, match=f"^the stream: .*{message}") as caught:
            refused()
        assert "\n" not in str(caught.value)
    assert (stream.position, stream.memory.offset) == (0, 0)


@pytest.mark.parametrize(("ids", "message"), OUTSIDE + NOT_IDS)
def test_wrong_ids_of_a_document_are_refused(ids: Any, message: str, bytes_model: Model) -> None:
    with pytest.raises(TokenError, match=f"^mine: .*{message}"):
        list(bytes_model.score([Document("mine", ids)]))


def test_wrong_id_far_into_a_stream_is_named_by_its_place(bytes_model: Model) -> None:
    stream = bytes_model.stream()
    stream.feed(bytes(100))
    with pytest.raises(TokenError, match="token 102 has id 256"):
        stream.feed([1, 2, 256])


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint64, np.int64])
def test_every_integer_type_is_accepted(dtype: Any) -> None:
    ids = as_ids(np.array([0, 3, 255], dtype), "it")
    assert ids.dtype == np.int64
    assert ids.tolist() == [0, 3, 255]


def test_first_and_last_id_are_inside() -> None:
    check_ids(np.array([0, 28]), 29, "it")
    with pytest.raises(TokenError, match="token 11 has id 29, expected 0 to 28"):
        check_ids(np.array([0, 29]), 29, "it", first=10)
