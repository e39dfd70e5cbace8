"""Walk many documents at once, each by a stream of its own in a thread of its own; one model serves them all.

Needs: pip install 'xlexport[cpu]', and `bundle/` from 01_convert.py. No PyTorch.
"""

from concurrent.futures import ThreadPoolExecutor
from pydoc_data.topics import topics

import numpy as np

import xlruntime

model = xlruntime.load("bundle", threads=1)  # one thread a step: here the streams are what runs side by side
documents = [topics[name][:1500] for name in sorted(topics)[:8]]


def walk(text: str) -> np.ndarray:
    """Log-probabilities (n,) of a text that comes in pieces of 100 characters."""
    stream = model.stream()
    pieces = (text[start : start + 100] for start in range(0, len(text), 100))
    return np.concatenate([stream.feed(piece).log_probs for piece in pieces])


with ThreadPoolExecutor(len(documents)) as pool:
    together = list(pool.map(walk, documents))
for text, log_probs in zip(documents, together, strict=True):
    print(f"{len(text):6,} characters, {-log_probs.mean() / np.log(2):.4f} bits a token")
assert all((log_probs == walk(text)).all() for text, log_probs in zip(documents, together, strict=True))
print("bit-equal to one after another")
