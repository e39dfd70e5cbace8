"""Mamba in llama.cpp: a GGUF file of Hugging Face's weights, and the side that runs it through llama-cpp-python."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.sides import Pieces, Ready, log_probs
from benchmarks.transformer_xl import Case

__all__ = ["llama_cpp", "write_gguf"]

# Published in the specification of GGUF, version 3.
ALIGNMENT, F32 = 32, 0
TYPES = {int: (4, "<I"), float: (6, "<f"), str: (8, "")}
NAMES = {
    "backbone.embeddings": "token_embd",
    "backbone.norm_f": "output_norm",
    "backbone.layers": "blk",
    "mixer.": "ssm_",
    "norm.": "attn_norm.",
    "in_proj": "in",
    "x_proj": "x",
    "dt_proj": "dt",
    "out_proj": "out",
    "A_log": "a",
    "ssm_D": "ssm_d",
}


def write_gguf(file: Path, checkpoint: Path) -> None:
    """Write the float32 weights of a Hugging Face folder of Mamba, with tied embeddings and without a vocabulary."""
    from safetensors.numpy import load_file

    tensors = {}
    for name, array in load_file(checkpoint / "model.safetensors").items():
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        tensors[name] = np.ascontiguousarray(-np.exp(array) if name.endswith("ssm_a") else array.squeeze())
    config = json.loads((checkpoint / "config.json").read_text())
    about = {"general.architecture": "mamba", "tokenizer.ggml.model": "no_vocab"} | {
        f"mamba.{key}": value
        for key, value in {
            "vocab_size": config["vocab_size"],
            "context_length": 1 << 20,
            "embedding_length": config["hidden_size"],
            "feed_forward_length": 0,
            "attention.head_count": 0,
            "block_count": config["num_hidden_layers"],
            "attention.layer_norm_rms_epsilon": float(config["layer_norm_epsilon"]),
            "ssm.conv_kernel": config["conv_kernel"],
            "ssm.inner_size": config["intermediate_size"],
            "ssm.state_size": config["state_size"],
            "ssm.time_step_rank": config["time_step_rank"],
        }.items()
    }
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


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def llama_cpp(file: Path, threads: int, case: Case) -> Ready:
    """Return the side of llama.cpp, which computes the logits of each token of a segment.

    Its scores are compared token by token; in longer segments, it does not compute probabilities.
    """
    import llama_cpp as api

    S = case.segment_len
    model = api.llama_model_load_from_file(str(file).encode(), api.llama_model_default_params())
    choices = api.llama_context_default_params()
    choices.n_ctx = choices.n_batch = choices.n_ubatch = S
    choices.n_threads = choices.n_threads_batch = threads
    context: Any = api.llama_init_from_model(model, choices)
    n_token = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    batch, pieces = api.llama_batch_init(S, 0, 1), Pieces(S)
    batch.n_tokens = S

    def step() -> npt.NDArray[Any] | None:
        start, (tokens, targets) = pieces.start, pieces.next()
        for i, token in enumerate(tokens[0].tolist()):
            batch.token[i], batch.pos[i], batch.logits[i] = token, start + i, True
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        if api.llama_decode(context, batch):
            raise RuntimeError("llama.cpp: llama_decode failed")
        logits = np.ctypeslib.as_array(api.llama_get_logits(context), (S, n_token))
        return log_probs(logits, targets[0]) if S == 1 else None

    return Ready(step, {"tokens": S}, warm=case.warm)
