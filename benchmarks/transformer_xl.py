"""Compare the speed of a Transformer-XL bundle with the same weights in PyTorch: eager, compiled and traced.

    python -m benchmarks.transformer_xl [--case 80/2100] [--folder KEPT] [--json FILE]

The enwik8 shape: 12 layers of width 512, 8 heads of 64, d_inner 2048, 256 bytes, random weights, one document. A case
is segment / memory; `1/2100 generate` computes the logits of the next token. `free` is the published evaluation (memory
2,100, the same context length for all tokens, distances clamped at 820). The bundle's scores do not depend on segments,
so it runs in segments of several lengths. Hugging Face's model runs in the published segments of 80. The times per
token are compared.

Every side runs warm in its own process, in turns. All have the same random weights, start from the same full memory of
zeros (as in Hugging Face's model) and read the same text, so their scores are compared too, in nats. The machine's
rates are measured before and after each round: SGEMM, a 2048-cubed matrix product, by ONNX Runtime and by PyTorch, and
reading or copying memory. As in `xlexport bench`, the floor of a step is max(arithmetic / best SGEMM, bytes / best rate
of memory).

If kernels are there (`--ops`, the package xlexport-ops), the bundle runs with and without them.

Other programs on the machine slow PyTorch much more than ONNX Runtime, because PyTorch's threads wait for each other in
every operator. So figures mean little unless SGEMM is as fast as on an idle machine. `--tiny` is a small shape, to try
the command out. `torch.compile` needs a C++ compiler. Needs the extras cpu, convert and dev.
"""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click
import numpy.typing as npt

from benchmarks.sides import (
    Pieces,
    Ready,
    Run,
    Side,
    Sides,
    add_to_json,
    benchmark,
    bundle_of,
    log_probs,
    measure,
    print_table,
    run_once,
)
from xlruntime.devices import Device
from xlruntime.kernels import find_kernels

__all__ = ["SHAPE", "TINY", "Case", "accept_dtype", "bundle_side", "main", "prepare", "scoring_module"]

SHAPE = {"n_token": 256, "n_layer": 12, "d_model": 512, "n_head": 8, "d_head": 64, "d_inner": 2048}
TINY = {"n_token": 256, "n_layer": 2, "d_model": 64, "n_head": 4, "d_head": 16, "d_inner": 128}
OURS = "bundle"


@dataclass(frozen=True)
class Case:
    """Evaluation settings of a step, and its purpose: `score` or `generate`."""

    segment_len: int
    mem_len: int
    same_length: bool = False
    clamp_len: int = -1
    purpose: Literal["score", "generate"] = "score"

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a model, in the words of all implementations."""
        return {"mem_len": self.mem_len, "clamp_len": self.clamp_len, "same_length": self.same_length}


CASES = {
    "80/2100": Case(80, 2100),
    "128/1600": Case(128, 1600),
    "320/2100": Case(320, 2100),
    "128/128": Case(128, 128),
    "512/512": Case(512, 512),
    "1/2100": Case(1, 2100),
    "1/2100 generate": Case(1, 2100, purpose="generate"),
    "free": Case(80, 2100, same_length=True, clamp_len=820),
}
FREE_SEGMENTS = (80, 160, 320, 640, 1280)


def prepare(folder: Path, shape: dict[str, int]) -> tuple[Path, Path]:
    """Return a checkpoint of this shape and its bundle; reuse existing ones."""
    checkpoint = folder / "-".join(map(str, shape.values())) / "checkpoint"
    if not checkpoint.exists():
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        run_once(write_checkpoint, checkpoint, shape)
    return checkpoint, bundle_of(checkpoint)


def write_checkpoint(folder: Path, shape: dict[str, int]) -> None:
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


def bundle_side(bundle: Path, threads: int, case: Case, ops: str) -> Ready:
    """Return the side of the bundle's graph with kernels `ops`; its facts have the arithmetic and bytes of a step."""
    import xlruntime
    from xlexport.bench.roofline import step_floor
    from xlexport.bench.sides import GraphSide, StepWork

    started = time.perf_counter()
    model = xlruntime.load(bundle, threads=threads, ops=ops)
    load_seconds = time.perf_counter() - started
    evaluation = model.evaluation(case.segment_len, **case.settings)
    memory, pieces = model.new_memory(evaluation), Pieces(case.segment_len)

    def step() -> npt.NDArray[Any]:
        tokens, targets = pieces.next()
        outputs = model.step(case.purpose, memory, tokens, targets)
        if case.purpose == "score":
            return outputs["log_prob"]
        return log_probs(outputs["logits"], targets[:, -1])

    floor = step_floor(GraphSide(model, StepWork(case.purpose, evaluation, case.segment_len, 1)))
    return Ready(step, {"tokens": case.segment_len, "load_seconds": load_seconds, **asdict(floor)})


def our_model(checkpoint: Path, threads: int, case: Case, form: str) -> Ready:
    """Return the side of our PyTorch model, with the paper's memory of hidden states; `form` as in `hugging_face`."""
    import torch

    from xlexport.formats import load

    # With torch 2.13 it overwrites live values in models of three or more layers: scores were wrong by nats.
    torch._inductor.config.inplace_buffers = form != "compiled"
    torch.set_num_threads(threads)
    model = load(checkpoint).build_model().eval().with_evaluation(**case.settings)
    return _torch_side(scoring_module(model), model.first_memory(1), case, form)


def hugging_face(checkpoint: Path, threads: int, case: Case, form: str) -> Ready:
    """Return the side of Hugging Face's model.

    `form` is eager, compiled (`torch.compile`), or traced (TorchScript, frozen).
    """
    import torch
    from transformers.models.deprecated.transfo_xl.modeling_transfo_xl import TransfoXLLMHeadModel

    accept_dtype()
    torch.set_num_threads(threads)
    model = TransfoXLLMHeadModel.from_pretrained(checkpoint, **case.settings).eval()

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: torch.Tensor, targets: torch.Tensor, *memory: torch.Tensor) -> Any:
            output = self.model(tokens, mems=list(memory), return_dict=True)
            return output.prediction_scores.gather(2, targets[:, :, None])[:, :, 0], *output.mems

    return _torch_side(Step(), model.init_mems(1), case, form)


def accept_dtype() -> None:
    """Patch `Tensor.type_as` to accept `dtype`, which Hugging Face's forward passes although torch never had it."""
    import torch

    original = torch.Tensor.type_as

    def type_as(x: torch.Tensor, other: torch.Tensor | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
        return x.to(dtype) if other is None else original(x, other)

    torch.Tensor.type_as = type_as  # type: ignore[assignment, method-assign]


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


def _torch_side(module: Any, memory: list[Any], case: Case, form: str) -> Ready:
    import torch

    module.eval()
    facts: dict[str, Any] = {"tokens": case.segment_len}
    pieces, state, run = Pieces(case.segment_len), list(memory), module
    if form == "compiled":
        torch._logging.set_logs(dynamo=logging.CRITICAL)  # type: ignore[attr-defined]  # breaks are counted, not printed
        run = torch.compile(module, dynamic=False)
    elif form == "traced":
        example = torch.zeros(1, case.segment_len, dtype=torch.int64)
        started = time.perf_counter()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of constants in the trace: shapes do not change here
            run = torch.jit.freeze(torch.jit.trace(module, (example, example, *state), check_trace=False))
        facts["compile_seconds"] = time.perf_counter() - started

    @torch.inference_mode()
    def step() -> npt.NDArray[Any]:
        tokens, targets = map(torch.from_numpy, pieces.next())
        log_probs, *state[:] = run(tokens, targets, *state)
        return log_probs.numpy()

    if form == "compiled":
        started = time.perf_counter()
        step()
        step()  # with the memory that the first step returned
        facts["compile_seconds"] = time.perf_counter() - started
        facts["graph_breaks"] = sum(torch._dynamo.utils.counters["graph_break"].values())
        pieces.start, state[:] = 0, memory  # from the beginning, like the other sides
    return Ready(step, facts)


PEERS: dict[str, tuple[Callable[..., Ready], str]] = {
    "Hugging Face eager": (hugging_face, "eager"),
    "Hugging Face torch.compile": (hugging_face, "compiled"),
    "Hugging Face TorchScript": (hugging_face, "traced"),
    "our eager model": (our_model, "eager"),
    "our eager model, torch.compile": (our_model, "compiled"),
}


@benchmark
@click.option("--case", "names", multiple=True, type=click.Choice(list(CASES)), help="Default: all. May be repeated.")
@click.option("--peer", "peers", multiple=True, type=click.Choice(list(PEERS)), help="Default: all. May be repeated.")
@click.option("--ops", default="auto", show_default=True, help="Kernels: auto, none or a library.")
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(1), help="Steps of a side in a round.")
def main(run: Run, names: tuple[str, ...], peers: tuple[str, ...], ops: str, repeats: int) -> None:
    """Measure and print each case in turn."""
    shape, threads = TINY if run.tiny else SHAPE, run.threads
    kernels = {OURS: ops, f"{OURS}, no kernels": "none"} if find_kernels(ops, Device("cpu")) else {OURS: ops}
    checkpoint, bundle = prepare(run.folder, shape)
    with tempfile.TemporaryDirectory() as scratch:
        cache = {"TORCHINDUCTOR_CACHE_DIR": scratch}  # a fresh cache: an interrupted run may have left a broken one
        for name in names or CASES:
            case = CASES[name]
            ours = {side: (case, own) for side, own in kernels.items()}
            if name == "free":
                ours = {f"{OURS}, segments of {S}": (replace(case, segment_len=S), ops) for S in FREE_SEGMENTS}
            sides: Sides = {side: partial(Side, bundle_side, bundle, threads, *rest) for side, rest in ours.items()}
            for peer in ["Hugging Face eager"] if name == "free" else peers or PEERS:
                function, form = PEERS[peer]
                sides[peer] = partial(Side, function, checkpoint, threads, case, form, environment=cache)
            figures = measure(sides, run.rounds, repeats, threads) | {"case": asdict(case), "shape": shape}
            print_table(name, figures, ours=len(ours))
            add_to_json(run.file, name, figures)


if __name__ == "__main__":
    main()
