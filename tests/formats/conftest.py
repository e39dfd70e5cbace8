"""Fixtures of the tests of the register of formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.helpers.fixtures import one_thread, quiet_transformers
from xlexport.commands import run


@dataclass(frozen=True)
class Shown:
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The table's rows."""
        assert self.code == 0, self.err
        width = max(line.index("  ") for line in self.out.splitlines())
        rows = [(line[:width].rstrip(), line[width:].strip()) for line in self.out.splitlines()]
        assert all(value for _, value in rows)
        return rows


Inspect = Callable[..., Shown]


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str]) -> Inspect:
    """Run `xlexport inspect` with some arguments."""

    def call(*arguments: object) -> Shown:
        code = run(["inspect", *map(str, arguments)])
        captured = capsys.readouterr()
        return Shown(code, captured.out, captured.err)

    return call
