"""States of streams with a valid digest, but with counters, settings or tensors that no stream can have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xlruntime import Model, StateError
from xlruntime.state_file import read_state, write_state
from xlruntime.stream_state import KIND, VERSION

Change = Callable[[dict[str, Any], dict[str, Any]], Any]


LIES: list[tuple[Change, str]] = [
    (lambda f, a: f.update(offset=float("nan")), "offset is nan, expected a whole number"),
    (lambda f, a: f.update(offset=-1), "offset is -1, expected 0 to"),
    (lambda f, a: f.update(offset=2**63), "offset is 9223372036854775808, expected 0 to"),
    (lambda f, a: f.update(memory_length=13), "memory_length is 13, expected 0 to 12"),
    (lambda f, a: f.update(memory_length=None), "memory_length is None, expected a whole number"),
    (lambda f, a: f.update(history=22), "history is 22, expected 0 to 21"),
    (lambda f, a: f.update(position=10**400), "position is 1000"),
    (lambda f, a: f.update(position="\x1b[2J"), "position is '\\x1b[2J', expected a whole number"),
    (lambda f, a: f.update(pending=256), "pending is 256, expected 0 to 255"),
    (lambda f, a: f.update(pending=None), "21 tokens were read, and None is held"),
    (lambda f, a: f.update(pending=True), "pending is True, expected a whole number or null"),
    (lambda f, a: f.pop("capacity"), "capacity is missing"),
    (lambda f, a: f.update(capacity=2**40), "expected float32 (1, 2, 1099511627776, 8)"),
    (lambda f, a: f["evaluation"].update(mem_len=2**30), "capacity is 20, but 1073741824 rows are kept"),
    (lambda f, a: f["evaluation"].update(n_hashes=2), "n_hashes: not among the settings of this bundle"),
    (lambda f, a: f["evaluation"].update(first_memory=1), "first_memory: not among the settings of this bundle"),
    (lambda f, a: f["evaluation"].pop("mem_len"), "expected ['segment_len', 'restart', 'mem_len', 'clamp_len'"),
    (lambda f, a: f["evaluation"].update(mem_len="12"), "evaluation.mem_len is '12', expected a whole number or"),
    (lambda f, a: f.update(evaluation=None), "evaluation is None, expected an object"),
    (lambda f, a: a.pop("memory_key_0"), "memory_key_0 is missing"),
    (lambda f, a: a.update(memory_key_0=a["memory_key_0"] * np.nan), "memory_key_0 has numbers that are not"),
]  # fmt: skip


@pytest.fixture
def changed(bytes_model: Model, tmp_path: Path) -> Callable[[Change], Path]:
    def change(how: Change) -> Path:
        file = tmp_path / "stream.state"
        stream = bytes_model.stream()
        stream.feed("a text of some length")
        stream.save(file)
        fields, arrays = read_state(file, KIND, VERSION, "")
        how(fields, arrays)
        write_state(file, KIND, VERSION, fields, arrays)
        return file

    return change


def test_unchanged_state_is_restored(changed: Callable[[Change], Path], bytes_model: Model) -> None:
    assert bytes_model.restore(changed(lambda fields, arrays: None)).position == 21


@pytest.mark.parametrize(("how", "said"), LIES)
def test_state_that_no_stream_has_is_refused(
    how: Change, said: str, changed: Callable[[Change], Path], bytes_model: Model
) -> None:
    file = changed(how)
    with pytest.raises(StateError) as caught:
        bytes_model.restore(file)
    message = str(caught.value)
    assert said in message
    assert message.startswith(str(file))
    assert message.isprintable()
    assert len(message) < 1000
