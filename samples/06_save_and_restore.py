"""Stop in the middle of a document, and continue later from a file, in any process, with bit-equal results.

Needs: pip install './runtime/python[cpu]' in a clone, and `bundle/` from 01_convert.py. No PyTorch.
"""

import math
from pathlib import Path

import xlruntime

model = xlruntime.load("bundle")
stream = model.stream()
for piece in (
    "Call me Ishmael. ",
    "Some years ago, never mind how long precisely, ",
    "having little or no money in my purse, ",
):
    scores = stream.feed(piece)
    print(f"{-scores.log_probs.sum() / math.log(2):7.1f} bits  {piece!r}")

stream.save("stream.safetensors")
print(f"saved: {Path('stream.safetensors').stat().st_size:,} bytes, as many after a token as after a book")

resumed = model.restore("stream.safetensors")
last = "I thought I would sail about a little and see the watery part of the world."
assert (stream.feed(last).log_probs == resumed.feed(last).log_probs).all()
print("restored: bit-equal")
