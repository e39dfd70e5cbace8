"""Write a Mamba of Hugging Face as a GGUF file, which llama.cpp reads."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

__all__ = ["write_gguf"]

# Published in the specification of GGUF, version 3.
ALIGNMENT, F32 = 32, 0
TYPES = {int: (4, "<I"), float: (6, "<f"), str: (8, "")}
NAMES = {
    "backbone.embeddings": "token_embd",
    "backbone.norm_f": "output_norm",
    "backbone.layers": "blk",
    "mixer.": "ssm_",
    ".norm.": ".attn_norm.",
    "_proj": "",
    "A_log": "a",
    "ssm_D": "ssm_d",
}
KEYS = {
    "vocab_size": "vocab_size",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.inner_size": "intermediate_size",
    "ssm.state_size": "state_size",
    "ssm.time_step_rank": "time_step_rank",
}


def write_gguf(file: Path, checkpoint: Path) -> None:
    """Write the float32 weights of a Hugging Face folder of Mamba, with tied embeddings and without a vocabulary."""
    from safetensors.numpy import load_file

    tensors = {}
    for name, array in load_file(checkpoint / "model.safetensors").items():
        values = -np.exp(array) if name.endswith("A_log") else array.squeeze()  # a convolution has one input channel
        tensors[_renamed(name)] = np.ascontiguousarray(values)
    config = json.loads((checkpoint / "config.json").read_text())
    about = {"general.architecture": "mamba", "tokenizer.ggml.model": "no_vocab", "mamba.context_length": 1 << 20}
    about |= {f"mamba.{key}": config[name] for key, name in KEYS.items()}
    with file.open("wb") as output:
        output.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(about)))
        for key, value in about.items():
            number, form = TYPES[type(value)]
            content = _string(value) if isinstance(value, str) else struct.pack(form, value)
            output.write(_string(key) + struct.pack("<I", number) + content)
        offset = 0
        for name, array in tensors.items():
            shape = array.shape[::-1]
            output.write(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, F32, offset))
            offset += array.nbytes + -array.nbytes % ALIGNMENT
        output.write(bytes(-output.tell() % ALIGNMENT))
        for array in tensors.values():
            output.write(array.tobytes() + bytes(-array.nbytes % ALIGNMENT))


def _renamed(name: str) -> str:
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    return name


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()
