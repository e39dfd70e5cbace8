"""Rank candidates by their probability after a long context, which is read once.

Needs: pip install './runtime/python[cpu]' in a clone, and `bundle/` from 01_convert.py. No PyTorch.
"""

import math
import time
from pydoc_data.topics import topics

import xlruntime

context = topics["exceptions"] + "\nIf the condition is false, the "
candidates = [
    "table is laid for two.",
    "statement are executes.",
    "statement is not executed.",
    "xqzzv jkkpw qqqq.",
]
stream = xlruntime.load("bundle").stream()
started = time.perf_counter()
stream.feed(context)
print(f"read {stream.position:,} bytes in {time.perf_counter() - started:.2f} s")

started = time.perf_counter()
bits = {text: -float(stream.score_continuation(text).log_probs.sum()) / math.log(2) for text in candidates}
print(f"scored {len(candidates)} candidates in {time.perf_counter() - started:.2f} s; the stream stayed where it was")
for text in sorted(candidates, key=lambda text: bits[text] / len(text.encode())):  # per byte, or short ones would win
    print(f"{bits[text]:6.1f} bits, {bits[text] / len(text.encode()):5.2f} per byte  {text!r}")
