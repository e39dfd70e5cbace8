"""The arithmetic of docs/how_large.md."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks.how_large import main, needs
from tests.helpers.pages import blocks_of


def test_page_shows_what_the_program_prints() -> None:
    (block,) = blocks_of("docs/how_large.md")
    (command,) = block.commands()
    ran = CliRunner().invoke(main, command.line.split()[3:])
    assert ran.output.rstrip("\n") == command.shown


def test_needs_follow_from_the_rate() -> None:
    found = needs(3600e6, 1e6, 4, 2.0, 100.0, 1000.0, 2e6)
    assert found["core hours"] == pytest.approx(1.0)
    assert found["hours on 4 cores"] == pytest.approx(0.25)
    assert found["parts"] == pytest.approx(3600)
    assert found["minutes a part"] == pytest.approx(1 / 60)
    assert found["output, TB"] == pytest.approx(3.6e-4)
