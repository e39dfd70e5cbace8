"""Compare the speed of a Transformer-XL bundle with the same weights in PyTorch: eager, compiled and traced.

    python -m benchmarks.transformer_xl_beside_peers [--case 80/2100] [--folder KEPT] [--json FILE]

The enwik8 shape: 12 layers of width 512, 8 heads of 64, d_inner 2048, 256 bytes, random weights, one document. A case
is segment / memory; `1/2100 generate` computes the logits of the next token. `free` is the published evaluation (memory
2,100, the same context length for all tokens, distances clamped at 820). The bundle's scores do not depend on segments,
so it runs in segments of several lengths. Hugging Face's model runs in the published segments of 80. The times per
token are compared.

Every side runs warm in its own process with full memory, in turns. The machine's rates are measured before and after
each round: SGEMM, a 2048-cubed matrix product, by ONNX Runtime and by PyTorch, and reading or copying memory. As in
`xlexport bench`, the floor of a step is max(arithmetic / best SGEMM, bytes / best rate of memory). The sides walk the
same text from the same beginning, so their scores are compared too: `difference` is the largest difference of a token's
score to the bundle's, in nats.

If kernels are there (`--ops`, the package xlexport-ops), the bundle runs with and without them.

Other programs on the machine slow PyTorch much more than ONNX Runtime, because PyTorch's threads wait for each other in
every operator. So figures mean little unless SGEMM is as fast as on an idle machine. `--tiny` is a small shape, to try
the command out. `torch.compile` needs a C++ compiler. Needs the extras cpu, convert and dev.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks.measuring import Figures, add_to_json, common_options, headline, measure, print_disturbances, ratio
from benchmarks.sides import Side
from benchmarks.transformer_xl_sides import SHAPE, TINY, Case, hugging_face, our_eager, ours, prepared
from xlruntime.devices import Device
from xlruntime.kernels import find_kernels

CASES = {
    "80/2100": Case(80, 2100),
    "128/1600": Case(128, 1600),
    "320/2100": Case(320, 2100),
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
ROUNDING = 1e-3  # nats: a hundred times the observed differences of correct sides


@click.command(help=__doc__.split("\n\n", maxsplit=1)[0] if __doc__ else None)
@click.option("--case", "names", multiple=True, type=click.Choice(list(CASES)), help="Default: all. May be repeated.")
@click.option("--peer", "peers", multiple=True, type=click.Choice(list(PEERS)), help="Default: all. May be repeated.")
@click.option("--ops", default="auto", show_default=True, help="Kernels: auto, none or a library.")
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(1), help="Steps of a side in a round.")
@common_options
def main(
    names: tuple[str, ...],
    peers: tuple[str, ...],
    ops: str,
    rounds: int,
    repeats: int,
    threads: int,
    tiny: bool,
    folder: Path | None,
    file: Path | None,
) -> None:
    """Measure and print each case in turn."""
    forms = {OURS: ops, f"{OURS}, no kernels": "none"} if find_kernels(ops, Device("cpu")) else {OURS: ops}
    with tempfile.TemporaryDirectory() as scratch:
        folder, bundle = prepared(folder or Path(scratch), TINY if tiny else SHAPE)
        for name in names or CASES:
            case = CASES[name]
            if name == "free":
                makers = {
                    f"{OURS}, segments of {each}": _own(bundle, threads, case, each, ops) for each in FREE_SEGMENTS
                }
                makers["Hugging Face eager"] = _peer(folder, scratch, threads, case, hugging_face, "eager")
            else:
                makers = {form: _own(bundle, threads, case, case.segment_len, own) for form, own in forms.items()}
                makers |= {peer: _peer(folder, scratch, threads, case, *PEERS[peer]) for peer in peers or PEERS}
            figures = measure(makers, rounds, dict.fromkeys(makers, repeats), threads)
            figures |= {"case": asdict(case), "shape": TINY if tiny else SHAPE}
            print_table(name, figures)
            if file is not None:
                add_to_json(file, name, figures)


def _own(bundle: Path, threads: int, case: Case, segment_len: int, ops: str) -> Callable[[], Side]:
    return lambda: Side(ours, bundle, threads, {**case.plain(), "segment_len": segment_len}, ops)


def _peer(
    folder: Path, scratch: str, threads: int, case: Case, function: Callable[..., Any], form: str
) -> Callable[[], Side]:
    cache = {"TORCHINDUCTOR_CACHE_DIR": scratch}  # a fresh cache: an interrupted run may have left a broken one
    return lambda: Side(function, folder / "checkpoint", threads, case.plain(), form, environment=cache)


def print_table(name: str, figures: Figures) -> None:
    """Print one line for each side, with ratios per token to the best of ours."""
    sides = figures["sides"]
    own = [side for side_name, side in sides.items() if side_name.startswith(OURS)]
    best, median = (min(side[key] / side["tokens"] for side in own) for key in ("best", "median"))
    print(headline(name, figures))
    print(
        f"  {'side':36}{'best ms':>9}{'median':>9}{'user':>9}{'system':>8}{'ms/token':>10}"
        f"{'x ours: best':>14}{'median':>8}{'x floor':>9}{'MB':>6}{'difference':>12}"
    )
    for side_name, side in sides.items():
        by_floor = side["best"] / side["floor"] if "floor" in side else None
        difference = side.get("max_abs_log_prob_diff")
        print(
            f"  {side_name:36}{side['best'] * 1e3:9.1f}{side['median'] * 1e3:9.1f}{side['user'] * 1e3:9.1f}"
            f"{side['system'] * 1e3:8.1f}{side['best'] / side['tokens'] * 1e3:10.3f}"
            f"{ratio(side, side['best'] / side['tokens'] / best, 14)}"
            f"{ratio(side, side['median'] / side['tokens'] / median, 8)}{ratio(side, by_floor, 9)}"
            f"{side['peak_rss_mb']:6.0f}" + (f"{difference:12.1e}" if difference is not None else "")
        )
    print_disturbances(figures)
    for side_name, side in sides.items():
        if side.get("max_abs_log_prob_diff", 0) > ROUNDING:
            print(f"  {side_name} computes something else, so its time means nothing")
        if "compile_seconds" in side:
            print(f"  {side_name}: compiled in {side['compile_seconds']:.0f} s, {side['graph_breaks']} graph breaks")


if __name__ == "__main__":
    main()
