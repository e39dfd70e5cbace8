"""Broken manifests, states and arrays of step models are refused, and streams stay as they were."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xlruntime
from tests.helpers.manifests import edit_manifest
from tests.helpers.paths import EMPTY, golden_bundle
from tests.helpers.step_bundles import write_step_bundle
from xlruntime import StepModel
from xlruntime.state import KIND, VERSION, read_state, write_state

OBSERVATION = ("graphs", "run", "inputs", "observation")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_step_bundle(tmp_path_factory.mktemp("steps") / "bundle", max_positions=50)


@pytest.fixture(scope="session")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_step_bundle(tmp_path_factory.mktemp("steps") / "fixed", fixed={"batch": 2, "segment": 4})


@pytest.fixture(scope="session")
def model(folder: Path) -> StepModel:
    return xlruntime.load_step_model(folder)


def inputs(rows: int, steps: int) -> dict[str, Any]:
    observation = np.random.default_rng(steps).uniform(-1, 1, (rows, steps, 3)).astype(np.float32)
    return {"observation": observation, "active": np.ones((rows, steps), bool)}


def put(*path: str, value: Any) -> Callable[[Any], None]:
    """Return the change of one value of a manifest."""

    def change(manifest: Any) -> None:
        for name in path[:-1]:
            manifest = manifest[name]
        manifest[path[-1]] = value

    return change


def drop(*path: str) -> Callable[[Any], None]:
    """Return the change that removes one value of a manifest."""

    def change(manifest: Any) -> None:
        for name in path[:-1]:
            manifest = manifest[name]
        del manifest[path[-1]]

    return change


def beside(kind: str, name: str) -> Callable[[Any], None]:
    return lambda manifest: manifest[kind].update({name: copy.deepcopy(manifest[kind]["run"])})


RULES = {
    "a vocabulary": put("model", "vocab_size", value=1),
    "no vocabulary, and no run": lambda manifest: manifest.update(steps={"score": manifest["steps"]["run"]}),
    **{f"steps of {name}": beside("steps", name) for name in ("score", "generate", "jump")},
    **{f"a graph {name}": beside("graphs", name) for name in ("score", "generate", "detail", "positions", "encode")},
    "a graph positions without inputs": lambda manifest: manifest["graphs"].update(
        positions={**manifest["graphs"]["run"], "inputs": {}}
    ),
    "no graph": put("steps", "run", value=[]),
    "a tokenizer": put("tokenizer", "kind", value="bytes"),
    "a first id": put("tokenizer", "first_id", value=1),
    **{f"document {name}": put("document", name, value=True) for name in ("full_document", "bidirectional", "restart")},
    "an encoder": put("document", "encoder", value={"source_len": 9, "pad": 0, "start": 0, "end": 0}),
    "an input without dtype": drop(*OBSERVATION, "dtype"),
    "an input without shape": drop(*OBSERVATION, "shape"),
    **{f"input {dtype}": put(*OBSERVATION, "dtype", value=dtype) for dtype in ("float64", "float16", "int128", "")},
    **{
        f"input {shape}": put(*OBSERVATION, "shape", value=shape)
        for shape in ([], ["batch", 3], ["segment", "batch"], ["batch", "segment", "n"], ["batch", "segment", 2**31])
    },
    **{
        f"a feed {feed}": put(*OBSERVATION, value={"feed": feed})
        for feed in ("tokens", "targets", "constant", "memory")
    },
    "memory with a dtype": put("graphs", "run", "inputs", "hidden", "dtype", value="float32"),
    "an unread memory": drop("graphs", "run", "inputs", "hidden"),
    "no input": lambda manifest: [manifest["graphs"]["run"]["inputs"].pop(name) for name in ("observation", "active")],
    "no output": put("graphs", "run", "outputs", value={}),
    "an output of rows": put("graphs", "run", "outputs", "action", "shape", value=["batch", 2]),
    "an output of memory": lambda manifest: manifest["graphs"]["run"]["outputs"].update(
        new_hidden={"dtype": "float32", "shape": ["batch", "segment", 2]}
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_manifest_that_breaks_a_rule_is_refused(folder: Path, tmp_path: Path, rule: str) -> None:
    broken = shutil.copytree(folder, tmp_path / "broken")
    edit_manifest(broken, RULES[rule])
    with pytest.raises(xlruntime.BundleFormatError, match=r"^[^\n]*bundle.json: [^\n]*$"):
        xlruntime.load_step_model(broken)


@pytest.mark.parametrize(
    "change",
    [put("graphs", "run_1", "inputs", "active", "dtype", value="int8"), drop("graphs", "run_1", "outputs", "counts")],
)
def test_graphs_of_other_tensors_are_refused(fixed: Path, tmp_path: Path, change: Callable[[Any], None]) -> None:
    broken = shutil.copytree(fixed, tmp_path / "broken")
    edit_manifest(broken, change)
    with pytest.raises(xlruntime.BundleFormatError, match=r"with different (in|out)puts"):
        xlruntime.load_step_model(broken)


def test_each_kind_of_bundle_names_the_function_that_opens_it(folder: Path) -> None:
    for load in (xlruntime.load, xlruntime.load_translator):
        with pytest.raises(xlruntime.BundleFormatError, match=r"a step model.*xlruntime\.load_step_model\.$"):
            load(folder)
    with pytest.raises(
        xlruntime.BundleFormatError, match=r"a language model.*expected a step model.*xlruntime\.load\.$"
    ):
        xlruntime.load_step_model(golden_bundle(EMPTY))


def texts(**changed: str) -> Callable[[Any, Any], Any]:
    return lambda metadata, arrays: ({**metadata, **changed}, arrays)


def tensors(**changed: Any) -> Callable[[Any, Any], Any]:
    return lambda metadata, arrays: (metadata, {**arrays, **changed})


DAMAGES = {
    **{
        f"steps {text!r}": texts(history=text, position=text)
        for text in ("8", "8 3 1", "8 -3", "8  3", "08 3", "", "51 3")
    },
    "counters that differ": texts(history="8 4"),
    "more steps than the stream": texts(offset="7"),
    "a token": texts(pending="0"),
    "kept rows": texts(length="1"),
    "no room": texts(capacity="0"),
    "a text": texts(held="41", begun="true"),
    "a beginning": texts(begun="true"),
    "a tokenizer": texts(tokenizer="ab"),
    "a restart": texts(restart="true"),
    "rows of a tensor": tensors(hidden=np.zeros((3, 2), np.float32)),
    "a tensor's dtype": tensors(count=np.zeros((2, 1), np.int32)),
    "no number": tensors(hidden=np.full((2, 2), np.nan, np.float32)),
    "no tensor": lambda metadata, arrays: (metadata, {"count": arrays["count"]}),
}
MISMATCHES = {
    "bundle": texts(fingerprint="0" * 64),
    "version": texts(version="9"),
    "setting": texts(**{"setting.x": "1"}),
}


@pytest.mark.parametrize("damage", [*DAMAGES, *MISMATCHES])
def test_a_state_that_no_stream_has_is_refused(model: StepModel, tmp_path: Path, damage: str) -> None:
    stream = model.stream(2)
    stream.run(inputs(2, 5))
    stream.reset(1)
    stream.run(inputs(2, 3))
    stream.save(tmp_path / "state")
    assert stream.position == model.restore(tmp_path / "state").position == [8, 3]
    write_state(tmp_path / "state", *(DAMAGES | MISMATCHES)[damage](*read_state(tmp_path / "state", KIND, VERSION, "")))
    expected = xlruntime.StateDamagedError if damage in DAMAGES else xlruntime.StateMismatchError
    with pytest.raises(expected, match=r"^[^\n]+$"):
        model.restore(tmp_path / "state")


def test_graphs_of_fixed_rows_take_streams_and_states_of_these(model: StepModel, fixed: Path, tmp_path: Path) -> None:
    model = xlruntime.load_step_model(fixed)
    with pytest.raises(xlruntime.OptionError, match="expected 2"):
        model.stream(1)
    stream = model.stream()
    stream.save(tmp_path / "state")
    metadata, arrays = read_state(tmp_path / "state", KIND, VERSION, "")
    write_state(tmp_path / "state", metadata | {"history": "0", "position": "0"}, {k: v[:1] for k, v in arrays.items()})
    with pytest.raises(xlruntime.StateMismatchError, match="1 rows, but the graphs fix 2"):
        model.restore(tmp_path / "state")


def test_forked_saved_and_cut_streams_are_bit_equal(model: StepModel, tmp_path: Path) -> None:
    stream, whole = model.stream(3), inputs(3, 19)
    stream.run(whole)
    stream.save(tmp_path / "state")
    streams = [stream, stream.fork(), model.restore(tmp_path / "state")]
    expected = streams[0].run(inputs(3, 7))
    for other in streams[1:]:
        outputs = other.run(inputs(3, 7))
        assert {name: array.tobytes() for name, array in outputs.items()} == {
            k: v.tobytes() for k, v in expected.items()
        }
    cut, parts = model.stream(3), []
    for step in range(19):
        parts.append(cut.run({name: array[:, step] for name, array in whole.items()})["action"])
    np.testing.assert_allclose(np.stack(parts, axis=1), model.stream(3).run(whole)["action"], rtol=0, atol=1e-6)


def test_a_reset_row_begins_anew_and_leaves_the_others(model: StepModel) -> None:
    stream, other = model.stream(2), model.stream(2)
    stream.run(inputs(2, 9))
    other.run(inputs(2, 9))
    stream.reset(0)
    mine, fresh, same = stream.run(inputs(2, 5)), model.stream(2).run(inputs(2, 5)), other.run(inputs(2, 5))
    for name in mine:
        np.testing.assert_array_equal(mine[name], np.stack([fresh[name][0], same[name][1]]))
    assert stream.position == [5, 14]
    for row in (-1, 2, 1.0, "a"):
        with pytest.raises(xlruntime.ArgumentError, match="expected 0 to 1"):
            stream.reset(row)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("expected observation, active", {"more": 1.0}),
        ("expected observation, active", None),
        ("no array", {"observation": [[1.0], [1.0, 2.0]]}),
        ("with 2 rows and 1 step", {"observation": np.zeros((2, 0, 3)), "active": np.zeros((2, 0), bool)}),
        ("expected", {"active": np.ones((2, 6), bool)}),
        ("expected", {"observation": np.zeros((1, 5, 3))}),
        ("expected float32", {"observation": np.zeros((2, 5, 3), bool)}),
        ("expected float32", {"observation": np.zeros((2, 5, 3), complex)}),
        ("expected float32", {"observation": np.full((2, 5, 3), None)}),
        ("expected bool", {"active": np.zeros((2, 5))}),
        *[
            ("numbers that float32 cannot hold", {"observation": np.full((2, 5, 3), n)})
            for n in (np.nan, -np.inf, 1e300)
        ],
    ],
)
def test_wrong_arrays_are_refused_and_the_stream_stays(model: StepModel, words: str, changed: Any) -> None:
    stream, twin = model.stream(2), model.stream(2)
    with pytest.raises(xlruntime.ArgumentError, match=words):
        stream.run(inputs(2, 5) | changed if changed else changed)
    np.testing.assert_array_equal(stream.run(inputs(2, 5))["action"], twin.run(inputs(2, 5))["action"])


@pytest.mark.parametrize("which", ["folder", "fixed"])
def test_a_failing_part_leaves_the_stream_as_it_was(request: pytest.FixtureRequest, which: str) -> None:
    model = xlruntime.load_step_model(request.getfixturevalue(which))
    stream, twin = model.stream(2), model.stream(2)
    for each in (stream, twin):
        each.run(inputs(2, 3))
    failing = inputs(2, 10)
    failing["observation"][0, 9, 0] = 100  # in the last part
    with pytest.raises(xlruntime.BundleGraphError):
        stream.run(failing)
    assert stream.position == [3, 3]
    np.testing.assert_array_equal(stream.run(inputs(2, 5))["action"], twin.run(inputs(2, 5))["action"])


def test_a_row_ends_at_the_most_steps_and_goes_on_once_reset(model: StepModel) -> None:
    stream = model.stream(2)
    stream.run(inputs(2, 40))
    stream.reset(0)
    stream.run(inputs(2, 10))
    with pytest.raises(xlruntime.TooLongError, match="a row of 51 steps, but the model reads at most 50"):
        stream.run(inputs(2, 1))
    stream.reset(1)
    assert stream.run(inputs(2, 1))["counts"].tolist() == [[11], [1]]


@pytest.mark.parametrize("rows", [0, -1, 2.5, "a", True])
def test_rows_are_a_number(model: StepModel, rows: Any) -> None:
    with pytest.raises(xlruntime.OptionError):
        model.stream(rows)
