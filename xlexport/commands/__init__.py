"""The command line: one file for each command, imported only when the command runs.

Data goes to stdout, everything else to stderr. Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
`verify` answers as `diff`: 0 equal, 1 unequal, 2 not compared.
"""

from __future__ import annotations

import difflib
import importlib
import io
import itertools
import logging
import os
import sys
import warnings
from collections.abc import Sequence

import click

from xlexport.children import environment_of_children
from xlexport.commands.signals import handle_signals
from xlexport.extras import disable_telemetry
from xlexport.terminal import INTERRUPTED, WARNINGS, Failure, encode_output, failure, tell_problem, tell_usage
from xlruntime import __version__

__all__ = ["LazyGroup", "cli", "execute", "main"]

# Short help of each command, so that `xlexport --help` imports none of them; in the order of a first day.
GROUPS = {
    "Convert": {
        "demo": "Convert, verify and run the sample checkpoint.",
        "convert": "Convert CHECKPOINT to a bundle, and verify it.",
        "inspect": "Check the bundle or checkpoint at PATH, and show its contents.",
        "verify": "Compare BUNDLE with the trained model in CHECKPOINT.",
        "quantize": "Write BUNDLE in a lower precision.",
        "configure": "Write a copy of BUNDLE with other evaluation settings.",
    },
    "Use a bundle": {
        "score": "Score FILES with BUNDLE, each as one document of any length.",
        "report": "Write a web page that colours text by surprisal.",
        "compare": "Compare two tables of score, or two conditions in one.",
        "generate": "Continue PROMPT with BUNDLE.",
        "run": "Run a step model on a file of arrays.",
        "serve": "Answer HTTP requests for scores and continuations.",
        "web": "Write a static site that colours text while you write it.",
    },
    "Measure": {
        "evaluate": "Evaluate CORPUS in parallel streams, as published scores do.",
        "reproduce": "Run the protocol of a published score, and compare.",
        "context": "Measure how far BUNDLE's memory reaches.",
        "plot": "Draw scores along documents, or attention.",
        "bench": "Compare BUNDLE's speed with what the machine can do.",
    },
    "Train": {
        "prepare": "Turn text FILES into token ids for training.",
        "train": "Train a language model on text FILES or prepared data.",
    },
    "This program": {
        "doctor": "Check the installation and suggest fixes.",
        "completion": "Print the script that completes commands in a shell.",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
# Commands of the version before, with what to do instead.
REMOVED = {
    "picture": "Run `python -m experiments.picture` in a clone of xlexport.",
    "translate": "Run `python -m experiments.translate` in a clone of xlexport, or call xlruntime.load_translator.",
}

HELP = "Show the help of COMMAND, as COMMAND -h does."  # `LazyGroup.parse_args` reads it
# How often a thread of PyTorch (GNU OpenMP) looks for work before it sleeps; its default is 300,000. Beside two busy
# loops, two threads then take 1.1 times as long as one, instead of 1.7 times. On a quiet machine they lose 1 %.
SPINS = "3000"
LIKE = 0.7  # similarity, from 0 to 1, of an unknown option and the one that an error suggests


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command is needed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read `help COMMAND` as `COMMAND --help`."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"xlexport.commands.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command in the arguments; for an unknown one suggest similar names, or what replaces it."""
        if args[0] in REMOVED:
            raise click.UsageError(f"'{args[0]}' is no longer a command. {REMOVED[args[0]]}", ctx)
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:  # super() imports all commands to find similar names
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in their groups without importing them."""
        width = max(map(len, COMMANDS))
        for title, commands in {**GROUPS, "This program": GROUPS["This program"] | {"help": HELP}}.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__)
def cli() -> None:
    """Convert recurrent language models to ONNX and score text of any length with them, without PyTorch."""


def execute(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status.

    Every expected failure is one line on standard error: a sentence, or with `--json` an object.
    """
    as_json = "--json" in itertools.takewhile(lambda argument: argument != "--", arguments)
    warnings.showwarning = lambda message, *_, **__: tell_problem(f"Warning: {message}")
    for package in ("xlexport", "xlruntime"):
        logging.getLogger(package).addHandler(WARNINGS)
    try:
        result = cli.main(list(arguments), prog_name="xlexport", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption) and error.possibilities:
            error.possibilities[:] = [option for option in error.possibilities if _is_like(error.option_name, option)]
        if as_json:
            Failure(error.format_message(), None, type(error).__name__).show(as_json)
        else:
            tell_usage(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        message = "interrupted; no unfinished output was left."
        Failure(message, "Run the command again.", "KeyboardInterrupt").show(as_json)
        return INTERRUPTED
    except Exception as error:
        expected = failure(error)
        if expected is None:
            raise
        expected.show(as_json)
        return expected.status


def _is_like(name: str, option: str) -> bool:
    """Return whether an option may be meant; click also compares the dashes, and so finds '--help' like '--keep'."""
    words = name.lstrip("-"), option.lstrip("-")
    return words[1].startswith(words[0]) or difflib.SequenceMatcher(None, *words).ratio() >= LIKE


def _open_standard_streams() -> None:
    """Open the standard streams that the caller closed: reading and writing them fail, but stderr is discarded.

    Otherwise, the next file that the process opens would get their number.
    """
    for number, (name, flag) in enumerate((("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flag)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            raw = io.FileIO(number, "r" if number == 0 else "w", closefd=False)
            setattr(sys, name, io.TextIOWrapper(raw, "utf-8", write_through=True))


def main() -> None:
    """Run the `xlexport` command and exit with its status."""
    _open_standard_streams()
    encode_output()
    handle_signals()
    os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # before a command loads PyTorch
    disable_telemetry()
    with environment_of_children():  # also of processes that libraries start
        status = execute(sys.argv[1:])
        try:
            sys.stdout.flush()
        except OSError:  # Python would try again at its end, and exit with status 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(status)
