"""Commands on step models: those that need tokens refuse them by name, and the other way round; files of arrays."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xlexport
from tests.helpers.invoking import Invoke, invoke  # noqa: F401
from tests.helpers.paths import EMPTY, golden_bundle
from tests.helpers.step_bundles import give_step_answers, write_step_bundle
from tests.step_models.modules import Leaky
from tests.step_models.test_known_steps import other_count
from xlexport.errors import ArrayFileError, ParityError
from xlexport.families.step_model.inputs import input_specs
from xlexport.verification.step_models import Series, TensorDifference, random_series, read_series

MODULE = "import torch\nfrom torch import nn\n\n\nclass Own(nn.Module):\n    inputs = {'x': (4,)}\n"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_step_bundle(tmp_path_factory.mktemp("steps") / "bundle")


@pytest.mark.parametrize("command", ["score", "generate", "evaluate", "report", "context", "serve", "web"])
def test_commands_for_tokens_refuse_a_step_model(folder: Path, tmp_path: Path, invoke: Invoke, command: str) -> None:  # noqa: F811
    text = tmp_path / "text.txt"
    text.write_text("Some text.\n")
    arguments = {"serve": [], "web": ["-o", tmp_path / "web"], "report": [text, "-o", tmp_path / "report.html"]}
    error = invoke(command, folder, *arguments.get(command, [text])).error
    assert "a step model, which maps numbers to numbers; expected a language model" in error


@pytest.mark.full
def test_a_step_model_is_not_quantized_and_doctor_compares_its_answers(tmp_path: Path, invoke: Invoke) -> None:  # noqa: F811
    folder = write_step_bundle(tmp_path / "bundle")
    assert "a step model, whose outputs have no cost in bits" in invoke("quantize", folder, "-o", "small").error
    assert any("the bundle has none" in one["detail"] for one in invoke("doctor", folder, "--json").object)
    give_step_answers(folder)
    assert any(one["detail"].startswith("10 known answers") for one in invoke("doctor", folder, "--json").object)


def test_run_compares_known_answers_once(
    tmp_path: Path,
    invoke: Invoke,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = give_step_answers(write_step_bundle(tmp_path / "bundle"), other_count)
    np.savez(tmp_path / "in.npz", observation=np.zeros((5, 3), np.float32), active=np.ones(5, bool))
    line = ("run", folder, tmp_path / "in.npz", "-o", tmp_path / "out.npz", "--set", "ops=none")
    assert "step 5 of the known answers has the output counts" in invoke(*line).error
    invoke(*line, "--set", "check=off").succeeded()


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--dtype: not for a step model", ["--dtype", "int8"]),
        ("--to: not for a step model", ["--to", "torchscript"]),
        ("--tokenizer and --set eos: not for a step model", ["--tokenizer", "bytes", "--set", "eos=a"]),
        ("damaged or of another kind", ["--text", "module.py"]),
        ("no such file", ["--text", "absent.npz"]),
        ("--fixed 'batch=0'", ["--fixed", "batch=0"]),
        ("--mem-len applies to models that carry rows of memory only", ["--mem-len", "9"]),
    ],
)
def test_convert_refuses_what_is_for_tokens(
    tmp_path: Path,
    invoke: Invoke,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    options: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    body = "    def first_state(self):\n        return {'h': torch.zeros(4)}\n\n    def step(self, inputs, state):\n"
    body += "        h = 0.5 * state['h'] + inputs['x']\n        return {'y': h}, {'h': h}\n"
    (tmp_path / "module.py").write_text(f"{MODULE}\n{body}")
    error = invoke("convert", "module.py:Own", "--trust", *options)
    assert error.code
    assert words in error.err
    assert not [*tmp_path.glob("*.bundle")]


def test_verify_compares_models_of_one_kind(folder: Path) -> None:
    with pytest.raises(ParityError, match="a language model, but the model is of the architecture step_model"):
        xlexport.verify(golden_bundle(EMPTY), Leaky())
    with pytest.raises(ParityError, match=r"has x float32 \(4,\), .*expected observation float32 \(3,\), active bool"):
        xlexport.verify(folder, Leaky())
    for given in ({"segment_len": 2}, {"as_ids": True}, {"text": np.arange(4)}):
        with pytest.raises(ValueError, match="a step model"):
            xlexport.verify(folder, Leaky(), **given)


def save(path: Path, **arrays: Any) -> None:
    np.savez(path, **arrays)


def archive(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("x.npy", content)

    return write


FLOATS = np.linspace(-1, 1, 50, dtype=np.float32)


@pytest.mark.parametrize(
    ("words", "write"),
    [
        ("arrays y, expected x", lambda path: save(path, y=FLOATS)),
        ("arrays none, expected x", save),
        ("x is (2, 50, 3), expected (N) or (B, N)", lambda path: save(path, x=np.zeros((2, 50, 3)))),
        ("x is (), expected", lambda path: save(path, x=np.float32(1))),
        ("x is (0,), expected", lambda path: save(path, x=FLOATS[:0])),
        ("numbers that float32 cannot hold", lambda path: save(path, x=FLOATS / 0)),
        ("x is bool, expected float32", lambda path: save(path, x=FLOATS > 0)),
        ("holds object", lambda path: save(path, x=np.array([{}]))),
        ("holds complex", lambda path: save(path, x=FLOATS * 1j)),
        ("51 steps, but the module reads at most 50", lambda path: save(path, x=np.zeros(51))),
        ("damaged or of another kind", lambda path: path.write_bytes(b"junk")),
        ("damaged or of another kind", archive(b"\x93NUMPY\x02\x00" + b"\xff" * 4 + b"{" * 99)),
        ("more than 10,000 bytes", archive(bytes(10_001))),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero|invalid value")
def test_a_file_of_other_arrays_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, write: Callable[[Path], None]
) -> None:
    monkeypatch.setattr("xlexport.array_files.MOST_BYTES", 10_000)
    write(tmp_path / "in.npz")
    with pytest.raises(ArrayFileError, match=r"^[^\n]*in\.npz: ") as caught:
        read_series(tmp_path / "in.npz", {"x": input_specs({"x": ()})["x"].feed}, 2, 50)
    assert words in str(caught.value)


def test_series_are_read_in_segments_once_and_random_ones_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "in.npz", x=np.arange(50))
    series = read_series(tmp_path / "in.npz", {"x": input_specs({"x": ()})["x"].feed}, 2, None)
    parts = [part["x"] for part in series.segments(99, 8)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), [np.arange(50)] * 2)
    assert [part.shape[1] for part in parts][:6] == [1, 2, 3, 5, 8, 8]
    monkeypatch.setattr("xlexport.verification.step_models.MOST_NUMBERS", 1000)
    large = random_series(input_specs({"x": (4,)}), 2, 128, 1000, None)
    assert large.arrays["x"].shape[1] == 128 < large.steps
    parts = [part["x"] for part in Series({"x": np.arange(3)[None]}, "", 7).segments(99, 8)]
    assert np.concatenate(parts, axis=1).tolist() == [[0, 1, 2, 0, 1, 2, 0]]


def judged(graph: Any, model: Any, exact: Any = None) -> TensorDifference:
    """Return the difference of one tensor over segments of one row and step."""
    import torch

    difference = TensorDifference(str(np.asarray(model).dtype))
    for number, value in enumerate(model):
        double = None if exact is None else torch.tensor([exact[number]])
        difference.add(np.array([graph[number]], difference.dtype), torch.tensor(value)[None], double)
    return difference


def test_floats_are_judged_by_the_size_of_their_tensor_so_far() -> None:
    small = np.full(100, 1e-9, np.float32)
    assert judged(small, small, small).first_over is None
    assert judged(small * 1.001, small, small).first_over == 0
    growing, late = np.geomspace(1, 1e8, 100, dtype=np.float32), np.arange(100) == 10
    assert judged(growing + np.float32(0.05) * late, growing, growing).first_over is None  # about 1e4 after 50 segments
    flat = np.minimum(growing, np.where(np.arange(100) < 60, 1, 1e8)).astype(np.float32)
    assert judged(flat + np.float32(0.05) * late, flat, flat).first_over == 10  # large only later
    masked = np.where(np.arange(100) == 3, -np.inf, 1.0).astype(np.float32)
    assert judged(masked, masked, masked).first_over is None
    assert judged(masked * np.float32(1.01), masked, masked).first_over == 0  # the infinite one is no size
    assert judged(masked * np.float32(np.nan), masked, masked).first_over == 0


def test_integers_are_judged_by_the_share_that_flips() -> None:
    numbers = np.arange(100)
    assert judged(numbers, numbers, numbers).first_over is None
    assert judged(numbers + (numbers == 7), numbers, numbers).first_over == 7
    assert judged(numbers + (numbers == 7), numbers, numbers + (numbers == 9)).first_over is None  # as its own rounding
    assert judged(numbers + (numbers < 7), numbers, numbers + (numbers == 9)).first_over == 0
