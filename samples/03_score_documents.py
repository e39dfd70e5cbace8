"""Score many documents: four at a time, each with its own memory; results are in the order of the documents.

Needs: pip install './runtime/python[cpu]' in a clone, and `bundle/` from 01_convert.py. No PyTorch.
"""

from pydoc_data.topics import topics

import xlruntime

model = xlruntime.load("bundle")
documents = [xlruntime.Document(name, topics[name]) for name in sorted(topics)[:12]]
for score in model.score(documents, batch_size=4):
    print(f"{score.document:24} {score.bytes:6,} bytes  {score.bits_per_byte:.3f} bits per byte")
