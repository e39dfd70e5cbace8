"""Walks with kernels and with bodies of the custom operators give the same, and each kernel was exercised.

The proof is ONNX Runtime's profile of the steps: it has a custom operator by name only if a kernel computed it, because
nodes without one become their bodies.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import pytest

from tests.helpers.bundles import Converted, ConvertedReformer
from tests.helpers.manifests import without_fused_graphs
from tests.helpers.paths import golden_bundle
from xlexport.ops import custom_operators
from xlruntime.bundle import Bundle, Graph
from xlruntime.bundle_files import read_bundle
from xlruntime.devices import Device
from xlruntime.kernels import Kernels, find_kernels
from xlruntime.load_options import LoadOptions
from xlruntime.model import Model
from xlruntime.session import GraphSession

pytestmark = pytest.mark.full  # compiles C++

LIMIT = 1e-5  # nats; float32 sums in another order
# A hash is not continuous: rounding decides between two directions that are almost equally large. 1 of 48,000 seen.
MOST_FLIPS = 2
TOKENS, ROWS = 150, 2
LENGTHS = (1.0, 0.0, 0.25, 0.0, 0.7, 0.0)  # of the longest step; a single token comes after each long one
PURPOSES = ("score", "generate", "detail")
CPU = Device("cpu")


class Walk:
    """A walk of all graphs of a bundle, in steps of changing lengths, of which one row begins again.

    Attributes:
        log_probs: the log-probabilities (or logits) of each graph's steps; buckets: the bucket ids in memory.
        ran: the custom operators in the profile of each graph; declared: those among its nodes.
    """

    def __init__(self, folder: Path, kernels: Kernels | None, profiles: Path) -> None:
        self._folder, self._kernels, self._profiles = folder, kernels, profiles / str(bool(kernels))
        bundle = read_bundle(folder)
        self._sessions: dict[str, GraphSession] = {}
        options = LoadOptions(threads=1, ops="none" if kernels is None else kernels.path)
        self.model = Model(folder, bundle, options, open_session=functools.partial(self._open, bundle))
        self.log_probs: dict[str, list[npt.NDArray[Any]]] = {}
        self.buckets: list[npt.NDArray[Any]] = []
        for purpose in filter(bundle.graphs.__contains__, PURPOSES):
            self._walk(purpose)
        self.ran = {graph: self._executed(graph) for graph in self._sessions}
        self.declared = {graph: self._custom_operators(graph) for graph in self._sessions}

    def _open(self, bundle: Bundle, purpose: str, graph: Graph) -> GraphSession:
        self._sessions[purpose] = GraphSession(
            self._folder, graph, bundle.memory, CPU, 1, profile=f"{self._profiles}_{purpose}", kernels=self._kernels,
            data_files=bundle.files,
        )  # fmt: skip
        return self._sessions[purpose]

    def _walk(self, purpose: str) -> None:
        settings = self.model.bundle.settings
        longest = min(settings.segment_len, TOKENS)
        if not settings.full_document:  # long enough for the graph of many tokens, too
            longest = self.model.longest_step(purpose, max(settings.segment_len, 24))
        memory = self.model.new_memory(self.model.evaluation(longest), ROWS)
        random = np.random.default_rng(0)
        for number in range(12):
            for row in range(ROWS):
                if memory.room[row] < longest or (row, number) == (1, 3):
                    memory.restart(row)
            length = max(1, int(longest * LENGTHS[number % len(LENGTHS)]))
            ids = random.integers(0, self.model.bundle.vocab_size, (ROWS, length + 1))
            outputs = self.model.step(purpose, memory, ids[:, :-1], ids[:, 1:])
            graph = self.model.graph_for(purpose, length).removesuffix("_fused")
            self.log_probs.setdefault(graph, []).append(outputs.get("log_prob", outputs.get("logits")).copy())
            names = [entry for entry in self.model.bundle.memory if "bucket" in entry.input]
            self.buckets += [memory.array(entry).copy() for entry in names]

    def _custom_operators(self, graph: str) -> set[str]:
        return custom_operators(ir.load(self._folder / self.model.bundle.graphs[graph].file).graph)

    def _executed(self, graph: str) -> set[str]:
        events = json.loads(self._sessions[graph].end_profiling().read_text("utf-8"))
        runs = (event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"))
        return {event["args"]["op_name"] for event in runs} & self._custom_operators(graph)


def check(folder: Path, kernels: Kernels | None, profiles: Path) -> None:
    """Compare both walks of a bundle."""
    ours, bodies = Walk(folder, kernels, profiles), Walk(folder, None, profiles)
    assert ours.log_probs.keys() == bodies.log_probs.keys() >= {"score", "generate", "detail"}
    assert ours.ran == ours.declared and all(ours.declared[graph] for graph in ours.declared if graph != "positions")
    assert not any(bodies.ran.values())
    flips = sum(int((one != other).sum()) for one, other in zip(ours.buckets, bodies.buckets, strict=True))
    if flips:  # it stays in memory, and moves the scores that see it
        assert flips <= MOST_FLIPS * len(LENGTHS) * 2
        return
    for graph, steps in ours.log_probs.items():
        for one, other in zip(steps, bodies.log_probs[graph], strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=LIMIT, err_msg=graph)


@pytest.fixture(scope="module")
def kernels(kernel_library: Path) -> Kernels:
    kernels = find_kernels(kernel_library, CPU)
    assert kernels is not None
    return kernels


@pytest.mark.parametrize("name", ["relative_attention", "reformer_band", "reformer_chunk", "reformer_paper"])
def test_golden_bundles(name: str, kernels: Kernels, tmp_path: Path) -> None:
    check(golden_bundle(name), kernels, tmp_path)


@pytest.mark.release
def test_fresh_bundles(
    bytes_bundle: Converted, band: ConvertedReformer, chunk: ConvertedReformer, kernels: Kernels, tmp_path: Path
) -> None:
    plain = without_fused_graphs(band.folder, tmp_path / "plain")
    for number, folder in enumerate((bytes_bundle.folder, band.folder, plain, chunk.folder)):
        (tmp_path / str(number)).mkdir()
        check(folder, kernels, tmp_path / str(number))


def test_nodes_without_kernels_are_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check(golden_bundle("relative_attention"), None, tmp_path)
