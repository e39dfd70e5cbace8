"""Runs over items with contexts and columns continue with --resume, and write the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scoring.conftest import Killed, Score, interrupted


@pytest.mark.parametrize(
    "options",
    [
        ("--per", "document", "--batch-size", "4"),
        ("--per", "word", "--batch-size", "2"),
        ("--per", "token", "--continuous"),
        ("--per", "line", "--continuous", "--set", "separator= – "),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_items_stopped_after_any_state(
    options: tuple[str, ...],
    ending: str,
    score: Score,
    stop_after: Callable[[int], None],
    at_each_step: None,
    tmp_path: Path,
) -> None:
    """Stop a run of documents with contexts and columns at each of its states in turn."""
    path, whole, output = tmp_path / "items.jsonl", tmp_path / f"whole.{ending}", tmp_path / f"out.{ending}"
    lengths = ((40, 3), (0, 60), (9, 30), (100, 1), (3, 0), (0, 20), (8, 8))
    items = [
        {"n": n, "rest": None if n % 2 else f"x,{n}", "before": "Die Suppe war süß. " * 6, "text": "Es war so. " * 6}
        for n in range(len(lengths))
    ]
    for item, (before, text) in zip(items, lengths, strict=True):
        item["before"], item["text"] = str(item["before"])[:before], str(item["text"])[:text]
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    given = (path, "--field", "text", "--context-field", "before", *options)
    assert score(*given, "-o", whole).code == 1
    stops = 0
    while not output.exists():
        stop_after(1 + stops % 3)
        try:
            score(*given, "-o", output, "--set", "save_every=0", "--resume")
        except Killed:
            stops += 1
        assert stops < 100
    assert stops > 3
    assert output.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (("--context-field", "other"), "--context-field was before, now other"),
        (("--context-field", "before", "--keep", "n"), "--keep was not given, now n"),
        (
            ("--context-field", "before", "--set", "separator=x"),
            "--set separator after contexts was ' ', now 'x'",
        ),
        (("--context-field", "before", "--set", "binary=true"), "--set binary was False, now True"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_other_options_of_items_are_refused(
    changed: tuple[str, ...],
    reason: str,
    score: Score,
    stop_after: Callable[[int], None],
    at_each_step: None,
    tmp_path: Path,
) -> None:
    path, output = tmp_path / "items.jsonl", tmp_path / "out.jsonl"
    item = {"n": 1, "before": "Die Suppe", "other": "Suppe", "text": "war süß. " * 9}
    path.write_text(f"{json.dumps(item)}\n" * 2)
    given = (path, "-o", output, "--field", "text", "--per", "token")
    stop_after(2)
    interrupted(score, *given, "--context-field", "before")
    assert reason in score(*given, "--resume", *changed).refusal
    score(*given, "--resume", "--context-field", "before").succeeded()
