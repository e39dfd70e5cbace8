"""Run the shell blocks of README.md and of the pages that users begin with; compare what they print with the pages.

Every fenced block of `RUN` is run, unless `NOT_RUN` gives the reason why it cannot be. Commands of a page run in order
in one folder (`conftest.py`). On all pages, commands and options must exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import click
import pytest

from tests.helpers.command_table import all_commands
from tests.helpers.pages import PAGES, Block, blocks_of
from tests.helpers.paths import ROOT, SHARED_DATA

RUN = [
    page for page in PAGES if page in ("README.md", "docs/scoring.md", "docs/start_converting.md") or "/start_" in page
]
INSTALLS = "installs packages: .ci/run does it"
NOT_RUN = {
    ("README.md", "python -m venv .venv && . .venv/bin/activate"): INSTALLS,
    ("README.md", "converted           checkpoint.pt in 7 s"): "output of demo: tests/commands/test_demo.py",
    ("README.md", "pip install -e ./runtime/python -e '.[cpu,convert,train,dev]' -c constraints.txt && pytest"): (
        INSTALLS
    ),
    ("docs/start_without_python.md", "$ npm install --ignore-scripts onnxruntime-node"): (
        "needs Node: tried by hand with Node 20 and onnxruntime-node"
    ),
}

# Output that depends on the machine and is not compared.
MASKS = (
    (r"[\d,.]+ tokens/s", "<speed>"),
    (r"(?m)^((?:eager )?tokens/s +).*", r"\1<speed>"),
    (r"\(≤ [\d.e-]+, 5 times the model's own float32 error\)", "(≤ 0.0001)"),
    (r"[-+]?\b\d(?:\.\d+)?e[-+]\d\d\b", "<difference by rounding>"),
    (r"(growth of the difference along the text +|error against float64 .*, ratio )[\d.]+", r"\1<ratio by rounding>"),
    (r"(?m)^(kernels +).*", r"\1<what is installed>"),
)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
CLOSE = 1e-4  # another processor sums float32 in another order: 4 digits of a score agree


def masked(text: str) -> list[str]:
    """Return the lines with single spaces, and without output that depends on the machine."""
    for pattern, instead in MASKS:
        text = re.sub(pattern, instead, text)
    return [re.sub(r" +", " ", line.rstrip()) for line in text.splitlines()]


def close(shown: str, printed: str) -> bool:
    """Return whether two numbers agree: integers exactly, others to the digits shown."""
    if "." not in shown or "." not in printed:
        return shown == printed
    value, other = (float(number.replace(",", "")) for number in (shown, printed))
    unit = 10.0 ** -len(shown.partition(".")[2])
    return abs(value - other) <= max(unit, CLOSE * abs(value)) * (1 + 1e-9)


def same_line(shown: str, printed: str) -> bool:
    """Return whether a line was printed as it is shown, in which `…` replaces any text."""
    if "…" in shown:
        start, _, end = shown.partition("…")
        return printed.startswith(start) and printed.endswith(end) and len(printed) >= len(shown) - 1
    if NUMBER.sub("#", shown) != NUMBER.sub("#", printed):
        return False
    return all(map(close, NUMBER.findall(shown), NUMBER.findall(printed)))


def same_output(shown: list[str], printed: list[str]) -> bool:
    """Return whether these lines were printed; a line `…` replaces any number of lines."""
    if not shown:
        return not printed
    if shown[0] == "…":
        return any(same_output(shown[1:], printed[skipped:]) for skipped in range(len(printed) + 1))
    return bool(printed) and same_line(shown[0], printed[0]) and same_output(shown[1:], printed[1:])


def shell_blocks(page: str) -> list[Block]:
    """Return the blocks of a page that are neither of another language nor in the table."""
    return [block for block in blocks_of(page) if not block.language and block.key not in NOT_RUN]


@pytest.mark.release
@pytest.mark.parametrize("page", [page for page in RUN if shell_blocks(page)])
def test_commands_print_what_the_page_shows(page: str, run_command: Callable[[str], str]) -> None:
    commands = [command for block in shell_blocks(page) for command in block.commands()]
    if any("alice29.txt" in command.line for command in commands) and not (SHARED_DATA / "alice29.txt").is_file():
        pytest.skip("the texts of ../shared/data are not here")
    for command in commands:
        printed = run_command(command.line)
        if command.shown:
            assert same_output(masked(command.shown), masked(printed)), f"{page}: {command.line}\n{printed}"


def test_table_has_only_blocks_that_exist() -> None:
    assert NOT_RUN.keys() - {block.key for page in RUN for block in blocks_of(page)} == set()


def test_workflow_runs_the_installs_of_the_readme() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text("utf-8").splitlines()
    installs = re.findall(r"^pip install .* && .*$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    assert len(installs) == 2
    assert [line.removeprefix("run: ") for line in map(str.strip, workflow) if line.startswith("run: pip ")] == installs


def test_all_pages_name_commands_and_options_that_exist() -> None:
    lines = [
        line for page in PAGES for block in blocks_of(page) if not block.language for line in block.text.splitlines()
    ]
    found = [
        (command, option)
        for line in lines
        for command, rest in re.findall(r"^(?:\$ )?xlexport (plot \w+|\w+)(.*?)(?:  #|$)", line)
        for option in re.findall(r"(?<![\w-])--?[a-z][\w-]*", rest)
    ]
    assert len(found) > 50
    commands = all_commands()
    plot = commands["plot"]
    assert isinstance(plot, click.Group)
    commands |= {f"plot {name}": command for name, command in plot.commands.items()}
    for command, option in found:
        known = [
            name for parameter in commands[command].params for name in (*parameter.opts, *parameter.secondary_opts)
        ]
        assert option in known, (command, option)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a 2.5193 bits, 260 tokens/s", "a 2.5194 bits, 13,674 tokens/s", True),
        ("a 2.5193 bits", "a 2.5293 bits", False),
        ("45 tokens", "46 tokens", False),
        ("45 tokens", "45 tokens\nand more", False),
        ("…\nequal   yes", "some lines\nof text\nequal yes", True),
        ("…\nequal   yes", "equal no", False),
        ("config  n_layer 2, …", "config n_layer 2, n_head 3", True),
        ("config  n_layer 2, …", "config n_layer 3, n_head 3", False),
        ("difference 2.24e-05 nats", "difference 1.1e-07 nats", True),
    ],
)
def test_comparison_can_fail(shown: str, printed: str, same: bool) -> None:
    assert same_output(masked(shown), masked(printed)) is same
