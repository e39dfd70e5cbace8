"""Settings without an option of their own: `--set NAME=VALUE` and `--help-settings`."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.helpers.command_table import all_commands
from tests.helpers.invoking import Invoke
from xlexport.commands import cli
from xlexport.commands.long_help import LongCommand, headed
from xlexport.commands.settings import declared, settings_of
from xlexport.graph_proof.options import GraphOptions
from xlexport.scoring.score_options import InputOptions, ScoreOptions
from xlexport.serve.options import ServeLimits
from xlruntime import LoadOptions
from xltraining.config_fields import Option, options_of

MOST = 300  # visible options of all commands together


@click.command(cls=LongCommand)
@click.option("--size", type=int)
@headed(
    "Shape",
    declared(Option("width", "integer", "How wide.", minimum=2), default=3, show_default=True),
    declared(Option("pads", "integers", "Where.")),
    declared(Option("round", "boolean", "Whether it is round.")),
    declared(Option("colour", "choice", "Of the surface.", choices=("red", "blue"))),
)
def shape(**values: Any) -> None:
    """Print its settings."""
    click.echo(values)


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(shape, arguments)
    return done.exit_code, done.output


def test_settings_are_typed_and_the_last_of_a_name_counts() -> None:
    arguments = ("--set", "width=7", "--set", "pads=1,2", "--set", "round=true", "--set", "width = 8")
    assert run(*arguments) == (0, "{'size': None, 'width': 8, 'pads': (1, 2), 'round': True, 'colour': None}\n")
    assert run() == (0, "{'size': None, 'width': 3, 'pads': None, 'round': None, 'colour': None}\n")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("width=1",), "Invalid value for '--set width': 1 is not in the range x>=2."),
        (("round=maybe",), "Invalid value for '--set round': 'maybe' is not a valid boolean."),
        (("colour=green",), "Invalid value for '--set colour': 'green' is not one of 'red', 'blue'."),
        (("pads=1,x",), "Invalid value for '--set pads': '1,x' is not a list of integers separated by commas."),
        (("widht=1",), "No such setting 'widht'. Did you mean 'width'?"),
        (("size=1",), "No such setting 'size'. It is an option: --size."),
        (("zebra=1", "width"), "No such setting 'zebra'. Expected NAME=VALUE after --set, found 'width'."),
    ],
)
def test_wrong_settings_are_refused(overrides: tuple[str, ...], message: str) -> None:
    code, output = run(*(part for override in overrides for part in ("--set", override)))
    assert code == 2 and f"Error: {message}" in output


def test_flag_of_a_setting_is_answered_with_its_name() -> None:
    for flag in ("--round", "--no-round"):
        assert f"No such option '{flag}'. It is a setting: --set round=VALUE." in run(flag)[1]
    assert "It is a setting" not in run("--zebra")[1]


def test_settings_are_listed_by_heading_and_not_in_help() -> None:
    shown = run("--help-settings")[1]
    assert shown.startswith("Shape:\n  width=") and "[default: 3; x>=2]" in shown
    assert "colour=[red|blue]" in shown
    shown = run("--help")[1]
    assert "--set NAME=VALUE" in shown and "width" not in shown


def test_same_settings_in_all_commands(invoke: Invoke) -> None:
    model = {"clamp_len", "same_length", "n_hashes"}
    names = {name: {setting.setting for setting in settings_of(command)} for name, command in all_commands().items()}
    runtime, reading, scoring, limits = map(settings_in, (LoadOptions, InputOptions, ScoreOptions, ServeLimits))
    assert names["score"] == model | runtime | scoring
    assert names["verify"] == model | runtime | {"checkpoint_format"} | settings_in(GraphOptions)
    assert names["evaluate"] == model | runtime | reading | {"sentences"}
    assert names["serve"] == model | runtime | limits | {"prefix", "grace", "shared_steps"}
    assert names["configure"] == model
    assert names["convert"] > names["quantize"] - {"tokens"} | model | {"licence", "data", "intended_use"}
    for name, settings in names.items():
        if settings:
            shown = invoke(name, "--help-settings").succeeded().out
            assert all(f"{setting}=" in shown for setting in settings)


def settings_in(kind: type[Any]) -> set[str]:
    return {option.name for option in options_of(kind).values() if option.help and not option.common}


def test_command_line_has_few_options() -> None:
    commands: list[click.Command] = [cli, *all_commands().values()]
    groups = [command for command in commands[1:] if isinstance(command, click.Group)]
    commands += [command for group in groups for command in group.commands.values()]
    options = [one for command in commands for one in command.params if isinstance(one, click.Option)]
    assert len([option for option in options if not option.hidden]) <= MOST
