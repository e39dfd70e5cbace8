"""States of streams with a valid digest, but with counters, settings or tensors that no stream can have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xlruntime import Model, StateDamagedError, StateError, StateMismatchError
from xlruntime.state import KIND, VERSION, read_state, write_state

Change = Callable[[dict[str, Any], dict[str, Any]], Any]


LIES: list[tuple[Change, str]] = [
    (lambda t, a: t.update(offset="nan"), "offset is 'nan', expected 0 to"),
    (lambda t, a: t.update(offset="-1"), "offset is -1, expected 0 to"),
    (lambda t, a: t.update(offset="+1"), "offset is '+1', expected 0 to"),
    (lambda t, a: t.update(offset="01"), "offset is '01', expected 0 to"),
    (lambda t, a: t.update(offset="²"), "offset is '²', expected 0 to"),
    (lambda t, a: t.update(offset=str(2**63)), "offset is 9223372036854775808, expected 0 to"),
    (lambda t, a: t.update(length="13"), "length is 13, expected 0 to 12"),
    (lambda t, a: t.update(length=""), "length is None, expected 0 to 12"),
    (lambda t, a: t.update(history="22"), "history is 22, but 21 tokens were read"),
    (lambda t, a: t.update(position="1" + "0" * 400), "position is '1000"),
    (lambda t, a: t.update(position="\x1b[2J"), "position is '\\x1b[2J', expected 0 to"),
    (lambda t, a: t.update(pending="256"), "pending is 256, expected 0 to 255"),
    (lambda t, a: t.update(pending=""), "21 tokens were read, and None is held"),
    (lambda t, a: t.update(pending="true"), "pending is True, expected 0 to 255"),
    (lambda t, a: t.pop("capacity"), "capacity is missing"),
    (lambda t, a: t.update(capacity=str(2**40)), "expected float32 (1, 2, 1099511627776, 8)"),
    (lambda t, a: t.update({"setting.mem_len": str(2**30)}), "capacity is 20, but 1073741824 rows are kept"),
    (lambda t, a: a.pop("memory_key_0"), "memory_key_0 is missing"),
    (lambda t, a: a.update(memory_key_0=a["memory_key_0"] * np.nan), "memory_key_0 has numbers that are not"),
]  # fmt: skip
OTHERS: list[tuple[Change, str]] = [
    (lambda t, a: t.update(fingerprint="0" * 64), "saved from another bundle"),
    (lambda t, a: t.update({"setting.n_hashes": "2"}), "n_hashes: not among the settings of this bundle"),
    (lambda t, a: t.update({"setting.\n": "2"}), "not among the settings of this bundle"),
    (lambda t, a: t.update({"setting.self": "2"}), "settings of another bundle"),
    (lambda t, a: t.pop("setting.mem_len"), "expected segment_len, restart, mem_len, clamp_len"),
    (lambda t, a: t.update({"setting.mem_len": "twelve"}), "mem_len is 'twelve', expected a whole number"),
    (lambda t, a: t.update({"setting.same_length": "1"}), "same_length is 1, expected true or false"),
    (lambda t, a: t.update(segment_len="0"), "segment_len is 0, expected 1 to"),
    (lambda t, a: t.update(segment_len="x"), "settings of another bundle"),
    (lambda t, a: t.update(restart="x"), "settings of another bundle"),
]


@pytest.fixture
def changed(bytes_model: Model, tmp_path: Path) -> Callable[[Change], Path]:
    def change(how: Change) -> Path:
        file = tmp_path / "stream.state"
        stream = bytes_model.stream()
        stream.feed("a text of some length")
        stream.save(file)
        metadata, arrays = read_state(file, KIND, VERSION, "")
        how(metadata, arrays)
        write_state(file, metadata, arrays)
        return file

    return change


def test_unchanged_state_is_restored(changed: Callable[[Change], Path], bytes_model: Model) -> None:
    assert bytes_model.restore(changed(lambda texts, arrays: None)).position == 21


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        (how, kind, said)
        for kind, lies in ((StateDamagedError, LIES), (StateMismatchError, OTHERS))
        for how, said in lies
    ],
)
def test_state_that_no_stream_has_is_refused(
    how: Change, kind: type[StateError], said: str, changed: Callable[[Change], Path], bytes_model: Model
) -> None:
    file = changed(how)
    with pytest.raises(kind) as caught:
        bytes_model.restore(file)
    message = str(caught.value)
    assert said in message
    assert message.startswith(str(file))
    assert message.isprintable()
    assert len(message) < 1000
