"""Score a document with only onnxruntime, numpy and json; docs/bundle_format.md specifies the files of a bundle.

Needs: pip install onnxruntime, and `bundle/` from 01_convert.py or of another language model that reads bytes.
"""

import json
import os
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # ONNX Runtime reads it while it is imported
from onnxruntime import InferenceSession

folder = Path("bundle")
bundle = json.loads((folder / "bundle.json").read_text("utf-8"))
document, rings, graphs, memory = (bundle[name] for name in ("document", "rings", "graphs", "memory"))
assert bundle["tokenizer"]["kind"] == "bytes" and document["max_positions"] is None
assert not any(entry["first_value"] for entry in memory)  # else memory begins with first_memory.safetensors
assert not graphs["score"]["fixed"], "fixed shapes: a shorter step runs in variants, token by token"
values = {name: setting["value"] for name, setting in bundle["settings"].items()}
S, starts_full = document["segment_len"], document["fresh_memory"] == "zeros"  # rows of zeros, as Hugging Face has
lengths = [values.get("mem_len", 0), S, 1]
rows, slots = ({name: int(np.dot(ring[what], lengths)) for name, ring in rings.items()} for what in ("rows", "slots"))
limited = {symbol: ring["window"] and values.get(ring["window_if"], True) for symbol, ring in rings.items()}
counters = {  # what a step feeds to an input, after `read` tokens
    "position": lambda feed, read: read,
    "offset": lambda feed, read: read % slots[feed["ring"]],
    "length": lambda feed, read: rows[feed["ring"]] if starts_full else min(read, rows[feed["ring"]]),
    "window": lambda feed, read: np.dot(rings[feed["ring"]]["window"], lengths) if limited[feed["ring"]] else 2**62,
    "slots": lambda feed, read: slots[feed["ring"]],
    "setting": lambda feed, read: int(values[feed["setting"]]),
}
ids = np.frombuffer(topics["assignment"].encode(), np.uint8).astype(np.int64) + bundle["tokenizer"]["first_id"]
tensors = {e["input"]: np.zeros([({"batch": 1} | slots).get(n, n) for n in e["shape"]], e["dtype"]) for e in memory}
log_probs = np.zeros(0, np.float32)
for name in (name for name in ("positions", "score") if name in graphs):
    session, inputs = InferenceSession(folder / graphs[name]["file"]), graphs[name]["inputs"]
    outputs = [output.name for output in session.get_outputs()]
    for read in range(0, len(ids) - 1 if name == "score" else 1, S):  # constants are computed once
        tensors["targets"] = ids[None, read + 1 : read + 1 + S]
        tensors["tokens"] = ids[None, read : read + tensors["targets"].shape[1]]
        feeds = {n: tensors[n] if n in tensors else np.array([counters[f["feed"]](f, read)]) for n, f in inputs.items()}
        tensors |= dict(zip(outputs, session.run(outputs, feeds), strict=True))
        tensors |= {entry["input"]: tensors[entry["output"]] for entry in memory if entry["output"] in tensors}
        log_probs = np.append(log_probs, tensors.get("log_prob", ()))
print(f"{len(ids):,} bytes, {-log_probs.sum(dtype=float) / np.log(2) / len(log_probs):.4f} bits per byte")
