"""Score one long document and print the process's resident memory along the way; it should not grow.

python -m benchmarks.memory_over_a_document BUNDLE DOCUMENT
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import psutil

import xlruntime


def main(bundle: Path, document: Path) -> None:
    """Print bits per byte so far and resident memory after every tenth of `document`."""
    process = psutil.Process()
    size = document.stat().st_size
    model = xlruntime.load(bundle)
    scored, nats, tenth, resident = 0, 0.0, 1, []
    for part in model.score_tokens([document]):
        scored += len(part)
        nats -= float(part.log_probs.sum())
        if scored >= tenth * size // 10 - 1:
            resident.append(process.memory_info().rss / 1e6)
            bits = nats / math.log(2) / scored
            print(f"{tenth * 10:4}% {bits:8.4f} bits per token {resident[-1]:8.1f} MB", flush=True)
            tenth += 1
    print(f"from 10% to the end: {resident[-1] / resident[0] - 1:+.2%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
