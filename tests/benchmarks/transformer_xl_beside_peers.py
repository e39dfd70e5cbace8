"""Print the speed of a Transformer-XL bundle beside the same weights in PyTorch: eager, compiled and traced.

    python tests/benchmarks/transformer_xl_beside_peers.py [--case 80/2100] [--folder KEPT] [--json FILE]

The enwik8 shape: 12 layers of width 512, 8 heads of 64, d_inner 2048, 256 bytes, random weights, one document. A case
is segment / memory; `1/2100 generate` gives the logits of the next token. `free` is published evaluation (memory 2,100,
the same context length for all tokens, distances clamped at 820): ours in segments of several lengths, as its scores do
not depend on them, and Hugging Face's model in the published segments of 80; times of a token are compared.

Every side runs in a process of its own, warm, with full memory, in turns. SGEMM (a 2048-cubed matrix product) and
reading speed are measured before and after each round; the floor of a step is the larger of its arithmetic at the best
SGEMM and its bytes (weights, memories, positional keys) at the best reading speed. The sides walk the same text from
the same beginning, so their scores are compared too: `difference` is the largest of one token to the bundle's, in nats.

Other programs on the machine slow PyTorch's threads far more than ONNX Runtime's, as they wait for each other in every
operator: figures of a machine whose SGEMM is not that of a quiet one say little. `--tiny` is a small shape, to try the
command out. `torch.compile` needs a C++ compiler. Needs the extras cpu, convert and dev.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from tests.benchmarks.sides import Side, Turn, code_digest, machine, medians, peaks, run_once, sgemm, sides_of
from tests.benchmarks.transformer_xl_sides import (
    Case,
    hugging_face,
    our_eager,
    ours,
    write_bundle,
    write_checkpoint,
)

SHAPE = {"n_token": 256, "n_layer": 12, "d_model": 512, "n_head": 8, "d_head": 64, "d_inner": 2048}
TINY = {"n_token": 256, "n_layer": 2, "d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 128}
CASES = {
    "80/2100": Case(80, 2100),
    "128/1600": Case(128, 1600),
    "128/128": Case(128, 128),
    "512/512": Case(512, 512),
    "1/2100": Case(1, 2100),
    "1/2100 generate": Case(1, 2100, purpose="generate"),
    "free": Case(80, 2100, same_length=True, clamp_len=820),
}
FREE_SEGMENTS = (80, 160, 320, 640, 1280)
PEERS: dict[str, tuple[Callable[..., Any], str]] = {
    "Hugging Face eager": (hugging_face, "eager"),
    "Hugging Face torch.compile": (hugging_face, "compiled"),
    "Hugging Face TorchScript": (hugging_face, "traced"),
    "our eager model": (our_eager, "eager"),
    "our eager model, torch.compile": (our_eager, "compiled"),
}
OURS = "bundle"


@click.command(help=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
@click.option("--case", "names", multiple=True, type=click.Choice(list(CASES)), help="Default: all. May be repeated.")
@click.option("--peer", "peers", multiple=True, type=click.Choice(list(PEERS)), help="Default: all. May be repeated.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(1), help="Steps of a side in a round.")
@click.option("--threads", default=os.cpu_count() or 1, show_default=True, type=click.IntRange(1))
@click.option("--tiny", is_flag=True, help="A small shape, to try the command out.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep checkpoint and bundle there, or use them.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write figures there; its other cases stay.")
def main(
    names: tuple[str, ...],
    peers: tuple[str, ...],
    rounds: int,
    repeats: int,
    threads: int,
    tiny: bool,
    folder: Path | None,
    file: Path | None,
) -> None:
    """Measure and print case by case."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, bundle = prepared(folder or Path(scratch), TINY if tiny else SHAPE)
        for name in names or CASES:
            case = CASES[name]
            if name == "free":
                makers = {f"{OURS}, segments of {each}": _own(bundle, threads, case, each) for each in FREE_SEGMENTS}
                makers["Hugging Face eager"] = _peer(folder, threads, case, hugging_face, "eager")
            else:
                makers = {OURS: _own(bundle, threads, case, case.segment_len)}
                makers |= {peer: _peer(folder, threads, case, *PEERS[peer]) for peer in peers or PEERS}
            figures = measure(makers, rounds, repeats, threads)
            figures |= {"case": asdict(case), "shape": TINY if tiny else SHAPE}
            print_table(name, figures)
            if file is not None:
                add_to_json(file, name, figures)


def prepared(folder: Path, shape: dict[str, int]) -> tuple[Path, Path]:
    """The folder with a checkpoint of this shape, and a bundle that today's code made of it; what is there is used."""
    folder = folder / "-".join(map(str, shape.values()))
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "checkpoint").exists():
        run_once(write_checkpoint, folder / "checkpoint", shape)
    bundle = folder / f"bundle-{code_digest()}"
    if not bundle.exists():
        write_bundle(folder / "checkpoint", bundle)
    return folder, bundle


def _own(bundle: Path, threads: int, case: Case, segment_len: int) -> Callable[[], Side]:
    return lambda: Side(ours, bundle, threads, {**case.plain(), "segment_len": segment_len})


def _peer(folder: Path, threads: int, case: Case, function: Callable[..., Any], form: str) -> Callable[[], Side]:
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    return lambda: Side(function, folder / "checkpoint", threads, case.plain(), form, environment=cache)


def measure(makers: Mapping[str, Callable[[], Side]], rounds: int, repeats: int, threads: int) -> dict[str, Any]:
    """Figures of all sides, measured in turns."""
    figures: dict[str, Any] = {"machine": machine(), "threads": threads, "rounds": rounds, "repeats": repeats}
    with sides_of({"SGEMM": lambda: Side(sgemm, threads), **makers}) as sides:
        floor = sides.pop("SGEMM")
        measured, turns = [peaks(floor)], {name: list[Turn]() for name in sides}
        for _ in range(rounds):
            for name, side in sides.items():
                turns[name].append(side.measure(repeats))
            measured.append(peaks(floor))
        facts = {name: side.facts for name, side in sides.items()}
    figures["peaks"] = measured
    gflops, read = (max(each[key] for each in measured) for key in ("gflops", "read_gb_per_s"))
    first = next(iter(sides))
    figures["sides"] = {}
    for name, each in turns.items():
        figures["sides"][name] = row = {**medians(each), **facts[name], "seconds": [turn.seconds for turn in each]}
        if "flops" in row:
            row["arithmetic_floor"] = row["flops"] / gflops / 1e9
            row["bytes_floor"] = row["bytes"] / read / 1e9
        scores = [np.array(turns[side][-1].scores) for side in (name, first)]
        if scores[0].shape == scores[1].shape:
            row["max_abs_log_prob_diff"] = float(np.abs(scores[0] - scores[1]).max())
    return figures


def print_table(name: str, figures: Mapping[str, Any]) -> None:
    """One line a side; ratios to the best of ours, by token."""
    sides = figures["sides"]
    own = [side for side_name, side in sides.items() if side_name.startswith(OURS)]
    best, median = (min(side[key] / side["tokens"] for side in own) for key in ("best", "median"))
    gflops = [each["gflops"] for each in figures["peaks"]]
    print(
        f"{name}: SGEMM {min(gflops):.0f} to {max(gflops):.0f} GFLOP/s, {figures['threads']} threads, "
        f"load {figures['machine']['load_average']:.1f} at the start"
    )
    print(
        f"  {'side':36}{'best ms':>9}{'median':>9}{'user':>9}{'system':>8}{'ms/token':>10}"
        f"{'x ours: best':>14}{'median':>8}{'x floor':>9}{'difference':>12}"
    )
    for side_name, side in sides.items():
        floor = max(side.get("arithmetic_floor", 0), side.get("bytes_floor", 0))
        by_floor = f"{side['best'] / floor:9.2f}" if floor else f"{'':9}"
        difference = side.get("max_abs_log_prob_diff")
        print(
            f"  {side_name:36}{side['best'] * 1e3:9.1f}{side['median'] * 1e3:9.1f}{side['user'] * 1e3:9.1f}"
            f"{side['system'] * 1e3:8.1f}{side['best'] / side['tokens'] * 1e3:10.3f}"
            f"{side['best'] / side['tokens'] / best:14.2f}{side['median'] / side['tokens'] / median:8.2f}{by_floor}"
            + (f"{difference:12.1e}" if difference is not None else "")
        )
    for side_name, side in sides.items():
        if "compile_seconds" in side:
            print(f"  {side_name}: compiled in {side['compile_seconds']:.0f} s, {side['graph_breaks']} graph breaks")


def add_to_json(file: Path, name: str, figures: Mapping[str, Any]) -> None:
    """Put a case's figures into the file, whole or not at all."""
    cases = json.loads(file.read_text()) if file.exists() else {}
    beside = file.with_name(f".{file.name}.new")
    beside.write_text(json.dumps({**cases, name: figures}, indent=1) + "\n")
    os.replace(beside, file)


if __name__ == "__main__":
    main()
