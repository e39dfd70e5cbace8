"""The commands that `faults` lets fail: how to prepare their folders, run them, and examine what is left."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import xlexport.convert
import xlexport.scoring.resume
import xltraining.loop.run
from tests.helpers.invoking import PROSE, write_checkpoint
from tests.helpers.paths import EMPTY, golden_bundle
from xlexport.commands import run as command_line
from xlexport.terminal import INTERRUPTED
from xlruntime import load
from xlruntime.bundle import read_bundle
from xltraining.checkpoint import load_checkpoint

__all__ = ["NEW", "NONE", "OLD", "Command", "commands"]

GOLDEN = golden_bundle(EMPTY)  # reads bytes
STEPS = 15  # of a training run; the checkpoint of the last step is the only one not due to --checkpoint-every
OLD, NEW, NONE = "old", "new", "none"
TINY = ("--n-layer", "1", "--n-head", "1", "--d-model", "8", "--d-head", "4", "--d-inner", "8", "--tgt-len", "8",
        "--mem-len", "8", "--batch-size", "2", "--threads", "1", "--log-every", "1")  # fmt: skip


@dataclass(frozen=True)
class Command:
    """A command that writes below a folder.

    Attributes:
        prepare: put the old output into a fresh folder.
        run: run the command; returns the exit status.
        state: return OLD, NEW or NONE; raises an error for any other state.
        left: names that may exist in the folder when the command is done.
        again: the command that a person runs after it was stopped; None: the same.
        unfinished: further names that may exist after an error, from which `again` continues.
    """

    name: str
    prepare: Callable[[Path], None]
    run: Callable[[Path], int]
    state: Callable[[Path], str]
    left: frozenset[str]
    again: Callable[[Path], int] | None = None
    unfinished: frozenset[str] = frozenset()


def commands(base: Path, wanted: Sequence[str] = ()) -> list[Command]:
    """Return the commands to try.

    Args:
        base: a folder for inputs, outside of the watched folders.
        wanted: beginnings of names; if empty, all commands.
    """
    torch.set_num_threads(1)
    (base / "prose.txt").write_bytes(PROSE * 40)
    made: list[Command] = []
    makers = {
        _of_bundles: "convert quantize",
        _of_training: "train",
        _of_scores: "score",
        _of_reports: "report",
        _of_streams: "Stream.save",
    }
    for maker, names in makers.items():
        if not wanted or any(name.startswith(word.split()[0]) for word in wanted for name in names.split()):
            made += maker(base)
    return [command for command in made if not wanted or command.name.startswith(tuple(wanted))]


def _call(*arguments: object) -> int:
    return command_line([str(argument) for argument in arguments])


def _of_bundles(base: Path) -> list[Command]:
    checkpoint = write_checkpoint(base / "tiny.pt")
    text = base / "prose.txt"
    old, new = base / "old.bundle", base / "new.bundle"
    for line in ((old, "--segment-len", "9"), (new, "--segment-len", "8")):
        if _fork_off(functools.partial(_call, "convert", checkpoint, "--threads", "1", "-o", *line)):
            raise RuntimeError("convert does not work")
    vars(xlexport.convert)["export_onnx"] = functools.partial(_copied_graphs, new)

    def bundle_state(folder: Path) -> str:
        if not (folder / "out").exists():
            return NONE
        bundle = read_bundle(folder / "out")
        assert (folder / "out" / "README.md").is_file()
        return OLD if bundle.settings.segment_len == 9 else NEW

    def old_bundle(folder: Path) -> None:
        shutil.copytree(old, folder / "out")

    def convert(folder: Path, *more: str) -> int:
        return _call("convert", checkpoint, "-o", folder / "out", "--segments", "2", "--threads", "1", *more)

    def quantize(folder: Path) -> int:
        return _call("quantize", new, "-o", folder / "out", "--dtype", "weight-int8", "--text", text, "--force",
                    "--max-delta-bits", "9", "--tokens", "2048", "--threads", "1")  # fmt: skip

    out = frozenset({"out"})
    return [
        # A command that was killed after its work has left a bundle, which is replaced only with --force.
        Command("convert", _nothing, convert, bundle_state, out, lambda folder: convert(folder, "--force")),
        Command("convert --force", old_bundle, lambda folder: convert(folder, "--force"), bundle_state, out),
        Command("quantize", _nothing, quantize, bundle_state, out),
        Command("quantize --force", old_bundle, quantize, bundle_state, out),
    ]


def _of_training(base: Path) -> list[Command]:
    text = base / "prose.txt"
    run = ("train", text, *TINY, "--checkpoint-every", "2")

    def train(folder: Path, *more: str) -> int:
        return _call(*run, "-o", folder / "run", "--steps", str(STEPS), *more)

    def train_again(folder: Path) -> int:
        begun = (folder / "run" / "checkpoint.pt").exists()
        return train(folder, *(["--resume"] if begun else []))

    def train_state(folder: Path) -> str:
        path = folder / "run" / "checkpoint.pt"
        if not path.exists():
            return NONE
        training = load_checkpoint(path).training
        assert training is not None
        steps = [json.loads(line)["step"] for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
        if training["step"] < STEPS:
            return OLD
        assert steps == list(range(1, STEPS + 1)), steps
        visible = {file.name for file in path.parent.iterdir() if not file.name.startswith(".")}
        assert visible == {"checkpoint.pt", "log.jsonl"}, visible
        return NEW

    half = base / "half"
    if _fork_off(lambda: _half_a_run(run, half)) != INTERRUPTED:
        raise RuntimeError("train does not work")

    def half_trained(folder: Path) -> None:
        shutil.copytree(half, folder / "run")

    trained = frozenset({"run"})
    return [
        Command("train", _nothing, train, train_state, trained, train_again),
        Command("train --resume", half_trained, lambda folder: train(folder, "--resume"), train_state, trained),
    ]


def _of_scores(base: Path) -> list[Command]:
    (base / "ids.txt").write_text(" ".join(str(number % 30) for number in range(131)))
    vars(xlexport.scoring.resume)["BUSY"] = 0  # save a state after every step, even if writing takes long

    def score(folder: Path, *more: str, per: str = "token") -> int:
        return _call("score", GOLDEN, base / "ids.txt", "--ids", "-o", folder / "out.jsonl", "--per", per,
                     "--save-every", "0", "--threads", "1", *more)  # fmt: skip

    def made(per: str) -> bytes:
        if _fork_off(lambda: score(base, "--force", per=per)):
            raise RuntimeError("score does not work")
        return (base / "out.jsonl").read_bytes()

    old, new = made("document"), made("token")

    def score_state(folder: Path) -> str:
        path = folder / "out.jsonl"
        return {old: OLD, new: NEW}[path.read_bytes()] if path.exists() else NONE

    def old_scores(folder: Path) -> None:
        (folder / "out.jsonl").write_bytes(old)

    out = frozenset({"out.jsonl"})
    unfinished = frozenset({"out.jsonl.partial", "out.jsonl.partial.state"})
    names = ("score", "score --force")
    return [
        Command(names[0], _nothing, score, score_state, out, lambda folder: score(folder, "--resume"), unfinished),
        Command(names[1], old_scores, lambda folder: score(folder, "--force"), score_state, out, None, unfinished),
    ]


def _of_reports(base: Path) -> list[Command]:
    text = base / "prose.txt"

    def report(folder: Path, *more: str, title: str = "new") -> int:
        return _call("report", GOLDEN, text, "-o", folder / "page.html", "--title", title, "--threads", "1", *more)

    def made(title: str) -> bytes:
        if _fork_off(lambda: report(base, "--force", title=title)):
            raise RuntimeError("report does not work")
        return (base / "page.html").read_bytes()

    old, new = made("old"), made("new")

    def report_state(folder: Path) -> str:
        path = folder / "page.html"
        return {old: OLD, new: NEW}[path.read_bytes()] if path.exists() else NONE

    def old_page(folder: Path) -> None:
        (folder / "page.html").write_bytes(old)

    page = frozenset({"page.html"})
    return [
        Command("report", _nothing, report, report_state, page, lambda folder: report(folder, "--force")),
        Command("report --force", old_page, lambda folder: report(folder, "--force"), report_state, page),
    ]


def _of_streams(base: Path) -> list[Command]:
    def save(folder: Path, tokens: int = 30) -> int:
        stream = load(GOLDEN, threads=1).stream()
        stream.feed(list(range(tokens)))
        try:
            stream.save(folder / "stream.state")
        except OSError as error:
            print(f"Error: {error}", file=sys.stderr)
            return 1
        return 0

    def save_state(folder: Path) -> str:
        if not (folder / "stream.state").exists():
            return NONE
        stream = load(GOLDEN, threads=1).restore(folder / "stream.state")
        return {20: OLD, 30: NEW}[stream.position]

    names = frozenset({"stream.state"})
    return [Command("Stream.save", lambda folder: _done(save(folder, 20)), save, save_state, names)]


def _nothing(folder: Path) -> None:
    """Leave the folder empty, without an old output."""


def _half_a_run(run: tuple[Any, ...], half: Path) -> int:
    """Write a run that stopped after three steps."""
    update = xltraining.loop.run.TrainingRun._update

    def stopping(self: Any) -> None:
        update(self)
        if self.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    xltraining.loop.run.TrainingRun._update = stopping  # type: ignore[method-assign]
    return _call(*run, "-o", half, "--steps", str(STEPS))


def _copied_graphs(made: Path, step: Any, folder: Path, *_: Any, **__: Any) -> Any:
    """Use a saved export instead of tracing the same model again, which takes seconds."""
    bundle = read_bundle(made)
    for name in ("weights.data", *(graph.file for graph in bundle.graphs.values())):
        shutil.copyfile(made / name, folder / name)
    return dict(bundle.graphs)


def _fork_off(what: Callable[[], int]) -> int:
    """Run a function in a fork, so that no threads remain in this process, and return its exit status."""
    child = os.fork()
    if not child:
        code = 99
        try:
            code = what()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _done(code: int) -> None:
    if code:
        raise RuntimeError(f"exit status {code}")
