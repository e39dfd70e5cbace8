"""Compare the speed of bundles of recurrent models with PyTorch, and of Mamba with llama.cpp.

    python -m benchmarks.recurrent [--model mamba] [--folder KEPT] [--json FILE]

The shape of Mamba-130m (24 layers of width 768, state 16, 50,280 tokens, 129 million weights), and an LSTM of 100
million weights (2 layers of width 1,952, 10,000 tokens). Weights are random and float32. The batch is one document.

Each model has two tables for each number of threads, one and `--threads`. In the first, all sides read one token at a
time. In the second, they score segments; Hugging Face's Mamba cannot read a segment after a state, so it begins each
from nothing. Every side runs warm in its own process, in turns. All read the same text, and scores are compared.

The floor is the larger of two times: the arithmetic of the matrices at the best SGEMM, and reading the weights at the
best rate of memory. We want PyTorch to take 3 times as long as the bundle token by token, and as long in segments.

llama.cpp runs if llama-cpp-python is installed. `--tiny` is a small shape, to try the command out. Needs the extras
cpu, convert and dev.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from benchmarks.gguf import write_gguf
from benchmarks.sides import (
    Figures,
    Pieces,
    Ready,
    Run,
    Side,
    Sides,
    add_to_json,
    benchmark,
    bundle_of,
    code_digest,
    log_probs,
    measure,
    print_table,
    run_once,
)
from benchmarks.transformer_xl import Case, bundle_side

__all__ = ["MODELS", "Peer", "Segment", "graph_side", "hugging_face", "lstm_peers", "main", "mamba_peers", "our_eager"]

LENGTHS = {"token": {"mamba": (1,), "lstm": (1,)}, "segment": {"mamba": (16, 64, 256), "lstm": (16, 128)}}
ONE_BY_ONE = 16  # tokens in a round of the sides that read them one by one; others read one of the longest segments
SHAPES = {
    "mamba": {"vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 24},
    "lstm": {"V": 10_000, "D": 1952, "L": 2},
}
TINY = {"mamba": {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2}, "lstm": {"V": 256, "D": 64, "L": 2}}

Peer = tuple[str, Callable[..., Ready], object, int]  # a side's name, function, source, and shortest segments


@dataclass(frozen=True)
class Segment(Case):
    """A step of a model that has no settings but the length of segments; a round has `tokens` tokens."""

    mem_len: int = 0
    tokens: int = ONE_BY_ONE

    @property
    def settings(self) -> dict[str, Any]:
        """No settings."""
        return {}

    @property
    def repeats(self) -> int:
        """Steps in a round, and before the first one, so that all sides are at the same token."""
        return self.tokens // self.segment_len


def graph_side(bundle: Path, threads: int, case: Segment) -> Ready:
    """Return the side of the bundle; a token's arithmetic is one multiplication and one addition for each weight."""
    side = bundle_side(bundle, threads, case, "none")
    side.warm, side.facts["flops"] = case.repeats, 2 * case.segment_len * side.facts["bytes"] // 4
    return side


def mamba_peers(folder: Path, shape: dict[str, int]) -> tuple[Path, list[Peer]]:
    """Return the bundle of a random Mamba, and its peers; files that exist are reused."""
    checkpoint, gguf = folder / "mamba", folder / "mamba.gguf"
    if not checkpoint.exists():
        run_once(write_mamba, checkpoint, shape)
    peers: list[Peer] = [
        ("Hugging Face eager", hugging_face, checkpoint, 64),
        ("our eager model", our_eager, checkpoint, 256),
    ]
    if importlib.util.find_spec("llama_cpp"):
        write_gguf(gguf, checkpoint)
        peers.append(("llama.cpp", llama_cpp, gguf, 256))
    else:
        print("llama.cpp is not compared: the package llama-cpp-python is not installed.")
    return bundle_of(checkpoint), peers


def write_mamba(folder: Path, shape: dict[str, int]) -> None:
    """Write a Hugging Face folder of a model of this shape, with random weights."""
    import torch
    from transformers.models.mamba.configuration_mamba import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaForCausalLM

    torch.manual_seed(0)
    config = MambaConfig(**shape, initializer_range=0.05)  # with its own 0.1, float32 rounds to 2e-4 nats
    MambaForCausalLM(config).save_pretrained(folder)


def hugging_face(checkpoint: Path, threads: int, case: Segment) -> Ready:
    """Return the side of Hugging Face's Mamba: with its cache token by token, from nothing in segments."""
    import torch
    from transformers.models.mamba.modeling_mamba import MambaCache, MambaForCausalLM

    torch.set_num_threads(threads)
    model, pieces = MambaForCausalLM.from_pretrained(checkpoint).eval(), Pieces(case.segment_len)
    inputs: dict[str, Any] = {"use_cache": False}
    if case.segment_len == 1:
        position = torch.tensor([model.config.conv_kernel])  # it only says that the new column comes last
        inputs = {"cache_params": MambaCache(model.config, 1, torch.float32), "cache_position": position}

    @torch.inference_mode()
    def step() -> npt.NDArray[Any] | None:
        tokens, targets = map(torch.from_numpy, pieces.next())
        log_probs = model(tokens, **inputs).logits.log_softmax(dim=2).gather(2, targets[:, :, None])
        return log_probs.numpy() if case.segment_len == 1 else None

    return Ready(step, {"tokens": case.segment_len}, warm=case.repeats)


def llama_cpp(file: Path, threads: int, case: Segment) -> Ready:
    """Return the side of llama.cpp, which computes the logits of each token of a segment.

    Its scores are compared token by token; in longer segments, it does not compute probabilities.
    """
    api: Any = importlib.import_module("llama_cpp")
    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)

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

    return Ready(step, {"tokens": S}, warm=case.repeats)


def lstm_peers(folder: Path, shape: dict[str, int]) -> tuple[Path, list[Peer]]:
    """Return the bundle of the samples' LSTM in this shape, with random weights, and its peers."""
    bundle = folder / f"lstm-{code_digest()}"
    if not bundle.exists():
        run_once(write_lstm_bundle, bundle, shape)
    return bundle, [("torch.nn.LSTM eager", our_eager, shape, 16)]


def lstm(shape: dict[str, int]) -> Any:
    """Return the LSTM; its weights are the same each time."""
    import torch

    from samples.models.lstm import LSTM

    torch.manual_seed(0)
    return LSTM(**shape).eval()


def write_lstm_bundle(bundle: Path, shape: dict[str, int]) -> None:
    """Write the bundle of the LSTM."""
    from xlexport import export_module

    export_module(lstm(shape), bundle, segments=2)


def our_eager(source: Path | dict[str, int], threads: int, case: Segment) -> Ready:
    """Return the side of our model of a checkpoint, or of the LSTM in a shape, in PyTorch with carried state."""
    import torch

    from xlexport.families.recurrent.source import module_source
    from xlexport.formats import load

    torch.set_num_threads(threads)
    model = (load(source) if isinstance(source, Path) else module_source(lstm(source))).build_model()
    state, pieces = model.first_memory(1), Pieces(case.segment_len)

    @torch.inference_mode()
    def step() -> npt.NDArray[Any]:
        nonlocal state
        tokens, targets = map(torch.from_numpy, pieces.next())
        hidden, state = model(tokens, state)
        log_probs: npt.NDArray[Any] = model.log_probs(hidden, targets).numpy()
        return log_probs

    return Ready(step, {"tokens": case.segment_len}, warm=case.repeats)


MODELS = {"mamba": mamba_peers, "lstm": lstm_peers}


@benchmark
@click.option("--model", "names", multiple=True, type=click.Choice(list(MODELS)), help="Default: all. May be repeated.")
def main(run: Run, names: tuple[str, ...]) -> None:
    """Measure and print each model, number of threads and kind of step in turn."""
    for name in names or MODELS:
        shape = (TINY if run.tiny else SHAPES)[name]
        place = run.folder / "-".join(map(str, shape.values()))
        place.mkdir(parents=True, exist_ok=True)
        bundle, peers = MODELS[name](place, shape)
        for count, kind in itertools.product(sorted({1, run.threads}), LENGTHS):
            title = f"{name}, {kind} by {kind}, {count} threads"
            figures = compare(bundle, peers, LENGTHS[kind][name], run.rounds, count) | {"shape": shape}
            print_table(title, figures, ours=figures["ours"])
            add_to_json(run.file, title, figures)


def compare(bundle: Path, peers: Sequence[Peer], lengths: Sequence[int], rounds: int, threads: int) -> Figures:
    """Measure the bundle and its peers in segments of these lengths."""
    steps = [Segment(S, tokens=max(ONE_BY_ONE, *lengths)) for S in lengths]
    sides: dict[str, tuple[Callable[..., Ready], object, Segment]] = {}
    if lengths == (1,):
        sides["bundle, generate"] = graph_side, bundle, Segment(1, purpose="generate")
    sides |= {f"bundle, score {step.segment_len}": (graph_side, bundle, step) for step in steps}
    ours = len(sides)
    sides |= {
        f"{name}, {step.segment_len}": (function, source, step)
        for name, function, source, fewest in peers
        for step in steps
        if step.segment_len == 1 or step.segment_len >= fewest
    }
    makers: Sides = {
        name: partial(Side, function, source, threads, step) for name, (function, source, step) in sides.items()
    }
    repeats = {name: step.repeats for name, (_, _, step) in sides.items()}
    return measure(makers, rounds, repeats, threads) | {"ours": ours}


if __name__ == "__main__":
    main()
