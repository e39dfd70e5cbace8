"""Runs that stop anywhere continue with --resume, and write the same bytes as an undisturbed run."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.invoking import Finished
from tests.reliability.kill_and_resume import Outcome, Runs
from tests.scoring.conftest import Killed, Score, interrupted
from xlexport.errors import OutputExistsError
from xlexport.scoring.partial_file import PartialFile
from xlexport.scoring.resume import SavedRun
from xlexport.terminal import INTERRUPTED
from xlruntime.tokenizers.vocabulary import Vocabulary


def go_on_to_the_end(score: Score, stop_after: Callable[[int], None], output: Path, *arguments: str | Path) -> Finished:
    """Stop a run in this process at each of its states in turn, and continue it every time."""
    partial, state = (output.with_name(f"{output.name}.{name}") for name in ("partial", "partial.state"))
    stops = 0
    while not output.exists():
        stop_after(1 + stops % 3)
        try:
            done = score(*arguments, "-o", output, "--set", "save_every=0", "--resume")
        except Killed:
            assert partial.exists() and state.exists() and not output.exists()
            stops += 1
        assert stops < 100
    assert stops > 3
    assert not partial.exists() and not state.exists()
    return done


IN_FILES = [
    ("--per", "token", "--top", "2", "--batch-size", "2"),
    ("--per", "word", "--batch-size", "3"),
    ("--per", "line", "--continuous"),
    ("--per", "document", "--batch-size", "4"),
]
IN_ROWS = [
    ("--per", "document", "--batch-size", "4"),
    ("--per", "word", "--set", "punctuation=apart", "--batch-size", "2"),
    ("--per", "token", "--continuous"),
    ("--per", "line", "--continuous", "--set", "separator= – "),
]
LENGTHS = ((40, 3), (0, 60), (9, 30), (100, 1), (3, 0), (0, 20), (8, 8))  # of contexts and texts


@pytest.mark.parametrize(
    ("options", "ending", "source"),
    [
        *(
            (options, ending, source)
            for options in IN_FILES
            for ending, source in (("jsonl", "bytes"), ("csv", "text"))
        ),
        (("--per", "word", "--bos", r"\n", "--boundary", "corrected", "--top", "0"), "csv", "bytes"),
        (("--per", "region", "--bos", " ", "--boundary", "corrected"), "csv", "marks"),
        (("--per", "word"), "parquet", "bytes"),
        *((options, ending, "rows") for options, ending in zip(IN_ROWS, ("jsonl", "csv") * 2, strict=True)),
    ],
)
@pytest.mark.full
def test_stopped_after_any_state(
    options: tuple[str, ...],
    ending: str,
    source: str,
    bundle: Path,
    words_bundle: Callable[..., Path],
    score: Score,
    texts: list[Path],
    stop_after: Callable[[int], None],
    at_each_step: None,
    tmp_path: Path,
) -> None:
    if ending == "parquet":
        pytest.importorskip("pyarrow", reason="needs pyarrow")
    given: list[Path | str] = [*texts, tmp_path / "absent"]
    if source == "text":  # of characters, whose offsets differ from those of bytes
        vocabulary = Vocabulary("characters", (*"abcdefghijklmnopqrstuvwxyz _",), unk="_")
        bundle = words_bundle(vocabulary)
    if source == "marks":
        texts[0].write_bytes(b"The horse |raced past | the barn|. " * 5)
    if source == "rows":
        before, text = "Die Suppe war süß. " * 6, "Es war so. " * 6
        rows = [
            {"n": n, "rest": None if n % 2 else f"x,{n}", "before": before[:context], "text": text[:length]}
            for n, (context, length) in enumerate(LENGTHS)
        ]
        (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        given = [tmp_path / "items.jsonl", "--field", "text", "--context-field", "before"]
    whole, output = tmp_path / f"whole.{ending}", tmp_path / f"out.{ending}"
    totals = score(*given, "-o", whole, *options, bundle=bundle)
    done = go_on_to_the_end(partial(score, bundle=bundle), stop_after, output, *given, *options)
    assert (totals.code, done.code) == (1, 1)
    assert output.read_bytes() == whole.read_bytes()
    summary, expected = (
        next(line for line in ran.err.splitlines() if " documents, " in line and "±" in line) for ran in (done, totals)
    )
    assert summary.split(", ")[:3] == expected.split(", ")[:3]
    failed = [line for line in totals.err.splitlines() if "could not be scored" in line]
    assert failed and failed[0] in done.err


@pytest.mark.release
def test_killed_processes(bundle: Path, tmp_path: Path) -> None:
    """Run a few kills of tests/reliability/kill_and_resume.py."""
    runs = Runs(
        bundle,
        tmp_path,
        4000,
        0.05,
        ways=("words, three at a time", "tokens", "words of a long document, two processes"),
    )
    outcome, rng = Outcome(), random.Random(0)
    for way in (*runs.ways, *runs.ways):
        runs.kill(way, rng, outcome)
    assert outcome.different == []
    assert outcome.runs == 6 and outcome.kills > 1


@pytest.fixture
def stopped(score: Score, texts: list[Path], at_each_step: None, tmp_path: Path) -> Path:
    """Return the output path of a run that was stopped in its middle."""
    output = tmp_path / "out.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        save = SavedRun.save

        def once(self: SavedRun, *arguments: Any) -> None:
            save(self, *arguments)
            if self._output.position > 4000:
                raise Killed

        patch.setattr(SavedRun, "save", once)
        interrupted(score, *texts, "-o", output, "--per", "token")
    return output


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (("--per", "word"), "--per was token, now word"),
        (("--top", "1"), "--top was not given, now 1"),
        (("--mem-len", "9"), "mem_len was 12, now 9"),
        (("--batch-size", "2"), "--batch-size was 1, now 2"),
        (("--bos", " "), "--bos was not given, now "),
        (("--context-field", "other"), "--context-field was before, now other"),
        (("--keep", "n"), "--keep was not given, now n"),
        (("--set", "separator=x"), "--set separator after contexts was ' ', now 'x'"),
        (("--set", "binary=true"), "--set binary was False, now True"),
        (("another file",), "there were 2 inputs, now 3"),
        (("another order",), "items.jsonl is "),
        (("another content",), "items.jsonl has changed"),
        (("another bundle",), "first_memory was empty, now zeros"),
        (("another NumPy",), "NumPy was "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_changed_is_refused_with_the_reason(
    changed: tuple[str, ...],
    reason: str,
    score: Score,
    bundle: Path,
    stop_after: Callable[[int], None],
    at_each_step: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    item = json.dumps({"n": 1, "before": "Die Suppe", "other": "Suppe", "text": "war süß. " * 9})
    files = [tmp_path / "items.jsonl", tmp_path / "more.jsonl"]
    for path in files:
        path.write_text(f"{item}\n" * 2)
    line = ("-o", tmp_path / "out.jsonl", "--field", "text", "--per", "token", "--context-field", "before")
    stop_after(2)
    interrupted(score, *files, *line)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("out.*")}
    match changed:
        case ("another file",):
            refusal = score(*files, tmp_path / "absent", *line, "--resume").error
        case ("another order",):
            refusal = score(*files[::-1], *line, "--resume").error
        case ("another content",):
            files[0].write_text(f"{item}\n" * 3)
            refusal = score(*files, *line, "--resume").error
            files[0].write_text(f"{item}\n" * 2)
        case ("another bundle",):
            other = bundle.parents[1] / "pre_lnorm_same_length_zeros" / "bundle"
            refusal = score(*files, *line, "--resume", bundle=other).error
        case ("another NumPy",):
            with monkeypatch.context() as patch:
                patch.setattr("numpy.__version__", "1.0")
                refusal = score(*files, *line, "--resume").error
        case _:
            kept = line[:-2] if changed[0] == "--context-field" else line
            refusal = score(*files, *kept, *changed, "--resume").error
    assert reason in refusal and "start again with --force" in refusal
    assert {path.name: path.read_bytes() for path in tmp_path.glob("out.*")} == before


def test_remains_that_are_broken(stopped: Path, score: Score, texts: list[Path]) -> None:
    partial, state = (stopped.with_name(f"out.jsonl.{name}") for name in ("partial", "partial.state"))
    arguments = (*texts, "-o", stopped, "--resume", "--per", "token")
    content, saved = partial.read_bytes(), state.read_bytes()
    partial.write_bytes(content[:100])
    assert "100 bytes, but " in score(*arguments).error
    partial.write_bytes(content)
    state.write_bytes(saved[:-1] + bytes([saved[-1] ^ 1]))
    assert "damaged since it was saved" in score(*arguments).error
    state.write_bytes(saved)
    score(*arguments).succeeded()


def test_nothing_is_replaced_unasked(stopped: Path, score: Score, texts: list[Path], tmp_path: Path) -> None:
    arguments = (*texts, "-o", stopped, "--per", "token")
    line = score(*arguments).error
    assert (
        f"{stopped}.partial: of a run that was interrupted. Continue with --resume, or start again with --force."
        in line
    )
    score(*arguments, "--force").succeeded()
    assert [path.name for path in tmp_path.glob("out*")] == ["out.jsonl"]
    assert f"{stopped}: a file is there already. Add --force to replace it, or give another path." in (
        score(*arguments).error
    )
    done = stopped.stat()
    shown = score(*arguments, "--resume").succeeded()
    assert shown.err.startswith(f"{stopped}: already complete, so nothing was done. Options and inputs were not")
    assert stopped.stat() == done


def test_resume_before_anything_was_saved(score: Score, texts: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    score(*texts, "-o", tmp_path / "whole.jsonl").succeeded()
    (tmp_path / "out.jsonl.partial").write_text("what a killed run wrote before it saved anything")
    score(*texts, "-o", output, "--resume").succeeded()
    assert output.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_what_cannot_be_read_again_cannot_be_resumed(score: Score, tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    score("-", "-o", output, "--set", "save_every=0", stdin=b"some text of several steps").succeeded()
    assert output.exists()
    shown = score("-", "-o", tmp_path / "other.jsonl", "--resume", stdin=b"some text")
    assert shown.code == 2 and "which standard input and pipes do not allow. Give files." in " ".join(shown.err.split())


def test_wrong_options_are_refused_before_inputs_are_read(
    score: Score, texts: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("inputs are read to recognize them later, which may take minutes")

    monkeypatch.setattr("xlexport.scoring.run.describe_run", read)
    assert "--bos" in score(*texts, "--bos", "no token", "-o", tmp_path / "out.csv").error


def test_nothing_scored_leaves_no_file(score: Score, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    shown = score(tmp_path / "empty", "-o", tmp_path / "out.csv")
    assert shown.code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
    folder = tmp_path / "absent"
    line = score(tmp_path / "empty", "-o", folder / "out.csv").error
    assert line == f"Error: {folder}: no such folder to write out.csv into. Create it first."


@pytest.mark.parametrize("function", ["builtins.open", "xlexport.scoring.resume.write_state", "os.fsync"])
def test_errors_name_the_file_that_was_given(
    function: str, score: Score, texts: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Name the output, not the temporary files in which it grows."""

    def fail(*arguments: Any, **_: Any) -> None:
        raise OSError(errno.EACCES, "Permission denied", f"{tmp_path}/.hidden.tmp")

    monkeypatch.setattr(function, fail)
    line = score(*texts, "-o", tmp_path / "out.csv", "--set", "save_every=0").error
    assert line == f"Error: {tmp_path}/out.csv: Permission denied. Check its permissions."


def test_disk_that_is_full(score: Score, texts: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the previous state, and continue from it when there is space again."""
    score(*texts, "-o", tmp_path / "whole.csv", "--per", "token").succeeded()
    left = 3000

    def write(self: PartialFile, raw: bytes) -> None:
        nonlocal left
        left -= len(raw)
        if left < 0:
            raise OSError(28, "No space left on device")
        self._file.write(raw)

    with monkeypatch.context() as patch:
        patch.setattr(PartialFile, "write", write)
        shown = score(*texts, "-o", tmp_path / "out.csv", "--per", "token", "--set", "save_every=0")
    assert shown.code == 1
    assert "No space left on device" in shown.err.splitlines()[-1]
    assert not (tmp_path / "out.csv").exists()
    score(*texts, "-o", tmp_path / "out.csv", "--per", "token", "--resume").succeeded()
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.full
def test_ctrl_c_says_how_to_go_on(number: signal.Signals, bundle: Path, tmp_path: Path) -> None:
    text, output = tmp_path / "text", tmp_path / "out.csv"
    text.write_bytes(b"All work and no play makes Jack a dull boy.\n" * 20_000)
    line = [sys.executable, "-m", "xlexport", "score", str(bundle), str(text), "-o", str(output), "--per", "word"]
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # inherited: these tests may run in the background
    try:
        process = subprocess.Popen([*line, "--set", "save_every=0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        deadline = time.monotonic() + 60
        while not output.with_name("out.csv.partial.state").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (INTERRUPTED, b"")
    assert err.decode() == f"Error: interrupted; {output}.partial has what was scored. Continue with --resume.\n"


@pytest.mark.full
def test_state_does_not_grow_with_the_documents(
    bundle: Path, score: Score, at_each_step: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    partial_state = tmp_path / "out.csv.partial.state"
    sizes: list[int] = []
    save = SavedRun.save

    def measured(self: SavedRun, *arguments: Any) -> None:
        save(self, *arguments)
        sizes.append(partial_state.stat().st_size)

    monkeypatch.setattr(SavedRun, "save", measured)
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"text": f"document {n} " * 4}) + "\n" for n in range(60)))
    score(path, "--field", "text", "-o", tmp_path / "out.csv", "--per", "word", "--set", "save_every=0").succeeded()
    assert len(sizes) > 100
    assert max(sizes[10:]) <= max(sizes[:10]) + 200  # digits; 50 documents would be thousands


# FILE.partial is never written through a link, and outputs of other runs are never lost.


def a_link(partial: Path) -> None:
    partial.symlink_to(partial.with_name("victim"))


def a_second_name(partial: Path) -> None:
    partial.hardlink_to(partial.with_name("victim"))


def a_pipe(partial: Path) -> None:
    os.mkfifo(partial)


@pytest.mark.parametrize("option", ["--resume", "--force", None])
@pytest.mark.parametrize("make", [a_link, a_second_name, a_pipe])
def test_only_a_file_of_a_run_is_written_to(
    make: Callable[[Path], None], option: str | None, score: Score, texts: list[Path], tmp_path: Path
) -> None:
    """Refuse other files, because anybody who may write into the folder may have put them there."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    make(tmp_path / "out.csv.partial")
    line = score(*texts, "-o", tmp_path / "out.csv", *([option] if option else [])).error
    assert re.search(r"out.csv.partial: (a link|not a file), so no run has left it\. Remove it, or give another", line)
    assert victim.read_text() == "mine"
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("exists", [True, False])
def test_link_that_appears_before_the_run_opens_its_file(exists: bool, tmp_path: Path) -> None:
    output, victim = PartialFile(tmp_path / "out.csv"), tmp_path / "victim"
    if exists:
        victim.write_text("mine")
    output.check(force=True, resume=False)
    output.partial.symlink_to(victim)
    with pytest.raises(OutputExistsError, match="a link, so no run has left it"):
        output.open()
    assert not exists or victim.read_text() == "mine"
    assert victim.exists() == exists


@pytest.mark.parametrize("force", [True, False])
def test_output_that_another_run_has_completed_meanwhile(force: bool, tmp_path: Path) -> None:
    output = PartialFile(tmp_path / "out.csv")
    output.check(force, resume=False)
    output.open()
    output.write(b"mine")
    output.path.write_text("theirs")
    if force:
        output.publish()
        assert output.path.read_text() == "mine"
        return
    with pytest.raises(OutputExistsError, match="a file is there already"):
        output.publish()
    output.close()
    assert (output.path.read_text(), output.partial.read_text()) == ("theirs", "mine")
