"""Score many documents at once, each with its own stream in its own thread; all share one model.

Needs: pip install './runtime/python[cpu]' in a clone, and `bundle/` from 01_convert.py. No PyTorch.
"""

from concurrent.futures import ThreadPoolExecutor
from pydoc_data.topics import topics

import numpy as np

import xlruntime

model = xlruntime.load("bundle", threads=1)  # one thread per step, because the streams run in parallel
documents = [topics[name][:1500] for name in sorted(topics)[:8]]


def walk(text: str) -> np.ndarray:
    """Return the log-probabilities (n,) of a text that arrives in pieces of 100 characters."""
    stream = model.stream()
    pieces = (text[start : start + 100] for start in range(0, len(text), 100))
    return np.concatenate([stream.feed(piece).log_probs for piece in pieces])


with ThreadPoolExecutor(len(documents)) as pool:
    together = list(pool.map(walk, documents))
for text, log_probs in zip(documents, together, strict=True):
    print(f"{len(text):6,} characters, {-log_probs.mean() / np.log(2):.4f} bits a token")
assert all((log_probs == walk(text)).all() for text, log_probs in zip(documents, together, strict=True))
print("bit-equal to one after another")
