"""Score a file of any length, and show the places that surprised the model most.

For a file of yours: 02_score_a_file.py FILE

Needs: pip install './runtime/python[cpu]' in a clone, and `bundle/` from 01_convert.py. No PyTorch.
"""

import heapq
import math
import sys
from pathlib import Path

import xlruntime

file = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(heapq.__file__)
surprises: list[tuple[float, int]] = []
for part in xlruntime.load("bundle").score_tokens([file]):  # token by token; keeps only the ten largest
    bits = (-part.log_probs / math.log(2)).tolist()
    surprises = heapq.nlargest(10, [*surprises, *zip(bits, part.starts.tolist(), strict=True)])
    if part.summary is not None:
        print(f"{part.document}: {part.summary.bytes:,} bytes, {part.summary.bits_per_byte:.4f} bits per byte")

raw = file.read_bytes()
for surprise, place in surprises:
    before = raw[max(0, place - 40) : place].decode(errors="replace")
    print(f"{surprise:5.1f} bits  …{before!r} -> {raw[place : place + 1]!r}")
