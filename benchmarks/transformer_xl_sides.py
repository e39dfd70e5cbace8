"""One Transformer-XL in several implementations: sides for `transformer_xl_beside_peers.py`.

All have the same random weights, start from the same full memory and walk the same text, so their scores must agree.
The memory has rows of zeros, as in Hugging Face's model.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmarks.measuring import code_digest
from benchmarks.sides import Ready, run_once, text_ids

__all__ = ["SHAPE", "TINY", "Case", "hugging_face", "our_eager", "ours", "prepared", "scoring_module"]

SHAPE = {"n_token": 256, "n_layer": 12, "d_model": 512, "n_head": 8, "d_head": 64, "d_inner": 2048}
TINY = {"n_token": 256, "n_layer": 2, "d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 128}

NextSegment = Callable[[], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]


@dataclass(frozen=True)
class Case:
    """Evaluation settings of a step, and its purpose: `score` or `generate`."""

    segment_len: int
    mem_len: int
    same_length: bool = False
    clamp_len: int = -1
    purpose: Literal["score", "generate"] = "score"

    def plain(self) -> dict[str, Any]:
        """Return the fields as plain JSON, the argument of a side."""
        return asdict(self)


def prepared(folder: Path, shape: dict[str, int]) -> tuple[Path, Path]:
    """Return a checkpoint of this shape and a bundle that the current code made of it; reuse existing ones."""
    folder = folder / "-".join(map(str, shape.values()))
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "checkpoint").exists():
        run_once(_write_checkpoint, folder / "checkpoint", shape)
    bundle = folder / f"bundle-{code_digest()}"
    if not bundle.exists():
        _write_bundle(folder / "checkpoint", bundle)
    return folder, bundle


def _write_checkpoint(folder: str, shape: dict[str, int]) -> None:
    """Write a Hugging Face folder of a model of this shape; all its weights are random."""
    import torch
    from transformers.models.deprecated.transfo_xl.configuration_transfo_xl import TransfoXLConfig
    from transformers.models.deprecated.transfo_xl.modeling_transfo_xl import TransfoXLLMHeadModel

    sizes = {name: size for name, size in shape.items() if name != "n_token"}
    config = TransfoXLConfig(
        vocab_size=shape["n_token"], cutoffs=[], d_embed=shape["d_model"], div_val=1, mem_len=128, clamp_len=-1,
        same_length=False, dropout=0.0, dropatt=0.0, trainer_compatible=True, **sizes,
    )  # fmt: skip
    model = TransfoXLLMHeadModel(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = parameter.shape[1] ** -0.5 if parameter.dim() == 2 and not name.endswith("_bias") else 0.3
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
            if name.endswith("layer_norm.weight"):
                parameter.add_(1)
    model.save_pretrained(folder)


def _write_bundle(checkpoint: Path, bundle: Path) -> None:
    """Write the bundle that `xlexport convert` makes of a checkpoint."""
    settings = ["--tokenizer", "none", "--segments", "2"]
    command = [sys.executable, "-m", "xlexport", "convert", str(checkpoint), "-o", str(bundle), *settings]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def ours(bundle: str, threads: int, plain: dict[str, Any], ops: str) -> Ready:
    """Return the side of the bundle's graph with kernels `ops`; its facts have the arithmetic and bytes of a step."""
    import xlruntime
    from xlexport.bench.roofline import step_floor
    from xlexport.bench.sides import GraphSide, Work

    case = Case(**plain)
    started = time.perf_counter()
    model = xlruntime.load(bundle, threads=threads, ops=ops)
    load_seconds = time.perf_counter() - started
    evaluation = model.evaluation(
        case.segment_len, mem_len=case.mem_len, clamp_len=case.clamp_len, same_length=case.same_length
    )
    memory = model.new_memory(evaluation)
    walk = _walk(case.segment_len)

    def step() -> npt.NDArray[Any]:
        tokens, targets = walk()
        outputs = model.step(case.purpose, memory, tokens, targets)
        if case.purpose == "score":
            return outputs["log_prob"]
        logits = outputs["logits"][0]
        return logits[targets[:, -1]] - np.logaddexp.reduce(logits)

    floor = step_floor(GraphSide(model, Work(case.purpose, evaluation, case.segment_len, 1)))
    facts = {"tokens": case.segment_len, "load_seconds": load_seconds, "flops": floor.flops, "bytes": floor.bytes}
    return Ready(step, facts)


def our_eager(checkpoint: str, threads: int, plain: dict[str, Any], form: str) -> Ready:
    """Return the side of our PyTorch model, with the paper's memory of hidden states; `form` as in `hugging_face`."""
    import torch

    from xlexport.checkpoints import load

    # With torch 2.13 it overwrites live values in models of three or more layers: scores were wrong by nats.
    torch._inductor.config.inplace_buffers = form != "compiled"
    case = Case(**plain)
    torch.set_num_threads(threads)
    model = load(Path(checkpoint)).build_model().eval()
    settings = {"mem_len": case.mem_len, "clamp_len": case.clamp_len, "same_length": case.same_length}
    model = model.with_evaluation(**settings)
    return _torch_side(scoring_module(model), model.first_memory(1), case, form)


def hugging_face(checkpoint: str, threads: int, plain: dict[str, Any], form: str) -> Ready:
    """Return the side of Hugging Face's model.

    `form` is eager, compiled (`torch.compile`), or traced (TorchScript, frozen).
    """
    import torch

    _let_type_as_take_dtype()
    from transformers.models.deprecated.transfo_xl.modeling_transfo_xl import TransfoXLLMHeadModel

    case = Case(**plain)
    torch.set_num_threads(threads)
    settings = {"mem_len": case.mem_len, "clamp_len": case.clamp_len, "same_length": case.same_length}
    model = TransfoXLLMHeadModel.from_pretrained(checkpoint, **settings).eval()

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: torch.Tensor, targets: torch.Tensor, *memory: torch.Tensor) -> Any:
            output = self.model(tokens, mems=list(memory), return_dict=True)
            return output.prediction_scores.gather(2, targets[:, :, None])[:, :, 0], *output.mems

    return _torch_side(Step(), model.init_mems(1), case, form)


def _let_type_as_take_dtype() -> None:
    """Patch `Tensor.type_as` to accept `dtype`, which Hugging Face's forward passes although torch never had it."""
    import torch

    original = torch.Tensor.type_as

    def type_as(x: torch.Tensor, other: torch.Tensor | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        return x.to(dtype) if other is None else original(x, other)

    torch.Tensor.type_as = type_as  # type: ignore[assignment, method-assign]


def _torch_side(module: Any, memory: list[Any], case: Case, form: str) -> Ready:
    import torch

    module.eval()
    facts: dict[str, Any] = {"tokens": case.segment_len}
    walk = _walk(case.segment_len)
    run = module
    state = list(memory)
    if form == "compiled":
        torch._logging.set_logs(dynamo=logging.CRITICAL)  # type: ignore[attr-defined]  # breaks are counted, not printed
        run = torch.compile(module, dynamic=False)
    elif form == "traced":
        example = torch.zeros(1, case.segment_len, dtype=torch.int64)
        started = time.perf_counter()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of constants in the trace: shapes do not change here
            run = torch.jit.freeze(torch.jit.trace(module, (example, example, *state), check_trace=False))
        facts["trace_seconds"] = time.perf_counter() - started

    @torch.inference_mode()
    def step() -> npt.NDArray[Any]:
        tokens, targets = map(torch.from_numpy, walk())
        log_probs, *state[:] = run(tokens, targets, *state)
        return log_probs.numpy()

    if form == "compiled":
        started = time.perf_counter()
        step()
        step()  # with the memory that the first step returned
        facts["compile_seconds"] = time.perf_counter() - started
        facts["graph_breaks"] = sum(torch._dynamo.utils.counters["graph_break"].values())
        walk = _walk(case.segment_len)
        state = list(memory)  # from the beginning, like the other sides
    return Ready(step, facts)


def _walk(segment_len: int) -> NextSegment:
    """Return a function that returns the text's next tokens and targets (1, S) at each call."""
    place = 0

    def walk() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        nonlocal place
        ids = text_ids(place, segment_len + 1)[None]
        place += segment_len
        return ids[:, :-1].copy(), ids[:, 1:].copy()

    return walk


def scoring_module(model: Any) -> Any:
    """Return a module whose step takes tokens, targets and memory, and returns log-probabilities and the new memory."""
    import torch

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: torch.Tensor, targets: torch.Tensor, *memory: torch.Tensor) -> Any:
            hidden, new = self.model(tokens, list(memory))
            return self.model.log_probs(hidden, targets), *new

    return Step().eval()
