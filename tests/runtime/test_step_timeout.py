"""A step that does not end is ended, and the model goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.helpers.made_graphs import constant, graph, made_bundle, model
from xlruntime import BundleError, Model, OptionError, StepTimeoutError, load
from xlruntime.deadline import Deadline
from xlruntime.providers import import_onnxruntime

node = helper.make_node


def endless() -> onnx.ModelProto:
    """A loop of targets[0, 0]^8 rounds, each of a small product: of 2^62 rounds for the id 255, of none for 0."""
    body = helper.make_graph(
        [node("Identity", ["go_on"], ["still"]), node("Sin", ["x"], ["y"])],
        "body",
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
        ],
    )
    nodes = [
        node("ReduceMax", ["targets"], ["largest"], keepdims=0),
        node("Equal", ["largest", "last"], ["whether"]),
        node("Where", ["whether", "many", "none"], ["rounds"]),
        node("Cast", ["targets"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["f", "scale"], ["m"]),
        node("Loop", ["rounds", "true", "m"], ["log_prob"], body=body),
    ]
    held = {"last": np.int64(255), "many": np.int64(2**62), "none": np.int64(0), "true": np.array(True)}
    values = [constant(name, value) for name, value in held.items()] + [constant("scale", np.float32(-0.01))]
    return model(graph(nodes, values))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return made_bundle(tmp_path / "bundle", {"score": endless()})


@pytest.fixture
def opened(bundle: Path) -> Model:
    return load(bundle, threads=1, step_timeout=0.1)


def test_step_without_end_is_ended(opened: Model) -> None:
    stream = opened.stream()
    scores = stream.feed([1, 2, 3]).log_probs
    with pytest.raises(StepTimeoutError, match=r"score\.onnx: a step took longer than step_timeout, 0\.1 seconds\."):
        stream.feed([4, 255])
    assert isinstance(StepTimeoutError(), TimeoutError)
    np.testing.assert_array_equal(opened.stream().feed([1, 2, 3]).log_probs, scores)


def test_each_thread_has_its_own_time(opened: Model) -> None:
    """Others go on while one is ended."""
    outcomes: list[Any] = []

    def endless() -> None:
        try:
            opened.stream().feed([1, 255])
        except StepTimeoutError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=endless) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        opened.stream().feed([1, 2, 3])
    assert len(outcomes) == 3


def test_other_errors_stay_what_they_are(opened: Model) -> None:
    memory = opened.new_memory(opened.bundle.settings)
    with pytest.raises(BundleError, match="cannot run it"):
        opened.step("score", memory, np.zeros((1, 2), np.int64), np.zeros((1, 2), np.float32))  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_time_that_is_none_is_refused(seconds: float, bundle: Path) -> None:
    with pytest.raises(OptionError, match=r"step_timeout is .*, expected a positive number of seconds"):
        load(bundle, step_timeout=seconds)


def test_one_thread_looks_after_all_steps_and_ends_when_there_are_none() -> None:
    deadline = Deadline(0.01)
    options = [import_onnxruntime().RunOptions() for _ in range(20)]
    before = set(threading.enumerate())
    for each in options:
        deadline.begin(each)
    (watcher,) = set(threading.enumerate()) - before
    for each in options:
        deadline.end(each)
    watcher.join(60)
    assert not watcher.is_alive()
    deadline.begin(options[0])  # which starts another
    deadline.end(options[0])
    assert not options[0].terminate


def test_no_thread_without_a_deadline(bundle: Path) -> None:
    before = set(threading.enumerate())
    load(bundle, threads=1).stream().feed([1, 2, 3])
    assert set(threading.enumerate()) <= before
