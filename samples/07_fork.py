"""Read a long text once, and compare on forks of the stream how each continuation changes the cost of a next text.

Needs: pip install './runtime/python[cpu]' in a clone, and `bundle/` from 01_convert.py. No PyTorch.
"""

import math
from pydoc_data.topics import topics

import xlruntime

stream = xlruntime.load("bundle").stream()
stream.feed(topics["while"] + topics["for"])
print(f"read {stream.position:,} bytes; a fork copies {stream.memory.nbytes / 1e6:.1f} MB and reads nothing again")

for way in ("For example:\n\n   >>> ", "The old man looked up and said "):
    fork = stream.fork()  # continues independently; the stream is unchanged
    fork.feed(way)
    for follows in ("print(x)\n", "that he knew nothing of it.\n"):
        bits = -float(fork.score_continuation(follows).log_probs.sum()) / math.log(2)
        print(f"{way!r:34} then {follows!r:32} {bits:5.1f} bits")
