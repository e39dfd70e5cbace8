"""Print the most surprising bytes of a long text, and what stood before them.

Needs: pip install 'xlexport[cpu]', and `bundle/` from 01_convert.py. No PyTorch.
"""

import heapq
import math
from pydoc_data.topics import topics

import xlruntime

text = topics["specialnames"]
surprises: list[tuple[float, int]] = []
for part in xlruntime.load("bundle").score_tokens([text]):
    bits = -part.log_probs / math.log(2)
    surprises = heapq.nlargest(10, surprises + list(zip(bits.tolist(), part.starts.tolist(), strict=True)))

raw = text.encode()
for bits, place in surprises:
    before, here = raw[max(0, place - 40) : place].decode(errors="replace"), chr(raw[place])
    print(f"{bits:5.1f} bits  …{before!r} -> {here!r}")
