"""No command sends anything, writes into the home folder, or runs a file of the current folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.command_table import all_commands
from tests.helpers.each_command import COMMANDS, remote_calls, run_in, write_documents
from tests.helpers.tiers import thinned
from xlexport.extras import missing_packages

NEEDS = {"score --ray": "ray", "harness": "lm-eval", "serve": "serve", "plot": "plot"}
ASKS = {"score --ray", "train by torchrun"}  # for the address or name that this machine has
REFUSED = {"picture": "a model of images has 256 tokens"}


def test_every_command_is_tried() -> None:
    assert set(all_commands()) - {"demo"} <= set(COMMANDS)  # which takes minutes; test_demo.py has a file for it


@pytest.mark.parametrize("name", thinned(COMMANDS, ["score"]))
def test_command_alone_among_hostile_files(name: str, bundle: Path, checkpoint: Path, tmp_path: Path) -> None:
    if name in NEEDS and missing_packages(NEEDS[name]):
        pytest.skip(f"the extra {NEEDS[name]} is not installed")
    folder, home, ran, trace = (tmp_path / name for name in ("here", "home", "ran", "trace"))
    folder.mkdir()
    home.mkdir()
    write_documents(folder, ran)
    traced = None if name in ASKS else trace
    status, error = run_in(folder, home, COMMANDS[name], bundle, checkpoint, traced)
    assert (status, REFUSED.get(name, "") in error) == (int(name in REFUSED), True), error
    assert not ran.exists(), ran.read_text()
    key = ["auth_token"] if name == "score --ray" else []  # of Ray's own clusters
    assert [path.name for path in home.rglob("*") if path.is_file()] == key
    assert remote_calls(trace) == []
