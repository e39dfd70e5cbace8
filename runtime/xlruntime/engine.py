"""An open bundle: the sessions of its graphs, their carried memories, and the steps that they run."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .bundle_files import BundleFiles
from .cuda_graphs import FixedSessions
from .deadline import Deadline
from .devices import Device
from .errors import BundleError, OptionError
from .evaluation import EvaluationSettings, SettingValue
from .graph_outputs import OutputCheck
from .kernels import Kernels, describe_kernels
from .memory import BatchMemory, MemoryPlan, check_room
from .messages import first_line, named
from .placement import count_placed
from .session import GraphSession, Session, SessionFactory
from .spec import FIRST_MEMORY_FILE, Bundle, Graph
from .tokenizers import make_tokenizer

__all__ = ["Engine"]

logger = logging.getLogger(__name__)

KEPT_CONSTANTS = 16  # sets of positional keys kept for later streams, and for batches of other lengths


class Engine:
    """An open bundle. Safe to share between threads.

    Attributes:
        folder: the bundle's folder.
        bundle: the manifest.
        tokenizer: text to token ids and back.
        device: where steps run and memories live.
        threads: threads of one step; None: ONNX Runtime chooses.
        strict_device: whether the device must compute everything but the sizes of tensors.
        kernels: the library of kernels for custom operators; None: their bodies run.
    """

    def __init__(
        self,
        folder: Path,
        bundle: Bundle,
        device: Device,
        threads: int | None,
        strict_device: bool = False,
        *,
        open_session: SessionFactory | None = None,
        files: BundleFiles | None = None,
        deadline: Deadline | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        """Open a bundle.

        Args:
            open_session: opens the session of a graph; None opens ONNX files with ONNX Runtime.
            files: the state of the bundle's files when they were checked; None: their state now.
            deadline: the time limit of each step; None: no limit.
            kernels: the library of kernels for custom operators; None: their bodies run.
        """
        self.folder = folder
        self.bundle = bundle
        self.device = device
        self.threads = threads
        self.strict_device = strict_device
        self.kernels = kernels
        self.tokenizer = make_tokenizer(bundle.tokenizer, folder)
        self._open_session = open_session or self._open_onnx
        self._files = files or BundleFiles(folder, bundle)
        self._deadline = deadline
        self._checks: dict[str, OutputCheck] = {}
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._fixed: FixedSessions | None = None
        self._constants: dict[tuple[tuple[str, int], ...], dict[str, Any]] = {}
        limit = "none" if deadline is None else f"{deadline.seconds:g} s"
        logger.info("%s: device %s, threads %s, step_timeout %s", folder, device, threads or "as many as cores", limit)
        logger.info("%s: kernels %s", folder, kernels or "none")
        self.session("score")  # fail now, not at the first document
        with self._files.unchanged():
            self._first_values = self._read_first_values()

    def __repr__(self) -> str:
        settings = self.bundle.settings
        chosen = {"segment_len": settings.segment_len, **settings.values}
        size = sum(file.size for file in self.bundle.files.values())
        return (
            f"{type(self).__name__}({named(self.folder)!r}: {self.bundle.architecture}, {self.bundle.precision}, "
            f"{self.bundle.vocab_size:,} tokens ({self.bundle.tokenizer.kind}), "
            f"{', '.join(f'{name} {value}' for name, value in chosen.items())}, {self.device}, {size / 1e6:,.1f} MB)"
        )

    def session(self, purpose: str) -> Session:
        """Return the session of one graph, opened when first needed.

        Raises:
            OptionError: the bundle has no graph for `purpose`.
        """
        if (opened := self._sessions.get(purpose)) is not None:
            return opened
        with self._lock:
            if purpose not in self._sessions:
                self._sessions[purpose] = self._open(purpose)
            return self._sessions[purpose]

    def _open(self, purpose: str) -> Session:
        graph = self.bundle.graphs.get(purpose)
        if graph is None:
            have = ", ".join(sorted(self.bundle.graphs))
            raise OptionError(f"{self.folder}: no graph for {purpose!r}; this bundle has {have}.")
        with self._files.unchanged():
            session = self._open_session(purpose, graph)
        if session.metadata != graph.metadata(self.bundle.memory):
            raise BundleError(
                f"{self.folder / graph.file}: its metadata differs from the manifest.",
                repair="Convert the checkpoint again.",
            )
        logger.info("%s: graph %s runs on %s", self.folder / graph.file, purpose, ", ".join(session.providers))
        return session

    def _open_onnx(self, purpose: str, graph: Graph) -> Session:
        if graph.format != "onnx":
            raise BundleError(
                f"{self.folder / graph.file}: {graph.format}, which needs PyTorch, not ONNX Runtime; loading it "
                "runs code from the file.",
                repair=(
                    "If you trust it like a program, use a command with --trust, or xlexport.torch_runtime.load. "
                    "All other commands need a bundle of convert --to onnx."
                ),
            )
        return GraphSession(
            self.folder,
            graph,
            self.device,
            self.threads,
            self.strict_device,
            data_files=self.bundle.guarded_files,
            deadline=self._deadline,
            kernels=self.kernels,
        )

    def placement(self, purpose: str) -> dict[str, dict[str, int]]:
        """Return where the nodes of a graph run: `{execution provider: {operator: count}}`.

        Raises:
            OptionError: the bundle has no graph for `purpose`.
        """
        return count_placed(self.session(purpose).nodes)

    def kernels_used(self, purpose: str) -> str:
        """Return which kernels of custom operators run in a graph, for people.

        Raises:
            OptionError: the bundle has no graph for `purpose`.
        """
        return describe_kernels(self.kernels, self.session(purpose).nodes)

    def use_fixed(self) -> None:
        """Run later steps of a repeated shape in a session for that shape alone.

        `load` does so for `cuda_graphs`. Without CUDA graphs it has no benefit.
        """
        logger.info("%s: steps of repeated shapes run in graphs of fixed shape", self.folder)
        self._fixed = FixedSessions(self.folder, self.bundle, self.device, self.threads, self._files, self._deadline)

    def release(self, purpose: str | None = None) -> None:
        """Close the session of one graph and free its memory. The session opens again when it is needed.

        Args:
            purpose: the graph; None: all graphs, with what was computed for them.
        """
        with self._lock:
            if purpose is not None:
                self._sessions.pop(purpose, None)
                return
            self._sessions.clear()
            self._constants.clear()
            if self._fixed is not None:
                self.use_fixed()
        logger.debug("%s: all graphs closed", self.folder)

    def evaluation(
        self, segment_len: int | None = None, restart: SettingValue | None = None, **settings: SettingValue | None
    ) -> EvaluationSettings:
        """Return the bundle's evaluation settings with the given ones replaced; None keeps the bundle's own.

        Args:
            segment_len: tokens in one step; the longest document if a document is one step.
            restart: whether a document without positions left begins again, instead of being refused.
            settings: settings that the bundle declares, such as `mem_len`, `clamp_len`, `same_length` or `n_hashes`.
                `bundle.evaluation.settings` lists them with their ranges and meanings.

        Raises:
            OptionError: a value is out of range, or the bundle has no such setting.
        """
        try:
            return self.bundle.evaluation.choose(segment_len, restart, **settings)
        except OptionError as error:
            raise OptionError(f"{self.folder}: {error.message}", repair=error.repair) from None

    def new_memory(
        self, evaluation: EvaluationSettings, batch_size: int = 1, capacity: int | None = None
    ) -> BatchMemory:
        """Return fresh memory for `batch_size` rows.

        Args:
            capacity: slots of the largest ring; smaller rings get as many spare slots. None is just enough for
                `evaluation.segment_len`.
        """
        capacity = evaluation.capacity() if capacity is None else capacity
        if batch_size < 1:
            raise OptionError(f"batch size is {batch_size}, at least 1 is needed.")
        if evaluation.max_segment(capacity) < 1:
            raise OptionError(
                f"a capacity of {capacity} slots is too small for a segment: {evaluation.most_rows} rows are kept."
            )
        plan = MemoryPlan(self.bundle.memory, self._first_values, {}, evaluation, capacity, self.device)
        if self.device.kind == "cpu":
            check_room(plan, batch_size)  # before constants of such a capacity are made
        return BatchMemory.fresh(replace(plan, constants=self._make_constants(evaluation, capacity)), batch_size)

    def step(
        self, purpose: str, memory: BatchMemory, tokens: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]
    ) -> dict[str, npt.NDArray[Any]]:
        """Run one segment on `memory`, and advance the memory by it.

        Args:
            purpose: `score`, `generate` or `detail`. If the bundle has a variant of its graph for few tokens, such as
                `score_few`, and the segment is short enough, the variant runs: the numbers are the same.
            tokens: (B, S) ids within the vocabulary; targets (B, S) the token after each.

        Returns:
            The graph's outputs other than memory, by name.

        Raises:
            OptionError: the segment is longer than the graph, the rings or the positions allow.
            BundleError: the graph cannot run, or its outputs differ from the bundle's description.
            StepTimeoutError: the step took longer than `step_timeout`; the memory has not advanced.
        """
        B, S = tokens.shape
        if not 1 <= S <= memory.max_segment:
            raise OptionError(
                f"a segment of {S} tokens does not fit: a ring of {memory.capacity} slots that keeps "
                f"{memory.evaluation.most_rows} rows takes 1 to {memory.max_segment}.",
                repair="Split it.",
            )
        if (room := memory.room.min()) < S:
            raise OptionError(
                f"a segment of {S} tokens does not fit: a row has room for {room} more, as the model reads at most "
                f"{memory.evaluation.longest_part} tokens of a document.",
                repair="Restart the row.",
            )
        feeds = {"tokens": tokens, "targets": targets, **memory.feeds()}
        fixed = None if self._fixed is None else self._fixed.session(purpose, memory, S)
        name = f"{purpose}_fixed" if fixed else self.graph_for(purpose, S)
        outputs = (fixed or self.session(name)).step(feeds, memory)
        (self._checks.get(name) or self._output_check(name)).require(outputs, B, S)
        memory.advance(S)
        return outputs

    def _output_check(self, name: str) -> OutputCheck:
        """Return the check of this graph's outputs."""
        graph, carried = self.bundle.graphs[name], {entry.output for entry in self.bundle.memory}
        outputs = [tensor for tensor in graph.outputs if tensor.name not in carried]
        self._checks[name] = OutputCheck(self.folder / graph.file, outputs, self.bundle.vocab_size)
        return self._checks[name]

    def longest_step(self, purpose: str, segment_len: int) -> int:
        """Return `segment_len`, or the longest step of the graphs for `purpose` if that is shorter."""
        lengths = [graph.max_segment for graph in self._graphs_for(purpose).values()]
        return min(segment_len, max((length or segment_len for length in lengths), default=segment_len))

    def graph_for(self, purpose: str, segment_len: int) -> str:
        """Return the graph for steps of `segment_len` tokens: the purpose's own, or its variant for few tokens.

        Raises:
            OptionError: no graph for `purpose` takes so many tokens.
        """
        variants = self._graphs_for(purpose)
        for name, graph in variants.items():
            if graph.max_segment is None or segment_len <= graph.max_segment:
                return name
        if variants:
            raise OptionError(
                f"a segment of {segment_len} tokens does not fit: the graph for {purpose!r} takes 1 to "
                f"{self.longest_step(purpose, segment_len)}.",
                repair="Split it.",
            )
        return purpose

    def _graphs_for(self, purpose: str) -> dict[str, Graph]:
        """Return the graphs that compute `purpose`, the one for fewest tokens first."""
        graphs = self.bundle.graphs
        return {name: graphs[name] for name in (f"{purpose}_few", purpose) if name in graphs}

    def _make_constants(self, evaluation: EvaluationSettings, capacity: int) -> dict[str, Any]:
        """Return the outputs of the graph `positions`: computed once per settings, shared, read-only."""
        graph = self.bundle.graphs.get("positions")
        if graph is None:  # nothing depends on distances
            return {}
        slots = {symbol: evaluation.slots(symbol, capacity) for symbol in evaluation.rules.rings}
        given = slots | evaluation.inputs()
        key = tuple((tensor.name, given[tensor.name]) for tensor in graph.inputs if tensor.name in given)
        with self._lock:
            if key not in self._constants:
                logger.debug("%s: computing the keys of distances for %s", self.folder, dict(key))
                session = self._open("positions")  # not kept open: it holds weights and buffers of its own
                self._constants[key] = session.run_on_device({name: np.array([n], np.int64) for name, n in key})
                while len(self._constants) > KEPT_CONSTANTS:  # a stream that still uses one holds it itself
                    del self._constants[next(iter(self._constants))]
            return self._constants[key]

    def _read_first_values(self) -> dict[str, npt.NDArray[np.float32]]:
        if all(entry.first_value is None for entry in self.bundle.memory):
            return {}
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        file = self.folder / FIRST_MEMORY_FILE
        try:
            values = dict(load_file(file))
        except (SafetensorError, ValueError) as error:
            raise BundleError(f"{file}: damaged ({first_line(error)}).", repair="Copy the bundle again.") from error
        wrong = [
            f"{entry.first_value} for {entry.input}"
            for entry in self.bundle.memory
            if entry.first_value is not None and not entry.begins_with(values.get(entry.first_value))
        ]
        if wrong:
            raise BundleError(f"{file}: no such rows: {', '.join(wrong[:5])}.", repair="Convert the checkpoint again.")
        return values
