"""Training a Transformer-XL here and in Hugging Face's TransfoXL, in turns: tokens per second and memory.

    python -m benchmarks.training_beside_hugging_face

Both models have the same shape, the same optimizer (Adam, clipped gradients) and carried memory. Each side runs in a
process of its own, and both take turns, so that a slow phase of the machine meets both. The memory is the largest
resident size of each process.
"""

from __future__ import annotations

import argparse

from benchmarks.sides import Side, Turn, sides_of
from benchmarks.training_sides import BATCH, SEGMENT, ours, theirs
from xlexport.bench.measuring import compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--updates", type=int, default=3, help="updates of a side at a turn")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--compile", action="store_true", help="translate both models by torch.compile")
    options = parser.parse_args()
    settings = (options.threads, options.dropout, options.compile)
    turns: dict[str, Turn] = {}
    with sides_of({"ours": lambda: Side(ours, *settings), "theirs": lambda: Side(theirs, *settings)}) as sides:
        for _ in range(options.rounds):
            for name, side in sides.items():
                turns[name] = side.measure(options.updates)
    medians = {name: turn.clock.quantile(0.5) for name, turn in turns.items()}
    for name, turn in turns.items():
        speed = BATCH * SEGMENT / medians[name]
        print(
            f"{name:7} {medians[name] * 1e3:7.1f} ms an update, {speed:7,.0f} tokens/s, "
            f"at most {turn.peak_rss_mb:,.0f} MB"
        )
    ratios = [
        their / our for their, our in zip(turns["theirs"].clock.medians, turns["ours"].clock.medians, strict=True)
    ]
    ratio = f"{medians['theirs'] / medians['ours']:.2f} times as fast (turns: {min(ratios):.2f} to {max(ratios):.2f})"
    print("ours is " + compared(ratio, turns["ours"].clock, turns["theirs"].clock))


if __name__ == "__main__":
    main()
