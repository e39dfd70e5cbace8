"""Help, completion, usage errors and exit codes of every command."""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests.helpers.command_table import all_commands
from tests.helpers.invoking import PROSE, Invoke
from tests.helpers.pages import put_program
from tests.helpers.paths import GOLDEN
from xlexport import __version__
from xlexport.commands.long_help import LongCommand

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
    writers = {"train", "report", "run", "completion", "configure", "web"}  # their output is a file or a script
    for name in set(DOING) - writers:
        assert "--json" in [option for parameter in DOING[name].params for option in parameter.opts], name


@pytest.mark.parametrize("own", [None, "7"])
def test_threads_of_pytorch_spin_briefly_unless_the_user_says_otherwise(own: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    code = "from xlexport.commands import SPINS, main\nimport os, sys\nsys.argv = ['xlexport', '--version']\n"
    code += f"try: main()\nexcept SystemExit: assert os.environ['GOMP_SPINCOUNT'] == ({own!r} or SPINS)"
    environment |= {"GOMP_SPINCOUNT": own} if own else {}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120, stdout=subprocess.DEVNULL)


def test_overview_and_version(invoke: Invoke) -> None:
    for arguments in (("--help",), ("-h",)):
        shown = invoke(*arguments).succeeded()
        assert re.findall(r"^  ([a-z]+)  ", shown.out, re.M) == [*all_commands(), "help"]
        assert [*all_commands()][:3] == ["demo", "convert", "inspect"]  # not by their letters
    assert __version__ in invoke("--version").succeeded().out


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["picture", "bundle", "-o", "a.png"], "'picture' is no longer a command. Run `python -m experiments.picture`"),
        (["help", "translate"], "or call xlruntime.load_translator."),
        (["pictures"], "No such command 'pictures'.\n"),
        (["train", "-o", "run", "--task", "pairs"], "'--task' is no longer an option. An encoder-decoder learns pairs"),
        (
            ["train", "-o", "run", "--set=training.image_size=8"],
            "No such setting 'training.image_size'. Run `python -m experiments images` in a clone",
        ),
        ([], "Usage: xlexport"),
        (["scroe"], "No such command 'scroe'. Did you mean 'score'?"),
        (["score"], "Missing argument 'BUNDLE'"),
        (["report", "bundle", "text", "--zoom", "a"], "No such option '--zoom'.\n"),  # nothing of '--help'
        (["report", "bundle", "text", "--outp", "a"], "No such option '--outp'. Did you mean '--output'?"),
        (["score", "bundle", "text", "--batch-size", "0"], "0 is not in the range x>=1"),
        (["score", "bundle", "text", "--mem-len", "many"], "'many' is not a valid integer"),
        (
            ["evaluate", "bundle", "text", "--protocol", "paper"],
            "'paper' is not one of 'kimiyoung', 'nvidia', 'document'",
        ),
        (["evaluate", "bundle", "text", "--mem-len", "0"], "Invalid value for '--mem-len': 0 is not in the range x>=1"),
        (["verify", "bundle", "checkpoint", "--segment-len", "-1"], "'--segment-len': -1 is not in the range x>=1"),
        (
            ["convert", "checkpoint", "--set=clamp_len=0"],
            "'--set clamp_len': 0 is neither -1 (no clamp) nor at least 1",
        ),
        (["generate", "bundle"], "Give either PROMPT or --file"),
        (["generate", "bundle", "prompt", "--file", __file__], "Give either PROMPT or --file"),
        (["generate", "bundle", "prompt", "--stop", ""], "--stop is empty"),
        (["generate", "bundle", "prompt", "-n", "-1"], "-1 is not in the range x>=0"),
        (["generate", "bundle", "--file", "/absent"], "'/absent': No such file or directory"),
        (["verify", "bundle", "checkpoint", "--segments", "0"], "0 is not in the range x>=1"),
        (["inspect", "bundle", "more"], "unexpected extra argument"),
        (["plot", "bits", "bundle", "text", "-o", "x.png/"], "'x.png/' is the name of a folder. Give that of a file."),
        (["context", "bundle", "text", "--plot", "x.png/"], "'x.png/' is the name of a folder. Give that of a file."),
        (["train", "text"], "Missing option '-o' / '--output'"),
        (["train", "-o", "run", "--set=model.first_memory=full"], "'full' is not one of 'empty', 'zeros'"),
        # Options that would do nothing.
        (["web", "bundle", "-o", "site", "--port", "8000"], "--port is for --serve. Add --serve, or leave it out."),
        (["web", "bundle", "--serve", "--force"], "--force is for a site that is written. Add -o SITE"),
        (["convert", "checkpoint", "--set=max_delta_bits=0.1"], "--set max_delta_bits: only for a quantization."),
        (["convert", "checkpoint", "--ids"], "--ids is for the file of --text. Add --text"),
        (["quantize", "bundle", "-o", "small", "--ids"], "--ids is for the files of --text. Add --text"),
        (["bench", "bundle", "--weights", "x"], "--weights is for the checkpoint of --against. Add --against"),
        (["verify", "bundle", "--against", "a.py:b", "--config", "a=1"], "--config is for CHECKPOINT. Give CHECKPOINT"),
        (["score", "bundle", "text", "--include", "*.txt"], "--include selects files in folders and patterns"),
        (["evaluate", "bundle", "text", "--include", "*.txt"], "--include selects files in folders and patterns"),
        (["score", "bundle", "text", "--ids", "--set=binary=true"], "--set binary is for text, but --ids reads token"),
        (
            ["context", "bundle", "text", "--ids", "--set=max_document_bytes=9"],
            "is for rows and texts, but --ids reads",
        ),
        (["score", "bundle", "text", "--set=save_every=2"], "--set save_every is about an interrupted output file."),
        (["score", "bundle", "text", "--device=cpu", "--set=provider=X"], "--device and --set provider exclude each"),
        (["report", "bundle", "text", "--keep", ""], "--keep is for JSON lines and tables. Add --field."),
        (
            ["generate", "bundle", "It", "--temperature", "0", "--seed", "1", "--set=min_p=0"],
            "--set min_p and --seed are for random draws, but --temperature 0 takes the likeliest token.",
        ),
        (["serve", "bundle", "--batch-size", "1", "--set=shared_steps=true"], "--set shared_steps is for several"),
        (
            ["serve", "bundle", "--set=sessions=0", "--set=session_seconds=9"],
            "--set session_seconds: only for sessions, but --set sessions is 0.",
        ),
        (
            ["serve", "bundle", "--set=sessions=0", "--set=session_bytes=9", "--prefix-cache=9"],
            "--set session_bytes: only for sessions, but --set sessions is 0.",
        ),
        (
            ["serve", "bundle", "--prefix-cache=9000", "--set=request_bytes=9000"],
            "--prefix-cache is 9,000 bytes, of the 9,000 of all requests. Give fewer, or raise --set request_bytes.",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage(arguments: list[str], what: str, invoke: Invoke) -> None:
    shown = invoke(*arguments)
    assert (shown.code, shown.out) == (2, "")
    assert what in shown.err
    assert "Traceback" not in shown.err


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
from xlexport.commands import execute
is_installed = extras.is_installed
extras.is_installed = lambda name: name.replace("-", "_") not in absent and is_installed(name)
sys.exit(execute(sys.argv[1:]))
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
        (("reproduce", "text8-tf", __file__, "--model", "c.pt", "--bundle", "b"), "convert"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_package_that_is_not_installed(
    command: tuple[str, ...], extra: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xlexport.extras.missing_packages", lambda name: ["torch"] if name == extra else [])
    assert "torch not installed, needed here. Install it: pip install torch." in invoke(*command).error


# Help of long commands, and three ways to ask for it.


LONG = {name: command for name, command in all_commands().items() if isinstance(command, LongCommand)}
EXAMPLES = [(name, line) for name, command in LONG.items() for line, _ in command.examples]


@pytest.mark.parametrize(("name", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_examples_are_understood(name: str, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("run.toml", "chapter.txt"):
        Path(file).touch()
    program, command, *arguments = shlex.split(line)
    assert (program, command) == ("xlexport", name)
    with LONG[name].make_context(name, arguments, help_option_names=["-h", "--help"]) as context:  # closes files
        assert context.params


@pytest.mark.parametrize("line", [line for name, line in EXAMPLES if name in ("score", "evaluate", "context")])
def test_examples_run(line: str, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("bundle", "other.bundle"):
        Path(folder).symlink_to(GOLDEN / "post_lnorm_same_length_empty" / "bundle")
    Path("texts").mkdir()
    for file in ("book.txt", "texts/a.txt"):
        Path(file).write_bytes(PROSE)
    Path("test.txt").write_bytes(PROSE * 3)
    Path("items.csv").write_text("preamble,sentence\nIt was the best of times.,It was the worst.\n")
    arguments = shlex.split(line)[1:]
    assert invoke(*arguments).succeeded().out or Path("words.csv").exists()


@pytest.mark.parametrize("name", [*all_commands(), "plot bits", "plot attention"])
def test_three_ways_to_ask_for_help(name: str, invoke: Invoke) -> None:
    shown = invoke(*name.split(), "--help").succeeded().out
    assert shown.startswith(f"Usage: xlexport {name} ")
    for parameter in DOING[name].params if name in DOING else ():
        if isinstance(parameter, click.Option):
            assert parameter.hidden or parameter.opts[0] in shown
            assert parameter.help or parameter.show_default, f"{name} {parameter.opts} has neither help nor default"
    assert invoke(*name.split(), "-h").succeeded().out == shown
    assert invoke("help", *name.split()).succeeded().out == shown


@pytest.mark.parametrize("name", ["", *DOING])
def test_help_fits_a_page(name: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = invoke(*name.split(), "--help").succeeded().out.splitlines()
    assert sum(max(1, math.ceil(len(line) / 80)) for line in lines) <= 60  # some examples take two


def test_help_without_a_command(invoke: Invoke) -> None:
    shown = invoke("help").succeeded().out
    assert shown == invoke("--help").succeeded().out
    assert re.search("^  help +Show the help of COMMAND", shown, re.M)
    failed = invoke("help", "scroe")
    assert failed.code == 2 and "Did you mean 'score'?" in failed.err


# Completion, in the shells that are installed.


# The work of a shell when Tab is pressed after the words; then it prints its offers.
OFFERED = {
    "bash": """
source script
COMP_WORDS=({words}) COMP_CWORD={last}
_xlexport_completion xlexport
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    "fish": "source script; complete --do-complete='{line}'",
}


@pytest.fixture
def shell_folder(tmp_path: Path) -> Path:
    """Return a folder in which `xlexport` can be called by its name."""
    return put_program(tmp_path)


def offered(shell: str, words: list[str], folder: Path, script: str) -> list[str]:
    """Return what the shell offers to put in place of the last word."""
    (folder / "script").write_text(script)
    quoted = " ".join(word or "''" for word in words)
    source = OFFERED[shell].format(words=quoted, last=len(words) - 1, line=" ".join(words))
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)}
    plain = {"bash": ["--norc"], "fish": ["--no-config"]}[shell]
    done = subprocess.run(
        [shell, *plain, "-c", source], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return sorted(line.partition("\t")[0] for line in done.stdout.splitlines())  # the shells sort differently


@pytest.mark.parametrize("shell", ["bash", pytest.param("fish", marks=pytest.mark.full)])
@pytest.mark.full
def test_shell_offers_commands_and_options(shell: str, invoke: Invoke, shell_folder: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = invoke("completion", shell).out
    begun = [name for name in COMMANDS if name.startswith("co")]
    assert offered(shell, ["xlexport", "co"], shell_folder, script) == begun and len(begun) == 5
    assert offered(shell, ["xlexport", ""], shell_folder, script) == sorted(COMMANDS)
    assert offered(shell, ["xlexport", "score", "--fo"], shell_folder, script) == ["--force", "--format"]
    assert offered(shell, ["xlexport", "score", "--per", ""], shell_folder, script) == [
        *("document", "line", "region", "token", "word")
    ]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_shell_accepts_the_script(shell: str, invoke: Invoke, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(invoke("completion", shell).out)
    subprocess.run([shell, "-n", "script"], cwd=tmp_path, check=True)
