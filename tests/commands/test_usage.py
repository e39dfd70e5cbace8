"""Help, usage errors and exit codes of every command."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from tests.helpers.command_table import all_commands
from xlexport import __version__

if TYPE_CHECKING:
    from tests.helpers.invoking import Finished

    Invoke = Callable[..., Finished]

COMMANDS = sorted(all_commands())
# Commands that do something, including the commands of groups.
DOING: dict[str, click.Command] = {
    name: command for name, command in all_commands().items() if not isinstance(command, click.Group)
} | {
    f"{group} {name}": command
    for group, commands in all_commands().items()
    if isinstance(commands, click.Group)
    for name, command in commands.commands.items()
}


def test_commands_are_those_of_the_design() -> None:
    names = ["convert", "verify", "score", "serve", "evaluate", "generate", "inspect", "bench", "quantize", "train"]
    names += ["doctor", "compare", "completion", "demo", "context", "picture", "plot", "report", "web", "prepare"]
    names += ["configure"]
    assert sorted([*names, "translate"]) == COMMANDS


@pytest.mark.parametrize("name", sorted(DOING))
def test_command_has_help_for_itself_and_each_option(name: str, invoke: Invoke) -> None:
    shown = invoke(*name.split(), "--help").succeeded()
    assert shown.err == ""
    assert shown.out.startswith(f"Usage: xlexport {name} ")
    described = DOING[name]
    assert described.help and described.help.rstrip().endswith(".")
    for parameter in described.params:
        if isinstance(parameter, click.Option):
            assert parameter.hidden or parameter.opts[0] in shown.out
            assert parameter.help or parameter.show_default, f"{name} {parameter.opts} has neither help nor default"


@pytest.mark.parametrize("name", sorted(DOING))
def test_long_options_hold_to_one_spelling(name: str) -> None:
    for parameter in DOING[name].params:
        if isinstance(parameter, click.Option):
            for spelling in (*parameter.opts, *parameter.secondary_opts):
                assert re.fullmatch(r"--[a-z][a-z0-9]*(-[a-z0-9]+)*|-[a-z]", spelling), spelling


@pytest.mark.parametrize("name", ["score", "context", "plot bits", "evaluate", "report"])
def test_unreadable_document_is_not_a_usage_error(
    name: str, invoke: Invoke, prose: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Check that the command itself reports the document, like any other document that it cannot score."""
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may read everything
    given = ("--json",) if name == "plot bits" else ()
    shown = invoke(*name.split(), tmp_path / "absent.bundle", prose, *given)
    assert shown.code == 1 and "absent.bundle" in shown.err and "not readable" not in shown.err


def test_commands_that_report_have_json() -> None:
    writers = {"train", "report", "completion", "configure", "picture", "web"}  # their output is a file or a script
    for name in set(DOING) - writers:
        assert "--json" in [option for parameter in DOING[name].params for option in parameter.opts], name


def test_overview_and_version(invoke: Invoke) -> None:
    for arguments in (("--help",), ("-h",)):
        shown = invoke(*arguments).succeeded()
        assert all(re.search(rf"^  {name} ", shown.out, re.M) for name in COMMANDS)
    assert __version__ in invoke("--version").succeeded().out


def test_help_in_a_process_of_its_own(call: Invoke) -> None:
    assert call("score", "--help").succeeded().out.startswith("Usage: xlexport score ")


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "Usage: xlexport"),
        (["scroe"], "No such command 'scroe'. Did you mean 'score'?"),
        (["score"], "Missing argument 'BUNDLE'"),
        (["score", "bundle"], "Missing argument 'FILES...'"),
        (["score", "bundle", "text", "--jsno"], "No such option '--jsno'"),
        (["score", "bundle", "text", "--batch-size", "0"], "0 is not in the range x>=1"),
        (["score", "bundle", "text", "--mem-len", "many"], "'many' is not a valid integer"),
        (["score", "bundle", "text", "--threads", "0"], "0 is not in the range x>=1"),
        (["evaluate", "bundle"], "Missing argument 'CORPUS'"),
        (
            ["evaluate", "bundle", "text", "--protocol", "paper"],
            "'paper' is not one of 'kimiyoung', 'nvidia', 'document'",
        ),
        (["evaluate", "bundle", "text", "--batch-size", "0"], "0 is not in the range x>=1"),
        (["evaluate", "bundle", "text", "--mem-len", "0"], "Invalid value for '--mem-len': 0 is not in the range x>=1"),
        (["verify", "bundle", "checkpoint", "--segment-len", "-1"], "'--segment-len': -1 is not in the range x>=1"),
        (
            ["convert", "checkpoint", "--set=clamp_len=0"],
            "'--set clamp_len': 0 is neither -1 (no clamp) nor at least 1",
        ),
        (["generate", "bundle"], "Give either PROMPT or --file"),
        (["generate", "bundle", "prompt", "--file", __file__], "Give either PROMPT or --file"),
        (["generate", "bundle", "prompt", "-n", "-1"], "-1 is not in the range x>=0"),
        (["generate", "bundle", "--file", "/absent"], "'/absent': No such file or directory"),
        (["convert"], "Missing argument 'CHECKPOINT'"),
        (["verify", "bundle"], "Missing argument 'CHECKPOINT'"),
        (["verify", "bundle", "checkpoint", "--segments", "0"], "0 is not in the range x>=1"),
        (["inspect", "bundle", "more"], "unexpected extra argument"),
        (["bench", "bundle", "--repeats", "0"], "0 is not in the range x>=1"),
        (["plot", "bits", "bundle", "text", "-o", "x.png/"], "'x.png/' is the name of a folder. Give that of a file."),
        (["context", "bundle", "text", "--plot", "x.png/"], "'x.png/' is the name of a folder. Give that of a file."),
        (["train", "text"], "Missing option '-o' / '--output'"),
        (["train", "-o", "run", "--set=model.first_memory=full"], "'full' is not one of 'empty', 'zeros'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage(arguments: list[str], what: str, invoke: Invoke) -> None:
    shown = invoke(*arguments)
    assert (shown.code, shown.out) == (2, "")
    assert what in shown.err
    assert "Traceback" not in shown.err


def test_doctor_finds_this_installation_good(invoke: Invoke) -> None:
    shown = invoke("doctor").succeeded()
    assert re.search(r"^ok +onnxruntime +onnxruntime", shown.out, re.M)
    checks = {check["name"]: check for check in invoke("doctor", "--json").succeeded().object}
    assert all(list(check) == ["name", "ok", "detail", "hint"] for check in checks.values())
    assert {"python", "numpy", "onnxruntime", "graphs on cpu", "convert", "train"} <= checks.keys()
    assert checks["graphs on cpu"]["ok"] is True


def test_doctor_fails_if_something_must_be_repaired(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xlexport.commands.doctor.TINY_MODEL", b"not a graph")
    shown = invoke("doctor")
    assert shown.code == 1
    assert re.search(r"^FAILED +graphs on cpu", shown.out, re.M)


WITHOUT_TORCH = """
import sys
absent = ["google_crc32c", "onnx_ir", "onnx", "onnxscript", "torch"]
sys.modules.update(dict.fromkeys(absent))  # each import of them fails
from xlexport import extras
from xlexport.commands import run
is_installed = extras.is_installed
extras.is_installed = lambda name: name.replace("-", "_") not in absent and is_installed(name)
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.full
def test_commands_in_an_installation_without_torch(
    bundle: Path, prose: Path, checkpoint: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-c", WITHOUT_TORCH, *map(str, arguments)]
        return subprocess.run(line, capture_output=True, text=True, env=environment, timeout=120, check=False)

    for arguments in (
        ("score", bundle, prose),
        ("evaluate", bundle, prose, "--batch-size", "4"),
        ("generate", bundle, "It was"),
        ("inspect", bundle),
        ("doctor",),
    ):
        done = call(*arguments)
        assert done.returncode == 0, done.stderr
        assert done.stdout
    assert "missing google-crc32c, onnx-ir, onnx, onnxscript, torch" in done.stdout
    done = call("convert", checkpoint, "-o", tmp_path / "out")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "Error: google-crc32c, onnx-ir, onnx, onnxscript, torch not installed, needed here. "
        "Install them: pip install google-crc32c onnx-ir onnx onnxscript torch.\n"
    )
    done = call("train", prose, "-o", tmp_path / "run")
    assert "Install it: pip install torch." in done.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (("convert", "c.pt"), "convert"),
        (("verify", "b", "c.pt"), "convert"),
        (("bench", "b"), "convert"),
        (("demo",), "convert"),
        (("train", "t", "-o", "r"), "train"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_package_that_is_not_installed(
    command: tuple[str, ...], extra: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xlexport.extras.missing_packages", lambda name: ["torch"] if name == extra else [])
    assert "torch not installed, needed here. Install it: pip install torch." in invoke(*command).error
