"""Score a document with only onnxruntime, numpy and json; docs/bundle_format.md specifies the files of a bundle.

Needs: pip install onnxruntime, and `bundle/` from 01_convert.py or of another Transformer-XL that reads bytes.
"""

import json
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from onnxruntime import InferenceSession

folder = Path("bundle")
bundle = json.loads((folder / "bundle.json").read_text("utf-8"))
rules = bundle["evaluation"]
assert bundle["tokenizer"]["kind"] == "bytes" and not any(entry.get("first_value") for entry in bundle["memory"])
values = {name: setting["default"] for name, setting in rules["settings"].items()}
ring, S = rules["rings"]["capacity"], rules["segment_len"]
M, starts_full = values[ring["rows"]], rules.get("first_memory") == "zeros"  # rows of zeros, as Hugging Face has
C = M + S  # slots of a ring: the memory of the first token, and the segment
window = M + ring["window_extra"] if values[ring["same_length"]] else 2**62
positions = InferenceSession(folder / "positions.onnx")
inputs = {"capacity": C} | {s["input"]: values[name] for name, s in rules["settings"].items() if s["input"]}
keys = positions.run(None, {name: np.array([value]) for name, value in inputs.items()})
constants = dict(zip([output.name for output in positions.get_outputs()], keys, strict=True))
sizes = {"batch": 1, "capacity": C}
memory = {e["input"]: np.zeros([sizes.get(n, n) for n in e["shape"]], e["dtype"]) for e in bundle["memory"]}
step = InferenceSession(folder / "score.onnx")
names = [output.name for output in step.get_outputs()]
ids = np.frombuffer(topics["assignment"].encode(), np.uint8).astype(np.int64) + bundle["tokenizer"].get("first_id", 0)
log_probs = np.zeros(0, np.float32)
for offset in range(0, len(ids) - 1, S):
    targets = ids[offset + 1 : offset + 1 + S]
    feeds = {"tokens": ids[offset : offset + len(targets)][None], "targets": targets[None]}
    counters = {"offset": [offset % C], "memory_length": [M if starts_full else min(offset, M)], "window": [window]}
    feeds |= {name: np.array(value) for name, value in counters.items()} | constants | memory
    outputs = dict(zip(names, step.run(names, feeds), strict=True))
    log_probs = np.append(log_probs, outputs["log_prob"][0])
    memory = {entry["input"]: outputs[entry["output"]] for entry in bundle["memory"]}
print(f"{len(ids):,} bytes, {-log_probs.sum(dtype=float) / np.log(2) / len(log_probs):.4f} bits per byte")
