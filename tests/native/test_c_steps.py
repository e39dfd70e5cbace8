"""Step models in the C library: against the same model in NumPy, in any cut, with rows, states and wrong calls."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.helpers.c_library import SANITIZED, build_c_runtime, c_runtime, find_onnxruntime
from tests.helpers.c_runtime import CError, CRuntime, CStepStream, CTensor, tensor
from tests.helpers.manifests import edit_manifest
from tests.helpers.paths import EMPTY, golden_bundle
from tests.helpers.step_bundles import FIRST_HIDDEN, run_steps, write_step_bundle
from xlruntime.state import State

pytestmark = pytest.mark.native

__all__ = ["c_runtime"]

Arrays = dict[str, npt.NDArray[Any]]


def numbers(rows: int, steps: int, seed: int = 0) -> Arrays:
    random = np.random.default_rng(seed)
    observation = random.standard_normal((rows, steps, 3)).astype(np.float32) * 3
    return {"observation": observation, "active": random.random((rows, steps)) < 0.7}


def part(inputs: Arrays, begin: int, end: int) -> Arrays:
    return {name: np.ascontiguousarray(array[:, begin:end]) for name, array in inputs.items()}


def expected(inputs: Arrays) -> Arrays:
    rows = len(inputs["active"])
    first = np.repeat(FIRST_HIDDEN[None], rows, 0), np.zeros((rows, 1), np.int64)
    action, counts, _, _ = run_steps(inputs["observation"], inputs["active"], *first)
    return {"action": action, "counts": counts}


def same(found: Arrays, wanted: Arrays) -> None:
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


def refused(code: str, said: str, call: Callable[..., object], *arguments: object) -> None:
    with pytest.raises(CError, match=said or None) as error:
        call(*arguments)
    assert error.value.code == code, error.value


@pytest.mark.parametrize("fixed", [None, {"batch": 2, "segment": 4}], ids=["free", "fixed"])
def test_any_cut_gives_the_numbers_of_the_model(c_runtime: CRuntime, tmp_path: Path, fixed: Any) -> None:
    model = c_runtime.load(write_step_bundle(tmp_path / "bundle", fixed=fixed))
    inputs = numbers(2, 23)
    whole = CStepStream.open(model, 2).run(inputs)
    for name, values in expected(inputs).items():
        assert whole[name].dtype == values.dtype
        np.testing.assert_allclose(whole[name], values, rtol=0, atol=1e-6)  # NumPy's own tanh and sums
    stream = CStepStream.open(model, 2)
    for begin, end in ((0, 1), (1, 2), (2, 7), (7, 8), (8, 23)):
        same(stream.run(part(inputs, begin, end)), part(whole, begin, end))
    assert stream.positions == [23, 23]
    assert len(CStepStream.open(model, 0).positions) == (2 if fixed else 1)
    if fixed:
        refused("option", "its graphs take 2 rows, not 3", CStepStream.open, model, 3)


def test_rows_forks_and_states(c_runtime: CRuntime, tmp_path: Path) -> None:
    model = c_runtime.load(write_step_bundle(tmp_path / "bundle"))
    stream, inputs, more = CStepStream.open(model, 3), numbers(3, 6), numbers(3, 5, seed=1)
    stream.run(inputs)
    stream.reset(1)
    stream.run(part(inputs, 0, 2))
    assert stream.positions == [8, 2, 8]
    stream.save(tmp_path / "state")
    twin, restored = stream.fork(), CStepStream.restore(model, tmp_path / "state")
    wanted = stream.run(more)
    second = {name: np.concatenate([inputs[name][1:2, :2], more[name][1:2]], 1) for name in more}
    alone = CStepStream.open(model).run(second)
    same({name: array[1:2] for name, array in wanted.items()}, {name: array[:, 2:] for name, array in alone.items()})
    for other in (twin, restored):
        same(other.run(more), wanted)
        assert other.positions == stream.positions == [13, 7, 13]
    raw = (tmp_path / "state").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    written = {"capacity": "4", "offset": "8", "length": "0", "history": "8 2 8", "position": "8 2 8", "pending": ""}
    written |= {"held": "", "begun": "false", "tokenizer": "", "segment_len": "4"}
    assert written.items() <= header["__metadata__"].items()
    assert header["hidden"]["shape"] == [3, 2] and header["count"]["dtype"] == "I64"
    stream.reset()
    same(stream.run(inputs), CStepStream.open(model, 3).run(inputs))
    size = 3 * (2 * 4 + 8) * 2
    assert c_runtime.functions.xlr_stream_memory_bytes(stream.handle) == size


def test_a_failure_leaves_the_stream_as_it_was(c_runtime: CRuntime, tmp_path: Path) -> None:
    stream = CStepStream.open(c_runtime.load(write_step_bundle(tmp_path / "bundle", max_positions=20)), 2)
    inputs, more = numbers(2, 9), numbers(2, 9, seed=1)
    stream.run(inputs)
    twin, failing = stream.fork(), {name: array.copy() for name, array in more.items()}
    for step in (0, 8):  # in the first part, and in the third
        failing["observation"][1, step, 0] = 200
        refused("bundle_graph", "data bounds", stream.run, failing)
        assert stream.positions == [9, 9]
    more["observation"][0, 8, 2] = np.nan
    refused("argument", "'observation' is not finite", stream.run, more)
    refused("too_long", "12 steps after 9, but the model takes at most 20", stream.run, numbers(2, 12))
    same(stream.run(inputs), twin.run(inputs))
    stream.reset(0)
    refused("too_long", "3 steps after 18", stream.run, numbers(2, 3))  # the other row


def test_wrong_calls(c_runtime: CRuntime, tmp_path: Path) -> None:
    model = c_runtime.load(write_step_bundle(tmp_path / "bundle"))
    stream, inputs = CStepStream.open(model, 2), numbers(2, 3)
    action, counts = np.zeros((2, 3, 2), np.float32), np.zeros((2, 3), np.int64)
    given, taken = [tensor(*item) for item in inputs.items()], [tensor("action", action), tensor("counts", counts)]
    truths = inputs["active"].view(np.uint8) * 2

    def changed(one: CTensor, **fields: Any) -> CTensor:
        return CTensor(**{name: getattr(one, name) for name in ("name", "dtype", "data", "bytes")} | fields)

    for wrong, outputs, said in [
        (given[:1], taken, "the input 'active' is missing"),
        ([given[0], given[0]], taken, "'observation' is given twice"),
        ([*given, given[0]], taken, "3 inputs, but the model has 2"),
        ([given[0], changed(given[1], name=b"reward")], taken, "'reward' is not one of the model"),
        ([given[0], changed(given[1], dtype=b"uint8")], taken, "is of 'uint8', expected bool"),
        ([given[0], changed(given[1], data=truths.ctypes.data)], taken, "neither 0 nor 1"),
        ([given[0], changed(given[1], bytes=2**64 - 1)], taken, "bytes, expected 2 times 3 steps"),
        ([given[0], changed(given[1], bytes=0)], taken, "has 0 bytes"),
        ([given[0], changed(given[1], data=None)], taken, "NULL"),
        ([given[0], changed(given[1], dtype=None)], taken, "NULL"),
        ([changed(given[0], name=None), given[1]], taken, "NULL"),
        (given, [taken[1], taken[1]], "'counts' is given twice"),
        (given, [changed(taken[0], bytes=taken[0].bytes - 4)], "the output 'action' has 44 bytes"),
        (given, [changed(taken[0], name=b"observation")], "is not one of the model"),
    ]:
        refused("argument", said, stream.call, wrong, outputs, 3)
    for steps in (0, 1, 2**63, 2**64 - 1):
        refused("argument", "steps", stream.call, given, taken, steps)
    refused("argument", "inputs is NULL", c_runtime.call, "xlr_stream_run", stream.handle, None, 2, None, 0, 3)
    assert stream.positions == [0, 0] and not action.any()
    stream.call(given, taken[:1], 3)  # the other output is not asked for
    np.testing.assert_array_equal(action, CStepStream.open(model, 2).run(inputs)["action"])
    assert not counts.any()
    refused("argument", "row is 2", stream.reset, 2)
    for rows in (2**30 + 1, 2**64 - 1):
        refused("option", "rows", CStepStream.open, model, rows)


def test_states_that_no_stream_has(c_runtime: CRuntime, tmp_path: Path) -> None:
    bundle = write_step_bundle(tmp_path / "bundle", fixed={"batch": 2, "segment": 4}, max_positions=20)
    model, file = c_runtime.load(bundle), tmp_path / "state"
    stream = CStepStream.open(model, 2)
    stream.run(numbers(2, 9))
    stream.save(file)
    state = State.read(file)
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"history": (9, 8)}, "state_damaged", "history"),
        ({"history": (9, 21), "position": (9, 21), "offset": 21}, "state_damaged", "position"),
        ({"history": (9, 10), "position": (9, 10)}, "state_damaged", "position"),  # more than the stream has read
        ({"history": 9, "position": 9}, "state_damaged", "memory"),
        ({"history": (), "position": ()}, "state_damaged", "position"),
        ({"pending": 0}, "state_damaged", "pending"),
        ({"capacity": 5}, "state_damaged", "capacity"),
        ({"length": 1}, "state_damaged", "length"),
        ({"fingerprint": "6" * 64}, "state_mismatch", "another bundle"),
    ]
    for changes, code, said in cases:
        replace(state, **changes).write(file)
        refused(code, said, CStepStream.restore, model, file)
    three = CStepStream.open(c_runtime.load(write_step_bundle(tmp_path / "free", max_positions=20)), 3)
    three.save(file)
    refused("state_mismatch", "3 rows, but the graphs take 2", CStepStream.restore, model, file)
    refused("option", "no slots", CStepStream.restore, model, file, 4)


def test_manifests_that_say_something_else_than_their_graph(c_runtime: CRuntime, tmp_path: Path) -> None:
    run = ("graphs", "run")
    for number, (place, value, code) in enumerate(
        [
            ((*run, "outputs", "action", "shape"), ["batch", "segment", 2**31 - 1, 2**31 - 1], "option"),
            ((*run, "outputs", "action", "shape"), ["batch", "segment", 3], "bundle_graph"),
            ((*run, "outputs", "action", "shape"), ["batch", "segment", "width"], "bundle_format"),
            ((*run, "outputs", "action", "shape"), ["segment", "batch"], "bundle_format"),
            ((*run, "outputs", "counts", "dtype"), "uint8", "bundle_graph"),  # of fewer bytes than the graph writes
            ((*run, "outputs", "counts", "dtype"), "float64", "bundle_graph"),
            ((*run, "inputs", "observation", "shape"), ["batch", "segment", 4], "bundle_graph"),
            ((*run, "inputs", "active", "dtype"), "uint8", "bundle_graph"),
            ((*run, "inputs", "active", "dtype"), "float16", "bundle_format"),
            ((*run, "inputs", "active"), {"feed": "tokens"}, "bundle_format"),
            ((*run, "inputs", "active"), {"feed": "input", "dtype": "bool"}, "bundle_format"),
            (("memory", 0, "shape"), ["batch", 3], "bundle_format"),  # first values have another shape
            (("memory", 1, "shape"), ["batch", 2], "bundle_graph"),
            (("memory", 1, "dtype"), "int8", "bundle_graph"),
            (("memory", 1, "layout"), "window", "bundle_format"),
            (("model", "vocab_size"), 2, "bundle_format"),
            (("steps", "score"), [], "bundle_format"),
            (("document", "restart"), True, "bundle_format"),
            (("tokenizer", "kind"), "bytes", "bundle_format"),
        ]
    ):
        folder = write_step_bundle(tmp_path / str(number))

        def change(manifest: Any, place: Any = place, value: Any = value) -> None:
            *parents, name = place
            for each in parents:
                manifest = manifest[each]
            manifest[name] = value

        edit_manifest(folder, change)

        def one_step(folder: Path = folder) -> None:
            stream = CStepStream.open(c_runtime.load(folder))
            info = stream.model.info
            shapes = {each.name.decode(): each for each in info.inputs[: info.input_count]}
            stream.run({name: np.zeros((1, 1, *each.shape[: each.axes]), each.dtype) for name, each in shapes.items()})

        refused(code, "", one_step)


def test_policy_prints_actions_and_a_table(c_runtime: CRuntime, tmp_path: Path) -> None:
    bundle, inputs = write_step_bundle(tmp_path / "bundle"), numbers(1, 30)
    rows = np.concatenate([inputs["observation"][0], inputs["active"][0][:, None]], 1)
    lines = "".join(" ".join(f"{number:.9g}" for number in row) + "\n" for row in rows.tolist())
    command: list[str | Path] = [build_c_runtime("", ("policy",)) / "policy", bundle, "300"]
    environment = {**os.environ, "XLRUNTIME_ONNXRUNTIME": str(find_onnxruntime())}
    begin = time.monotonic()
    done = subprocess.run(command, input=lines, env=environment, capture_output=True, text=True, check=True)
    assert time.monotonic() - begin > 29 / 300
    whole = CStepStream.open(c_runtime.load(bundle)).run(inputs)
    printed = np.array([line.split() for line in done.stdout.splitlines()], np.float32)
    np.testing.assert_array_equal(printed, np.concatenate([whole["action"][0], whole["counts"][0][:, None]], 1))
    for said in ("30 steps", "median", "99.9 %", "largest", "32 bytes of state"):
        assert said in done.stderr


def test_only_the_first_call_of_so_many_steps_allocates(tmp_path: Path) -> None:
    command = [build_c_runtime("", ("step_allocations",)) / "step_allocations", write_step_bundle(tmp_path / "bundle")]
    environment = {**os.environ, "XLRUNTIME_ONNXRUNTIME": str(find_onnxruntime())}
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    counts = [tuple(map(int, line.split())) for line in printed.splitlines()]
    assert [steps for steps, _ in counts] == [1, 1, 11, 11, 1, 11, 1]
    assert [bool(allocations) for _, allocations in counts] == [True, False, True, False, False, False, False], counts


@pytest.mark.parametrize("sanitizers", SANITIZED)
def test_sanitizers_find_nothing(sanitizers: str, tmp_path: Path) -> None:
    program = build_c_runtime(sanitizers, ("exercise_step_streams",)) / "exercise_step_streams"
    for name, fixed in (("free", None), ("fixed", {"batch": 3, "segment": 4})):
        command = [program, write_step_bundle(tmp_path / name, fixed=fixed), tmp_path]
        environment = {**os.environ, "XLRUNTIME_ONNXRUNTIME": str(find_onnxruntime()), **SANITIZED[sanitizers]}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), (done.stdout, done.stderr[-6000:])


def test_tokens_and_numbers_refuse_each_other(c_runtime: CRuntime, tmp_path: Path) -> None:
    steps, words = c_runtime.load(write_step_bundle(tmp_path / "bundle")), c_runtime.load(golden_bundle(EMPTY))
    info = steps.info
    assert (info.vocab_size, info.tokenizer, info.reads_text, info.setting_count) == (0, b"none", 0, 1)
    listed = [(each.name, each.dtype, each.shape[: each.axes], each.bytes) for each in info.inputs[: info.input_count]]
    assert listed == [(b"observation", b"float32", [3], 12), (b"active", b"bool", [], 1)]
    assert [each.bytes for each in info.outputs[: info.output_count]] == [8, 8] and words.info.input_count == 0
    assert steps.check().known == 0
    said = "a step model, which takes numbers, not tokens. Call xlr_stream_open_rows"
    refused("option", said, steps.generate, [1], 1)
    refused("option", said, steps.stream)
    for call, given in ((steps.score, [1]), (steps.encode, "a"), (steps.decode, [1])):
        refused("option", said, call, given)
    numbers_alone, tokens_alone = CStepStream.open(steps), words.stream()
    for name in ("flush", "preview"):
        refused("option", "Call xlr_stream_run", c_runtime.call, f"xlr_stream_{name}", numbers_alone.handle, None)
    refused("option", "takes tokens. Call xlr_stream_open", CStepStream.open, words)
    refused("option", "takes tokens", c_runtime.call, "xlr_stream_reset_row", tokens_alone.handle, 0)
    refused("option", "takes tokens", c_runtime.call, "xlr_stream_run", tokens_alone.handle, None, 0, None, 0, 1)
    assert c_runtime.functions.xlr_stream_rows(tokens_alone.handle) == 1
    tokens_alone.save(tmp_path / "tokens")
    refused("state_mismatch", "another bundle", CStepStream.restore, steps, tmp_path / "tokens")
