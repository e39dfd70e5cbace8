"""What a step must do at least: its arithmetic, and the bytes that it must read and write.

The bytes are those of

* weights: every matrix and vector in the graph's file, once, at the size that it has there, be it quantized. Of a table
  that rows are only taken from, such as embeddings, one row a token; of a cluster of rare tokens that no target is in,
  nothing.
* rings of keys and values: read whole once, the new rows written. LSH attention over long segments reads those of its
  layers once in each round, as each sorts them otherwise; over few tokens it reads `chunk_length` rows a token and
  round. Bucket ids are read whole, their new rows written.
* recent rows of local attention: read and written whole.
* positional keys: read once.

Not counted is what a perfect step would keep in the processor's caches: everything computed on the way.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xlexport.architectures import StepSize, architecture
from xlexport.bench.hardware import Rates
from xlexport.bench.runners import GraphSide
from xlruntime.spec import Memory

__all__ = ["Floor", "step_floor", "weight_bytes"]


@dataclass(frozen=True)
class Floor:
    """Of one step; no `flops` if the architecture does not count them, and then no floor either."""

    flops: int | None
    bytes: int

    def arithmetic_seconds(self, rates: Rates) -> float | None:
        """Return the time for the arithmetic alone, at the rate of a large float32 matrix product."""
        return None if self.flops is None else self.flops / rates.sgemm / 1e9

    def bytes_seconds(self, rates: Rates) -> float:
        """Time for the bytes alone."""
        return self.bytes / rates.memory / 1e9

    def seconds(self, rates: Rates) -> float | None:
        """Return the larger of both: no step takes less."""
        arithmetic = self.arithmetic_seconds(rates)
        return None if arithmetic is None else max(arithmetic, self.bytes_seconds(rates))

    def bound(self, rates: Rates) -> Literal["arithmetic", "bytes"] | None:
        """Return which of both it is."""
        arithmetic = self.arithmetic_seconds(rates)
        if arithmetic is None:
            return None
        return "arithmetic" if arithmetic >= self.bytes_seconds(rates) else "bytes"


def step_floor(side: GraphSide) -> Floor:
    """Count the arithmetic and the bytes of a step."""
    bundle, work, memory = side.model.bundle, side.work, side.memory
    graph = bundle.graphs[side.graph]
    inputs = {tensor.name: tensor for tensor in graph.inputs}
    few = graph.max_segment is not None
    scores = work.purpose == "score"
    moved = weight_bytes(
        side.model.folder / graph.file,
        work.batch_size * work.segment_len,
        _unused_clusters(bundle.config, side.targets) if scores else frozenset(),
    )
    constants = {name: value.shape() for name, value in memory.constants.items() if name in inputs}
    size = StepSize(
        work.batch_size,
        work.segment_len,
        memory.capacity,
        few,
        last_only=not scores,
        constants={name: tuple(shape) for name, shape in constants.items()},
        targets=side.targets,
    )
    found = architecture(bundle.architecture)
    config = found.evaluated_config(bundle.config, work.evaluation)
    for entry in memory.entries:
        if entry.input in inputs:
            ring = entry.symbol and dataclasses.replace(size, capacity=memory.plan.slots(entry.symbol))
            moved += _memory_bytes(entry, size, found.rows_read(config, entry.input, ring) if ring else 0)
    moved += sum(math.prod(shape) * np.dtype(inputs[name].dtype).itemsize for name, shape in constants.items())
    return Floor(found.flops(config, size), moved)


def weight_bytes(path: Path, tokens: int, unused_clusters: frozenset[int] = frozenset()) -> int:
    """Bytes of weights that a step of so many tokens reads of the graph in `path`; see above.

    Args:
        unused_clusters: clusters of the vocabulary that no target is in.
    """
    import onnx_ir as ir

    total = 0
    for name, value in ir.load(path).graph.initializers.items():
        tensor = value.const_value
        assert tensor is not None
        if tensor.dtype in (ir.DataType.INT64, ir.DataType.BOOL) or not tensor.shape.rank():
            continue  # shapes, places and other numbers of the graph's own
        cluster = re.search(r"head\.clusters\.(\d+)\.", name)
        unused = cluster is not None and int(cluster[1]) in unused_clusters
        taken = [use.node.op_type.startswith("Gather") and use.idx != 1 for use in value.uses()]
        rows = math.ceil(tensor.nbytes / tensor.shape.numpy()[0]) * tokens
        if unused:
            total += min(tensor.nbytes, rows) if any(taken) else 0
        else:
            total += min(tensor.nbytes, rows) if all(taken) else tensor.nbytes
    return total


def _unused_clusters(config: Any, targets: npt.NDArray[np.int64]) -> frozenset[int]:
    """Clusters of rare tokens that none of the targets is in."""
    cutoffs = config.get("cutoffs") or ()
    used = np.searchsorted(np.array(cutoffs, np.int64), targets, side="right")
    return frozenset(range(1, len(cutoffs) + 1)) - set(used.ravel().tolist())


def _memory_bytes(entry: Memory, size: StepSize, rows_read: int) -> int:
    """Return the bytes that a step reads and writes of one memory; one that is not a ring is read and written whole."""
    row = np.dtype(entry.dtype).itemsize * size.batch_size
    row *= math.prod(axis for axis in entry.shape if isinstance(axis, int))
    return row * (rows_read + size.segment_len) if entry.layout == "ring" else 2 * row
