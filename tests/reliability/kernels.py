"""Walk bundles with kernels and with bodies of the custom operators; compare all results, and prove that both ran.

python -m tests.reliability.kernels BUNDLE…                 the kernels of the package xlexport-ops
python -m tests.reliability.kernels BUNDLE… --ops LIBRARY   the kernels of a file
python -m tests.reliability.kernels BUNDLE… --tokens 20000 --segment-len 64

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from xlexport.verification.walked_text import verify_ids
from xlruntime.bundle import DOMAIN, Bundle, Graph
from xlruntime.bundle_files import read_bundle
from xlruntime.devices import Device
from xlruntime.kernels import Kernels, find_kernels
from xlruntime.load_options import LoadOptions
from xlruntime.memory import Memory
from xlruntime.model import Model
from xlruntime.session import GraphSession

__all__ = ["LIMIT", "Compared", "Difference", "compare_bundle", "difference_of", "main"]

LIMIT = 1e-5  # nats; float32 sums in another order
FLIPS = 1e-4  # most flips for each bucket id
TOKENS = 2_000
PARTS = (1.0, 0.25, 0.7)  # of the segment length; a single token comes after each of them
PURPOSES = ("score", "generate", "detail")
ROWS = 2  # batch rows
RESTART = (1, 3)  # the row that begins again, and the step before which it does
CPU = Device("cpu")
Ids = npt.NDArray[np.int64]


@dataclass
class Difference:
    """The differences of one step; arrays are (ROWS,).

    Attributes:
        log_prob: the largest of a log-probability.
        flips, buckets: bucket ids that differ, and how many bucket ids the step computed.
        memory: the largest of a number in the carried memories of rows without flips.
    """

    log_prob: npt.NDArray[np.float64]
    flips: npt.NDArray[np.int64]
    buckets: int
    memory: float


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

    def add(self, step: Difference) -> None:
        """Add the differences of a step."""
        self.steps += 1
        self.buckets += step.buckets
        self.flips += int(step.flips.sum())
        self.memory = float(np.maximum(self.memory, step.memory))  # NaN stays
        self.log_prob = float(np.maximum(self.log_prob, step.log_prob[step.flips == 0].max(initial=0)))
        self.flipped = float(np.maximum(self.flipped, step.log_prob[step.flips > 0].max(initial=0)))

    def __str__(self) -> str:
        ran = ", ".join(f"{count:,} {operator}" for operator, count in sorted(self.ran.items())) or "no custom operator"
        flips = f"; {self.flips} of {self.buckets:,} buckets flip: {self.flipped:.1e} there" if self.flips else ""
        missing = "".join(f"; no kernel for {operator}" for operator in self.without_kernel)
        stray = "".join(f"; a kernel for {operator} without kernels" for operator in self.in_bodies)
        return (
            f"{self.bundle:28} {self.graph:12} {self.steps:5,} steps  log_prob {self.log_prob:.1e}  "
            f"memory {self.memory:.1e}  {'ok  ' if self.passed else 'FAIL'}  {ran}{flips}{missing}{stray}"
        )


class _Side:
    """A bundle with kernels or with bodies, whose sessions write profiles."""

    def __init__(self, folder: Path, kernels: Kernels | None, threads: int | None, profiles: Path) -> None:
        self.folder, self.profiles, self.opened = folder, profiles, dict[str, GraphSession]()
        bundle = read_bundle(folder)
        open_session = functools.partial(self._open, kernels, threads, bundle)
        options = LoadOptions(threads=threads, ops="none" if kernels is None else kernels.path)
        self.model = Model(folder, bundle, options, open_session=open_session)

    def _open(
        self, kernels: Kernels | None, threads: int | None, bundle: Bundle, purpose: str, graph: Graph
    ) -> GraphSession:
        prefix = str(self.profiles / f"{purpose}_{'kernels' if kernels else 'bodies'}")
        session = GraphSession(
            self.folder, graph, bundle.memory, CPU, threads, profile=prefix, data_files=bundle.files, kernels=kernels
        )
        self.opened[purpose] = session
        return session

    def executed(self, graph: str) -> Counter[str]:
        """Return how often the profile of a graph has each custom operator; this ends the profile."""
        wanted = custom_operators(self.folder / self.model.bundle.graphs[graph].file)
        events = json.loads(self.opened[graph].end_profiling().read_text("utf-8"))
        runs = (event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"))
        return Counter(operator for event in runs if (operator := event["args"]["op_name"]) in wanted)


def custom_operators(path: Path) -> set[str]:
    """Return the names of the custom operators among the nodes of an ONNX file's graph."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    return {node.op_type for node in model.graph.node if node.domain == DOMAIN}


def compare_bundle(
    folder: Path,
    kernels: Kernels | None,
    *,
    tokens: int = TOKENS,
    segment_len: int | None = None,
    threads: int | None = None,
) -> list[Compared]:
    """Walk all graphs of a bundle with kernels and with bodies, and return what differed and what ran."""
    found: dict[str, Compared] = {}
    with tempfile.TemporaryDirectory() as profiles:
        sides = [_Side(folder, given, threads, Path(profiles)) for given in (kernels, None)]
        for purpose in filter(sides[0].model.bundle.graphs.__contains__, PURPOSES):
            for graph, step in _walk(sides, purpose, tokens, segment_len):
                found.setdefault(graph, Compared(_title(folder), graph)).add(step)
        for one in found.values():
            one.ran = sides[0].executed(one.graph)
            one.in_bodies = sorted(sides[1].executed(one.graph))
            own = custom_operators(folder / sides[0].model.bundle.graphs[one.graph].file)
            one.without_kernel = sorted(own - one.ran.keys())
    return list(found.values())


def _walk(
    sides: Sequence[_Side], purpose: str, tokens: int, segment_len: int | None
) -> Iterator[tuple[str, Difference]]:
    """Yield the graph of each step, and its differences."""
    models = [side.model for side in sides]
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
        ids = np.stack([np.take(text, range(at, at + length + 1), mode="wrap") for at in _begins(text, done)])
        made = [
            model.step(purpose, memory, ids[:, :-1], ids[:, 1:]) for model, memory in zip(models, memories, strict=True)
        ]
        yield models[0].graph_for(purpose, length), difference_of(models[0], made, memories, length)
        done, number = done + length, number + 1


def _longest(model: Model, purpose: str, tokens: int) -> int:
    """Return a length of segments for which both graphs of a purpose run, if it has one for few tokens."""
    settings = model.bundle.settings
    if settings.full_document:
        return min(settings.segment_len, tokens)
    variants = (graph for graph in model.bundle.variants(purpose).values() if graph.variant_of is not None)
    few_tokens = max((graph.max_segment or 0 for graph in variants), default=0)
    return model.longest_step(purpose, max(settings.segment_len, 2 * few_tokens))


def _begins(text: Ids, done: int) -> list[int]:
    """Return where the next step begins in the text, for each row."""
    return [done + row * len(text) // ROWS for row in range(ROWS)]


def difference_of(
    model: Model, made: Sequence[dict[str, npt.NDArray[Any]]], memories: Sequence[Memory], length: int
) -> Difference:
    """Return the differences of a step. If buckets flipped, continue both walks with the memory of the bodies."""
    pairs = {entry.input: [memory.array(entry) for memory in memories] for entry in model.bundle.memory}
    flips, buckets, differences = np.zeros(ROWS, np.int64), 0, []
    for name, (one, other) in pairs.items():
        if "bucket" in name:
            flips += (one != other).sum(axis=tuple(range(1, one.ndim)))
            buckets += one[..., :1].size * length  # the last axis has the tokens
        else:
            differences.append(np.abs(one.astype(np.float64) - other).reshape(ROWS, -1).max(axis=1, initial=0))
    if flips.any():
        for one, other in pairs.values():
            one[...] = other
    kept = [part[flips == 0].max(initial=0) for part in differences]
    return Difference(_log_probs(made), flips, buckets, float(max(kept, default=0)))


def _log_probs(made: Sequence[dict[str, npt.NDArray[Any]]]) -> npt.NDArray[np.float64]:
    """Return the largest difference of each row, in nats; logits count as the log-probabilities that they give."""
    rows = [outputs.get("log_prob", outputs.get("logits")) for outputs in made]
    if "logits" in made[0]:
        rows = [row - np.logaddexp.reduce(row.astype(np.float64), axis=-1, keepdims=True) for row in rows]
    difference = np.abs(rows[0].astype(np.float64) - rows[1])
    return difference.reshape(ROWS, -1).max(axis=1)


def _title(folder: Path) -> str:
    return folder.parent.name if folder.name == "bundle" else folder.name


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each graph; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", nargs="+", type=Path, metavar="BUNDLE")
    parser.add_argument("--ops", default="auto", help="a library of kernels, or auto: that of xlexport-ops")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens of each walk")
    parser.add_argument("--segment-len", type=int, help="tokens of the longest step; default: the bundle's own")
    parser.add_argument("--threads", type=int)
    chosen = parser.parse_args(arguments)
    kernels = find_kernels(chosen.ops, CPU)
    if kernels is None:
        parser.error("xlexport-ops is not installed; give a library with --ops")
    print(f"{kernels} against bodies; at most {LIMIT:g} nats allowed")
    failed = False
    for folder in chosen.bundles:
        for one in compare_bundle(
            folder, kernels, tokens=chosen.tokens, segment_len=chosen.segment_len, threads=chosen.threads
        ):
            failed |= not one.passed
            print(one, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
