"""Steps of fixed shapes as CUDA graphs, on a pretended device: threads, buffers, and what a session leaves behind."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.bundles import Converted
from tests.helpers.ids import random_ids
from tests.helpers.pretended_cuda import OnDevice, SessionOnDevice, pretend
from xlruntime import Model, OptionError, ProviderError, load
from xlruntime.cuda_graphs import CapturedSession
from xlruntime.devices import parse_device
from xlruntime.providers import open_session

S, V = 8, 20


@pytest.fixture
def captured(fixed_bundle: Converted, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    with monkeypatch.context() as patch:
        pretend(patch)
        yield load(fixed_bundle.folder, device="cuda", cuda_graphs=True)


def captures(model: Model, purpose: str = "score") -> Counter[int]:
    """Return how many captures ONNX Runtime keeps for each thread, and check that the session knows them all."""
    session = cast(CapturedSession, model.session(purpose))
    kept = cast(SessionOnDevice, session._session).captured
    assert len(kept) == len(session._captures)
    return Counter(thread for thread, _ in kept)


def test_threads_that_feed_streams_in_turn_share_their_captures(captured: Model) -> None:
    """Compare bit for bit with plain steps on the same device."""
    plain = load(captured.folder, device="cuda")
    ids = random_ids(2, 20 * S, vocab_size=V)
    streams, expected = ([model.stream() for _ in ids] for model in (captured, plain))
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        for turn, start in enumerate(range(0, ids.shape[1], S)):
            part = ids[:, start : start + S]
            pools = (one, other) if turn % 2 else (other, one)
            feeds = [pool.submit(stream.feed, row) for pool, stream, row in zip(pools, streams, part, strict=True)]
            for feed, stream, row in zip(feeds, expected, part, strict=True):
                np.testing.assert_array_equal(feed.result().log_probs, stream.feed(row).log_probs)
    for purpose in ("score", "score_1"):
        (count,) = captures(captured, purpose).values()  # of one thread
        assert count == 2 * len(ids)  # the windows of a memory change places


def test_captures_do_not_grow(captured: Model) -> None:
    stream = captured.stream()
    for number in range(6):
        gone = captured.stream()
        for each in (gone, stream):
            each.feed(random_ids(3 * S, vocab_size=V, seed=number))
        mark = stream.memory.mark()
        captured.step("score", stream.memory, *random_ids(2, 1, S, vocab_size=V))
        stream.memory.rewind(mark)  # into new buffers
        del gone
        assert captures(captured).total() <= 4
    stream.feed(random_ids(2 * S, vocab_size=V))
    assert captures(captured).total() == 2


def test_only_inputs_that_changed_are_copied(captured: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = captured.new_memory(captured.evaluation())
    updates: list[OnDevice] = []
    update = OnDevice.update_inplace

    def counted(value: OnDevice, array: npt.NDArray[Any]) -> None:
        updates.append(value)
        update(value, array)

    for segment in range(9):
        if segment == 6:  # the memory is full
            monkeypatch.setattr(OnDevice, "update_inplace", counted)
        captured.step("score", memory, *random_ids(2, 1, S, vocab_size=V, seed=segment))
    assert len(updates) == 3 * len(("tokens", "targets"))


@pytest.mark.full
def test_closed_session_leaves_nothing_behind(captured: Model) -> None:
    before = set(threading.enumerate())
    stream = captured.stream()
    stream.feed(random_ids(2 * S, vocab_size=V))
    threads = set(threading.enumerate()) - before
    assert {thread.name.partition("_")[0] for thread in threads} == {"CUDA graphs"}
    sessions = [weakref.ref(captured.session(purpose)) for purpose in ("score", "score_1")]
    buffers = [weakref.ref(value) for value in stream.memory.values.values()]
    captured.release()
    del stream
    gc.collect()
    for thread in threads:
        thread.join(10)
    assert not any(thread.is_alive() for thread in threads)
    assert {reference() for reference in (*sessions, *buffers)} == {None}
    captured.stream().feed(random_ids(2 * S, vocab_size=V))  # it opens again


def test_forked_process_is_refused_instead_of_waiting_for_ever(
    captured: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = captured.stream()
    stream.feed(random_ids(S, vocab_size=V))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(ProviderError, match="device cuda:0: a forked process cannot use what its parent opened"):
        stream.feed(random_ids(2 * S, vocab_size=V))


def test_cuda_graphs_need_cuda_and_fixed_graphs(bytes_bundle: Converted) -> None:
    with pytest.raises(OptionError, match="cuda_graphs needs a CUDA device, but the device is cpu"):
        load(bytes_bundle.folder, cuda_graphs=True)
    with pytest.raises(OptionError, match=r"free shapes, which cuda_graphs cannot capture. Convert .* --fixed batch=1"):
        load(bytes_bundle.folder, device="cuda", cuda_graphs=True)


def test_cuda_is_asked_to_capture_and_nothing_may_run_elsewhere(
    fixed_bundle: Converted, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = pretend(monkeypatch, on_cpu=None)
    path, cuda, files = fixed_bundle.folder / "score.onnx", parse_device("cuda"), ["weights.data"]
    with pytest.raises(ProviderError, match=r"(\d+) of \1 nodes run on CPUExecutionProvider"):  # Add and Gather, too
        open_session(path, cuda, captures=True, data_files=files)
    runtime.on_cpu = ()
    open_session(path, cuda, data_files=files)
    assert [settings.get("enable_cuda_graph") for settings in runtime.asked] == ["1", None]
