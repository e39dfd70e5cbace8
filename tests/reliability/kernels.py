"""Walk bundles with kernels and with bodies of the custom operators; compare all results, and prove that both ran.

    python -m tests.reliability.kernels BUNDLE…                 the kernels of the package xlexport-ops
    python -m tests.reliability.kernels BUNDLE… --ops LIBRARY   the kernels of a file

Every graph walks the text of `xlexport verify` in segments of changing lengths, once with each. The proof is ONNX
Runtime's profile of the steps: it has a custom operator by name only if a kernel computed it, because nodes without one
become their bodies.

A hash of a Reformer is not continuous: rounding decides between two directions that are almost equally large. Rows of a
step with such a flip are counted apart, and the two memories are made equal after it.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from xlexport.verification.walked_text import verify_ids
from xlruntime.bundle import DOMAIN, Bundle, Graph
from xlruntime.bundle_files import read_bundle
from xlruntime.devices import Device
from xlruntime.kernels import Kernels, find_kernels
from xlruntime.load_options import LoadOptions
from xlruntime.memory import Memory
from xlruntime.model import Model
from xlruntime.session import GraphSession

__all__ = ["LIMIT", "Compared", "compare_bundle", "main"]

LIMIT = 1e-5  # nats; float32 sums in another order
FLIPS = 1e-4  # most flips for each bucket id
TOKENS = 2_000
PARTS = (1.0, 0.25, 0.7)  # of the segment length; a single token comes after each of them
PURPOSES = ("score", "generate", "detail")
ROWS = 2  # batch rows
RESTART = (1, 3)  # the row that begins again, and the step before which it does
CPU = Device("cpu")
Outputs = Mapping[str, npt.NDArray[Any]]


@dataclass
class Compared:
    """The differences of one graph between kernels and bodies, and the custom operators that ran.

    Attributes:
        graph: the purpose, or its variant for few tokens.
        log_prob: the largest difference of a log-probability, in nats.
        memory: the largest difference of a number in the carried memories.
        buckets, flips: how many bucket ids were computed, and how many of them differ.
        flipped: the largest difference of a log-probability in rows with a flip.
        ran: how often each kernel ran in the profile of the walk with kernels.
        without_kernel: custom operators of the graph that had no kernel in this walk.
        in_bodies: custom operators that ran as kernels in the walk with bodies, which must be none.
    """

    bundle: str
    graph: str
    steps: int = 0
    log_prob: float = 0.0
    memory: float = 0.0
    buckets: int = 0
    flips: int = 0
    flipped: float = 0.0
    ran: Counter[str] = field(default_factory=Counter)
    without_kernel: list[str] = field(default_factory=list)
    in_bodies: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Return whether all kernels and all bodies ran, and gave the same."""
        few = self.flips <= max(1, FLIPS * self.buckets)
        return not self.without_kernel and not self.in_bodies and self.log_prob <= LIMIT and few

    def add(self, model: Model, outputs: Sequence[Outputs], memories: Sequence[Memory], length: int) -> None:
        """Add the differences of a step. If buckets flipped, continue both walks with the memory of the bodies."""
        pairs = {entry.input: [memory.array(entry) for memory in memories] for entry in model.bundle.memory}
        flips, memory = np.zeros(ROWS, np.int64), [np.zeros(ROWS)]
        for name, (one, other) in pairs.items():
            if "bucket" in name:
                flips += (one != other).sum(axis=tuple(range(1, one.ndim)))
                self.buckets += one[..., :1].size * length  # the last axis has the tokens
            else:
                memory.append(np.abs(one.astype(np.float64) - other).reshape(ROWS, -1).max(axis=1, initial=0))
        if flips.any():
            for one, other in pairs.values():
                one[...] = other
        differences, same = _log_probs(outputs), flips == 0
        self.steps += 1
        self.flips += int(flips.sum())
        self.memory = float(np.maximum(self.memory, np.max(memory, axis=0)[same].max(initial=0)))  # NaN stays
        self.log_prob = float(np.maximum(self.log_prob, differences[same].max(initial=0)))
        self.flipped = float(np.maximum(self.flipped, differences[~same].max(initial=0)))

    def __str__(self) -> str:
        ran = ", ".join(f"{count:,} {operator}" for operator, count in sorted(self.ran.items())) or "no custom operator"
        flips = f"; {self.flips} of {self.buckets:,} buckets flip: {self.flipped:.1e} there" if self.flips else ""
        missing = "".join(f"; no kernel for {operator}" for operator in self.without_kernel)
        stray = "".join(f"; a kernel for {operator} without kernels" for operator in self.in_bodies)
        return (
            f"{self.bundle:28} {self.graph:12} {self.steps:5,} steps  log_prob {self.log_prob:.1e}  "
            f"memory {self.memory:.1e}  {'ok  ' if self.passed else 'FAIL'}  {ran}{flips}{missing}{stray}"
        )


def _log_probs(outputs: Sequence[Outputs]) -> npt.NDArray[np.float64]:
    """Return the largest difference of each row, in nats; logits count as the log-probabilities that they give."""
    one, other = (each.get("log_prob", each.get("logits")) for each in outputs)
    if "logits" in outputs[0]:
        one, other = (row - np.logaddexp.reduce(row.astype(np.float64), axis=-1, keepdims=True) for row in (one, other))
    return np.abs(one.astype(np.float64) - other).reshape(ROWS, -1).max(axis=1)


class _Side:
    """A bundle with kernels or with bodies, whose sessions write profiles."""

    def __init__(self, folder: Path, kernels: Kernels | None, threads: int | None, profiles: Path) -> None:
        self.folder, self._kernels, self._opened = folder, kernels, dict[str, GraphSession]()
        self._prefix = profiles / ("bodies" if kernels is None else "kernels")
        bundle = read_bundle(folder)
        options = LoadOptions(threads=threads, ops="none" if kernels is None else kernels.path)
        self.model = Model(folder, bundle, options, open_session=functools.partial(self._open, bundle, threads))

    def _open(self, bundle: Bundle, threads: int | None, purpose: str, graph: Graph) -> GraphSession:
        self._opened[purpose] = GraphSession(
            self.folder, graph, bundle.memory, CPU, threads, profile=f"{self._prefix}_{purpose}",
            data_files=bundle.files, kernels=self._kernels,
        )  # fmt: skip
        return self._opened[purpose]

    def custom_operators(self, graph: str) -> set[str]:
        """Return the names of the custom operators among the nodes of a graph."""
        path = self.folder / self.model.bundle.graphs[graph].file
        nodes = onnx.load(path, load_external_data=False).graph.node
        return {node.op_type for node in nodes if node.domain == DOMAIN}

    def executed(self, graph: str) -> Counter[str]:
        """Return how often the profile of a graph has each custom operator; this ends the profile."""
        events = json.loads(self._opened[graph].end_profiling().read_text("utf-8"))
        runs = (event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"))
        own = self.custom_operators(graph)
        return Counter(operator for event in runs if (operator := event["args"]["op_name"]) in own)


def compare_bundle(
    folder: Path, kernels: Kernels | None, tokens: int = TOKENS, segment_len: int | None = None,
    threads: int | None = None,
) -> list[Compared]:  # fmt: skip
    """Walk all graphs of a bundle with kernels and with bodies, and return what differed and what ran."""
    title = folder.parent.name if folder.name == "bundle" else folder.name
    compared: dict[str, Compared] = {}
    with tempfile.TemporaryDirectory() as profiles:
        sides = [_Side(folder, each, threads, Path(profiles)) for each in (kernels, None)]
        models = [side.model for side in sides]
        for purpose in filter(models[0].bundle.graphs.__contains__, PURPOSES):
            for graph, *step in _walk(models, purpose, tokens, segment_len):
                compared.setdefault(graph, Compared(title, graph)).add(models[0], *step)
        for graph, each in compared.items():
            each.ran = sides[0].executed(graph)
            each.in_bodies = sorted(sides[1].executed(graph))
            each.without_kernel = sorted(sides[0].custom_operators(graph) - each.ran.keys())
    return list(compared.values())


def _walk(models: Sequence[Model], purpose: str, tokens: int, segment_len: int | None) -> Iterator[tuple[Any, ...]]:
    """Yield the graph of each step, its outputs, the memories, and its length."""
    longest = segment_len or _longest(models[0], purpose, tokens)
    settings = models[0].evaluation(longest)
    text = verify_ids(models[0].bundle, models[0].tokenizer, None)
    memories = [model.new_memory(settings, ROWS) for model in models]
    done, number = 0, 0
    while done < tokens:
        for memory in memories:
            for row in range(ROWS):
                if memory.room[row] < longest or (row, number) == RESTART:
                    memory.restart(row)
        length = 1 if number % 2 else max(1, int(longest * PARTS[number // 2 % len(PARTS)]))
        begins = [done + row * len(text) // ROWS for row in range(ROWS)]
        ids = np.stack([np.take(text, range(begin, begin + length + 1), mode="wrap") for begin in begins])
        sides = zip(models, memories, strict=True)
        outputs = [model.step(purpose, memory, ids[:, :-1], ids[:, 1:]) for model, memory in sides]
        yield models[0].graph_for(purpose, length), outputs, memories, length
        done, number = done + length, number + 1


def _longest(model: Model, purpose: str, tokens: int) -> int:
    """Return a length of segments for which both graphs of a purpose run, if it has one for few tokens."""
    settings = model.bundle.settings
    if settings.full_document:
        return min(settings.segment_len, tokens)
    variants = (graph for graph in model.bundle.variants(purpose).values() if graph.variant_of is not None)
    few_tokens = max((graph.max_segment or 0 for graph in variants), default=0)
    return model.longest_step(purpose, max(settings.segment_len, 2 * few_tokens))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each graph; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    parser.add_argument("--ops", default="auto", help="a library of kernels, or auto: that of xlexport-ops")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens of each walk")
    parser.add_argument("--segment-len", type=int, help="tokens of the longest step; default: the bundle's own")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args(arguments)
    kernels = find_kernels(options.ops, CPU)
    if kernels is None:
        parser.error("xlexport-ops is not installed; give a library with --ops")
    print(f"{kernels} against bodies; at most {LIMIT:g} nats allowed")
    failed = False
    for folder in options.bundles:
        for each in compare_bundle(folder, kernels, options.tokens, options.segment_len, options.threads):
            failed |= not each.passed
            print(each, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
