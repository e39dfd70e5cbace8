"""The minimal work of a step: its arithmetic, and the bytes that it must read and write.

The bytes are the sum of:

* weights: every matrix and vector in the graph's file, read once, at its size in the file (also if quantized). A table
  from which the step only gathers rows, such as embeddings, counts one row for each token. A cluster of rare tokens
  without any target counts nothing.
* rings of keys and values: read completely once, and new rows written. LSH attention over long segments reads the rings
  of its layers once in each round, because every round sorts them in another order. Over few tokens it reads
  `chunk_length` rows for each token and round. Bucket ids are read completely, and their new rows written.
* recent rows of local attention: read and written completely.
* positional keys: read once.

Intermediate results do not count, because a perfect step would keep them in the processor's caches.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from xlexport.bench.measuring import Rates
from xlexport.bench.sides import GraphSide
from xlexport.families import workload_of
from xlexport.families.workload import StepSize
from xlruntime.bundle import POSITIONS, MemoryEntry

__all__ = ["Floor", "step_floor", "weight_bytes"]


@dataclass(frozen=True)
class Floor:
    """The minimal work of one step. `flops` and the floor are None if the architecture does not count arithmetic."""

    flops: int | None
    bytes: int

    def arithmetic_seconds(self, rates: Rates) -> float | None:
        """Return the time of the arithmetic alone, at the rate of a large float32 matrix product."""
        return None if self.flops is None else self.flops / rates.sgemm / 1e9

    def bytes_seconds(self, rates: Rates) -> float:
        """Return the time of reading and writing the bytes alone."""
        return self.bytes / rates.memory / 1e9

    def seconds(self, rates: Rates) -> float | None:
        """Return the larger of both times; every step takes at least this long."""
        arithmetic = self.arithmetic_seconds(rates)
        return None if arithmetic is None else max(arithmetic, self.bytes_seconds(rates))

    def bound(self, rates: Rates) -> Literal["arithmetic", "bytes"] | None:
        """Return which of both times is larger."""
        arithmetic = self.arithmetic_seconds(rates)
        if arithmetic is None:
            return None
        return "arithmetic" if arithmetic >= self.bytes_seconds(rates) else "bytes"


def step_floor(side: GraphSide) -> Floor:
    """Count the arithmetic and the bytes of a step."""
    bundle, work, memory = side.model.bundle, side.work, side.memory
    graph = bundle.graphs[side.graph]
    few = bundle.max_segment(side.graph) is not None
    scores = work.purpose == "score"
    unused: frozenset[int] = frozenset()  # clusters of rare tokens that contain none of the targets
    if scores:
        cutoffs = bundle.config.get("cutoffs") or ()
        used = np.searchsorted(np.array(cutoffs, np.int64), side.targets, side="right")
        unused = frozenset(range(1, len(cutoffs) + 1)) - set(used.ravel().tolist())
    moved = weight_bytes(side.model.folder / graph.file, work.batch_size * work.segment_len, unused)
    constants = {name: value.shape() for name, value in memory.constants.items() if name in graph.inputs}
    size = StepSize(
        work.batch_size,
        work.segment_len,
        memory.capacity,
        few,
        last_only=not scores,
        constants={name: tuple(shape) for name, shape in constants.items()},
        targets=side.targets,
    )
    config = {
        **bundle.config,
        **{name: value for name, value in work.evaluation.values.items() if name in bundle.config},
    }
    least = workload_of(bundle.architecture)
    for entry in memory.entries:
        if entry.input in graph.inputs:
            ring = entry.symbol and dataclasses.replace(size, capacity=memory.slots[entry.symbol])
            moved += _memory_bytes(entry, size, least.rows_read(config, entry.input, ring) if ring else 0)
    for name, shape in constants.items():
        moved += math.prod(shape) * np.dtype(bundle.graphs[POSITIONS].outputs[name].dtype).itemsize
    return Floor(least.flops(config, size), moved)


def weight_bytes(path: Path, tokens: int, unused_clusters: frozenset[int] = frozenset()) -> int:
    """Return the bytes of weights that a step with this many tokens reads from the graph in `path`; see above.

    Args:
        unused_clusters: clusters of the vocabulary that contain no target.
    """
    import onnx_ir as ir

    total = 0
    for name, value in ir.load(path).graph.initializers.items():
        tensor = value.const_value
        assert tensor is not None
        if tensor.dtype in (ir.DataType.INT64, ir.DataType.BOOL) or not tensor.shape.rank():
            continue  # shapes, indices and other constants of the graph
        cluster = re.search(r"head\.clusters\.(\d+)\.", name)
        unused = cluster is not None and int(cluster[1]) in unused_clusters
        gathers = [use.node.op_type.startswith("Gather") and use.idx != 1 for use in value.uses()]
        rows = math.ceil(tensor.nbytes / tensor.shape.numpy()[0]) * tokens
        if unused:
            total += min(tensor.nbytes, rows) if any(gathers) else 0
        else:
            total += min(tensor.nbytes, rows) if all(gathers) else tensor.nbytes
    return total


def _memory_bytes(entry: MemoryEntry, size: StepSize, rows_read: int) -> int:
    """Return the bytes of one memory that a step reads and writes; all of it unless the memory is a ring."""
    row = np.dtype(entry.dtype).itemsize * size.batch_size
    row *= math.prod(axis for axis in entry.shape if isinstance(axis, int))
    return row * (rows_read + size.segment_len) if entry.layout == "ring" else 2 * row
