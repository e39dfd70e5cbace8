"""Score one document with a Reformer's bundle in segments of several lengths; rule `band` gives equal scores.

Needs: pip install ./runtime/python '.[cpu,convert]' in a clone. The model is untrained, so its scores are those of a
guess. To train a
model: xlexport train FILES --architecture reformer --out run
"""

import math
import tempfile
from pathlib import Path
from pydoc_data.topics import topics

import xlexport
import xlruntime
from xltraining.checkpoint import save_checkpoint
from xltraining.reformer import Reformer, ReformerConfig

config = ReformerConfig(
    d_model=64, n_head=2, d_head=32, d_inner=128, attn_layers=("local", "lsh"), chunk_length=32, n_buckets=(16,),
    tgt_len=256, mem_len=256, axial_shape=(64, 64), axial_dims=(16, 48), max_positions=4096,
)  # fmt: skip
folder = Path(tempfile.mkdtemp())
save_checkpoint(folder / "checkpoint.pt", config, Reformer(config).state_dict())
report = xlexport.convert(folder / "checkpoint.pt", folder / "bundle", segments=6).report
assert report.overflow_fraction is not None
print(f"equal over {report.segments} segments, overflow in {report.overflow_fraction:.1%} of rounds")

text = topics["specialnames"][:2000]
model = xlruntime.load(folder / "bundle")
for segment_len in (1, 100, 1000):
    (score,) = model.score([text], segment_len=segment_len)
    print(f"segments of {segment_len:5,}: {score.bits_per_byte:.5f} bits per byte")

stream = model.stream()
first, then = text[:700], text[700:]
bits = -sum(float(stream.feed(part).log_probs.sum()) for part in (first, then)) / math.log(2)
print(f"as a stream of two pieces: {bits / (len(text.encode()) - 1):.5f} bits per byte")
