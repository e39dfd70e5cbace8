"""Help of long commands: options under headings, and examples that are right; `-h` and `help` everywhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from tests.helpers.command_table import all_commands
from tests.helpers.invoking import PROSE, Invoke
from tests.helpers.paths import GOLDEN
from xlexport.commands.long_help import HEADINGS, LongCommand

LONG = {name: command for name, command in all_commands().items() if isinstance(command, LongCommand)}
EXAMPLES = [(name, line) for name, command in LONG.items() for line, _ in command.examples]


def headings(shown: str) -> list[str]:
    return re.findall(r"^(\w.*):$", shown, re.MULTILINE)


@pytest.mark.parametrize("name", LONG)
def test_every_option_has_a_heading(name: str, invoke: Invoke) -> None:
    options = [option for option in LONG[name].params if isinstance(option, click.Option)]
    assert not [option.name for option in options if LONG[name].heading_of(option) == "Other options"]
    *shown, last = headings(invoke(name, "-h").succeeded().out)
    assert last == "Other options"  # --help alone
    known = [heading for heading in HEADINGS if heading in shown]
    assert [heading for heading in shown if heading in HEADINGS] == known


@pytest.mark.parametrize(("name", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_examples_are_understood(name: str, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").touch()
    program, command, *arguments = shlex.split(line)
    assert (program, command) == ("xlexport", name)
    assert LONG[name].make_context(name, arguments).params


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
    assert invoke(*name.split(), "-h").succeeded().out == shown
    assert invoke("help", *name.split()).succeeded().out == shown


def test_help_without_a_command(invoke: Invoke) -> None:
    shown = invoke("help").succeeded().out
    assert shown == invoke("--help").succeeded().out
    assert "`xlexport help COMMAND` or `xlexport COMMAND -h` shows" in shown
    failed = invoke("help", "scroe")
    assert failed.code == 2 and "Did you mean 'score'?" in failed.err
