"""Walk one document piece by piece, stop half way, and go on later from a file, bit-equal.

Needs: pip install 'xlexport[cpu]', and `bundle/` from 01_convert.py. No PyTorch.
"""

import math

import xlruntime

model = xlruntime.load("bundle")
stream = model.stream()
pieces = [
    "Call me Ishmael. ",
    "Some years ago, never mind how long precisely, ",
    "having little or no money in my purse, ",
]
for piece in pieces:
    scores = stream.feed(piece)
    print(f"{-scores.log_probs.sum() / math.log(2):7.1f} bits  {piece!r}")

stream.save("stream.safetensors")
resumed = model.restore("stream.safetensors")
last = "I thought I would sail about a little and see the watery part of the world."
assert (stream.feed(last).log_probs == resumed.feed(last).log_probs).all()
print("restored: bit-equal")
