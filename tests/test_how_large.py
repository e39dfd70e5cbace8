"""The arithmetic of docs/how_large.md."""

from __future__ import annotations

from click.testing import CliRunner

from benchmarks.how_large import main
from tests.helpers.pages import blocks_of


def test_page_shows_what_the_program_prints() -> None:
    (block,) = blocks_of("docs/how_large.md")
    (command,) = block.commands()
    ran = CliRunner().invoke(main, command.line.split()[3:])
    assert ran.output.rstrip("\n") == command.shown
