"""`xlexport doctor` checks the real installation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import xlexport.commands.doctor
from tests.helpers.invoking import Invoke
from tests.helpers.paths import GOLDEN
from xlexport.commands.doctor import TINY_MODEL, Finding, run_checks
from xlruntime.engine import Engine
from xlruntime.errors import BundleError, ProviderError
from xlruntime.known_answers import KnownAnswers


def by_name(checks: list[Finding]) -> dict[str, Finding]:
    assert len({check.name for check in checks}) == len(checks)
    return {check.name: check for check in checks}


def test_healthy_installation() -> None:
    checks = by_name(run_checks())
    for name in ("python", "numpy", "onnxruntime", "graphs on cpu", "convert", "train"):
        assert checks[name].ok is True, checks[name]
    assert "CPUExecutionProvider" in checks["onnxruntime"].detail
    assert "torch 2" in checks["convert"].detail
    assert all(check.hint for check in checks.values() if check.ok is False)


def test_tiny_model_has_the_versions_of_a_bundle(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from xlexport.export.onnx import IR_VERSION, OPSET

    model = onnx.load_from_string(TINY_MODEL)
    onnx.checker.check_model(model)
    assert (model.ir_version, model.opset_import[0].version) == (IR_VERSION, OPSET)


@pytest.mark.parametrize(("load", "ok", "hint"), [(0.0, True, ""), (99.0, None, "--threads 1 may be faster.")])
def test_other_programs_are_noticed(load: float, ok: bool | None, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(xlexport.commands.doctor, "_read", lambda path: None)
    check = by_name(run_checks())["cores"]
    assert check.ok is ok and (check.hint or "").endswith(hint)


def test_missing_onnxruntime_is_found_and_keeps_nothing_else_from_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_onnxruntime() -> None:
        raise ProviderError("ONNX Runtime is not installed.", hint="Install it: pip install onnxruntime.")

    monkeypatch.setattr(xlexport.commands.doctor, "import_onnxruntime", import_onnxruntime)
    checks = by_name(run_checks())
    assert checks["onnxruntime"] == Finding(
        "onnxruntime", False, "ONNX Runtime is not installed", "Install it: pip install onnxruntime."
    )
    assert "graphs on cpu" not in checks
    assert "memory" in checks


def test_runtime_too_old_for_the_graphs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_session(path: Path, device: object, threads: int, **options: object) -> None:
        raise BundleError(f"{path}: ONNX Runtime 1.16.0 cannot load it (Unsupported model IR version: 10). Convert.")

    monkeypatch.setattr(xlexport.commands.doctor, "open_session", open_session)
    check = by_name(run_checks())["graphs on cpu"]
    assert check.ok is False
    assert "Unsupported model IR version: 10" in check.detail
    assert check.hint == "Upgrade it: pip install -U onnxruntime."


def test_absent_extra_is_information_with_the_line_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        xlexport.commands.doctor, "missing_packages", lambda extra: ["onnx"] if extra == "convert" else []
    )
    checks = by_name(run_checks())
    assert checks["train"].ok is True
    assert checks["convert"].ok is None
    assert checks["convert"].detail.endswith("; missing onnx")
    assert checks["convert"].hint == "pip install onnx"


def test_container_limits_are_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/sys/fs/cgroup/cpu.max": "50000 100000\n",
        "/sys/fs/cgroup/memory.max": "2000000000\n",
        "/proc/meminfo": "MemTotal:  8000000 kB\nMemAvailable:  4000000 kB\n",
        "/proc/cpuinfo": "processor : 0\nflags\t\t: fpu avx2 fma avx512f\n",
    }
    monkeypatch.setattr(xlexport.commands.doctor, "_read", files.get)
    checks = by_name(run_checks())
    assert checks["cores"].ok is None
    assert "may use 0.5" in checks["cores"].detail
    assert checks["cores"].hint == "Use --threads 1."
    assert checks["memory"].detail == "4.1 GB available of 8.2 GB; container limit 2.0 GB"
    assert checks["instruction sets"].detail.endswith("avx2 fma avx512f")


def test_extras_of_sources_that_are_not_installed_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xlexport.commands.doctor, "packages_of", lambda extra: [])
    assert {by_name(run_checks())[extra].ok for extra in ("convert", "serve", "ray")} == {None}


def test_unknown_system_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xlexport.commands.doctor, "_read", lambda path: None)
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    checks = by_name(run_checks())
    assert checks["cores"].ok is True
    assert (checks["memory"].ok, checks["instruction sets"].ok) == (None, None)


@pytest.mark.parametrize(("change", "ok"), [(0.0, True), (0.01, False), (None, None)])
def test_known_answers_of_a_bundle(
    change: float | None, ok: bool | None, own_bundle: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = KnownAnswers.read

    def changed(engine: Engine) -> KnownAnswers | None:
        answers = read(engine)
        assert answers is not None
        others = [number + (change or 0) for number in answers.log_probs]
        return None if change is None else replace(answers, log_probs=tuple(others))

    monkeypatch.setattr(KnownAnswers, "read", changed)
    monkeypatch.setattr(xlexport.commands.doctor, "find_kernels", lambda ops, device: None)
    done = invoke("doctor", own_bundle)
    assert done.code == (1 if ok is False else 0)
    (line,) = [line for line in done.out.splitlines() if "known answers of " in line]
    assert line.startswith({True: "ok", False: "FAILED", None: "info"}[ok])
    assert {True: "200 known answers", False: "token 1 of the known", None: "the bundle has none"}[ok] in line


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("encoder_decoder/translator", "the bundle has none: an earlier version wrote it, or its inputs did not suit"),
        ("relative_attention/bundle", "the bundle has none: an earlier version wrote it, or its inputs did not suit"),
    ],
)
def test_bundle_without_known_answers_says_why(name: str, reason: str) -> None:
    folder = GOLDEN / name
    check = by_name(run_checks(folder))[f"known answers of {folder}"]
    assert (check.ok, check.detail) == (None, reason) and check.hint is not None
