"""An open bundle: the sessions of its graphs, their carried memories, and the steps that they run."""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from .bundle import ENCODE, FIRST_MEMORY_FILE, POSITIONS, Bundle, Choice, Graph
from .bundle_files import BundleFiles, check_digests, check_kind, read_bundle
from .cuda_graphs import CapturedSession
from .devices import parse_device
from .errors import BundleDamagedError, BundleFormatError, OptionError
from .evaluation import EvaluationSettings, SettingValue
from .graph_gate import FileRecord
from .hub_cache import bundle_folder
from .kernels import describe_kernels, find_kernels
from .load_options import LoadOptions
from .memory import Memory, MemoryPlan, check_room
from .messages import first_line, listed, named
from .placement import count_placed
from .providers import open_session, require_version
from .session import Deadline, GraphSession, Session, SessionFactory, check_outputs
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
        options: the options of `load`.
        device: where steps run and memories live.
        threads: threads of one step; None: ONNX Runtime chooses.
        kernels: the library of kernels for custom operators; None: their fallbacks run.
        steps: the graphs of each purpose that this device and these kernels can run, in order of preference.
        kind: the bundles that this class is for, a name in `bundle_files.KINDS`.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        folder: Path,
        bundle: Bundle,
        options: LoadOptions,
        *,
        open_session: SessionFactory | None = None,
        files: BundleFiles | None = None,
    ) -> None:
        """Open a bundle.

        Args:
            open_session: opens the session of a graph; None opens ONNX files with ONNX Runtime.
            files: the state of the bundle's files when they were checked; None: their state now.
        """
        self.folder = folder
        self.bundle = bundle
        self.options = options
        self.device, self.threads = options.place, options.threads
        self.kernels = find_kernels(options.ops, self.device)
        self.tokenizer = make_tokenizer(bundle.tokenizer, folder)
        self._open_session = open_session or self._open_onnx
        self._files = files or BundleFiles(folder, bundle)
        self._deadline = None if options.step_timeout is None else Deadline(options.step_timeout)
        self.steps = {purpose: tuple(filter(self._can_run, choices)) for purpose, choices in bundle.steps.items()}
        self._lock = threading.Lock()
        self._sessions: dict[str, Session] = {}
        self._constants: dict[tuple[tuple[str, int], ...], dict[str, Any]] = {}
        limit = "none" if options.step_timeout is None else f"{options.step_timeout:g} s"
        threads = options.threads or "as many as cores"
        logger.info("%s: device %s, threads %s, step_timeout %s", folder, self.device, threads, limit)
        logger.info("%s: kernels %s", folder, self.kernels or "none")
        if bundle.requires.onnxruntime is not None:
            require_version(bundle.requires.onnxruntime, str(folder))
        self.session(self.main_graph(bundle.purpose))  # fail now, not at the first document
        if not self.device.tried:
            logger.warning("device %s is untried: compare its scores with the device cpu.", self.device)
        with self._files.unchanged():
            self._first_values = self._read_first_values()

    @classmethod
    def open(cls, folder: str | Path, options: LoadOptions) -> Self:
        """Open a bundle; see `load`.

        Raises:
            BundleError, ProviderError, OptionError: as `load`; or the bundle needs another class.
        """
        path = bundle_folder(folder)
        bundle = read_bundle(path, options.digest, check_files=False)
        check_kind(path, bundle, cls.kind)
        files = BundleFiles(path, bundle)  # before digests are compared, to notice files replaced meanwhile
        size = sum(file.size for file in bundle.files.values())
        checked = "compared with their digests" if options.check_files else "not compared with their digests"
        logger.info("%s: opening %s, %s", path, bundle.architecture, bundle.precision)
        if options.check_files:
            check_digests(path, bundle.files)
        logger.info("%s: %d files, %s bytes, %s", path, len(bundle.files), f"{size:,}", checked)
        if options.cuda_graphs and not bundle.fixed:
            raise OptionError(
                f"{path}: its graphs have free shapes, which cuda_graphs cannot capture.",
                hint="Convert the checkpoint again with --fixed batch=1,segment=1.",
            )
        return cls(path, bundle, options, files=files)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        settings = self.bundle.settings
        chosen = {"segment_len": settings.segment_len, **settings.values}
        size = sum(file.size for file in self.bundle.files.values())
        return (
            f"{type(self).__name__}({named(self.folder)!r}: {self.bundle.architecture}, {self.bundle.precision}, "
            f"{self.bundle.vocab_size:,} tokens ({self.bundle.tokenizer.kind}), "
            f"{', '.join(f'{name} {value}' for name, value in chosen.items())}, {self.device}, {size / 1e6:,.1f} MB)"
        )

    @property
    def digest(self) -> str:
        """SHA-256 of `bundle.json`, by which an application can pin a bundle."""
        return self.bundle.digest

    @property
    def drawable(self) -> int:
        """The number of tokens that may be drawn, ids from 0: rows above the tokenizer's size have no text."""
        size = self.bundle.vocab_size
        return min(self.bundle.tokenizer.size or self.tokenizer.vocab_size or size, size)

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
        logger.info("%s: graph %s runs on %s", self.folder / graph.file, purpose, ", ".join(session.providers))
        return session

    def _open_onnx(self, purpose: str, graph: Graph) -> Session:
        if graph.format != "onnx":
            raise BundleFormatError(
                f"{self.folder / graph.file}: {graph.format}, which needs PyTorch, not ONNX Runtime; loading it "
                "can run code from the file.",
                hint=(
                    "If you trust it like a program, use a command with --trust, or xlexport.torch_runtime.load. "
                    "All other commands need a bundle of convert --to onnx."
                ),
            )
        captures = self.options.cuda_graphs and purpose not in (POSITIONS, ENCODE)
        return (CapturedSession if captures else GraphSession)(
            self.folder,
            graph,
            self.bundle.memory,
            self.device,
            self.threads,
            self.options.strict_device,
            data_files=self.bundle.files,
            deadline=self._deadline,
            kernels=self.kernels,
        )

    def placement(self, purpose: str) -> dict[str, dict[str, int]]:
        """Return where the nodes of a graph run: `{execution provider: {operator: count}}`.

        Raises:
            OptionError: the bundle has no graph for `purpose`.
        """
        return count_placed(self.session(purpose).nodes)

    def operators(self) -> dict[str, set[str]]:
        """Return the operators that ONNX Runtime needs for all graphs, by domain, without kernels of custom operators.

        These are the operators of the files, which fold constants, and those that ONNX Runtime makes of them on a CPU.
        """
        operators: dict[str, set[str]] = {"ai.onnx": set()}
        for purpose in self.bundle.graphs:
            path = self.folder / self.session(purpose).graph.file
            with tempfile.TemporaryDirectory() as folder:
                optimized = Path(folder) / "optimized.onnx"
                open_session(path, parse_device("cpu"), optimized=optimized, data_files=self.bundle.files)
                records = [FileRecord(file.read_bytes(), str(file), self.bundle.files) for file in (path, optimized)]
            operators["ai.onnx"] |= records[0].operators | records[1].operators
            for domain, name, _ in records[1].strange:
                operators.setdefault(domain, set()).add(name)
        return operators

    def kernels_used(self, purpose: str) -> str:
        """Describe the kernels of custom operators that run in a graph.

        Raises:
            OptionError: the bundle has no graph for `purpose`.
        """
        return describe_kernels(self.kernels, self.session(purpose).nodes)

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
        logger.debug("%s: all graphs closed", self.folder)

    def evaluation(
        self, segment_len: int | None = None, restart: SettingValue | None = None, **settings: SettingValue | None
    ) -> EvaluationSettings:
        """Return the bundle's evaluation settings with the given ones replaced; None keeps the bundle's own.

        Args:
            segment_len: tokens in one step; the longest document if a document is one step.
            restart: reset position and memory if a document has no positions left, instead of refusing it.
            settings: settings that the bundle declares, such as `mem_len`, `clamp_len`, `same_length` or `n_hashes`.
                `bundle.evaluation.settings` lists them with their ranges and meanings.

        Raises:
            OptionError: a value is out of range, or the bundle has no such setting.
        """
        try:
            chosen = self.bundle.evaluation.choose(segment_len, restart, **settings)
        except OptionError as error:
            fixed = "The graphs have fixed shapes: convert with another --fixed." if self.bundle.fixed else None
            raise OptionError(f"{self.folder}: {error.message}", hint=error.hint or fixed) from None
        longest = self.longest_step("score", chosen.segment_len)
        if self.bundle.fixed and chosen.segmentation_matters and chosen.segment_len > longest:
            raise OptionError(
                f"{self.folder}: segment_len is {chosen.segment_len}, at most {longest} is possible: the graphs have "
                "fixed shapes, and scores of this model depend on segment_len.",
                hint="Choose a smaller one, or convert with another --fixed.",
            )
        return chosen

    def new_memory(self, evaluation: EvaluationSettings, batch_size: int = 1, capacity: int | None = None) -> Memory:
        """Return fresh memory for `batch_size` rows.

        Args:
            capacity: slots of the largest ring; smaller rings get as many spare slots. None is just enough for
                `evaluation.segment_len`.
        """
        capacity = evaluation.capacity() if capacity is None else capacity
        if batch_size < 1:
            raise OptionError(f"batch size is {batch_size}, at least 1 is needed.")
        if batch_size != (rows := self.bundle.fixed.get("batch", batch_size)):
            raise OptionError(
                f"batch size is {batch_size}, expected {rows}: the graphs of this bundle have fixed shapes.",
                hint=f"Choose {rows}, or convert with another --fixed.",
            )
        if evaluation.max_segment(capacity) < 1:
            raise OptionError(
                f"a capacity of {capacity} slots is too small for a segment: {evaluation.most_rows} rows are kept."
            )
        plan = MemoryPlan(self.bundle.memory, self._first_values, {}, evaluation, capacity, self.device)
        if self.device.on_host:
            check_room(plan, batch_size)  # before constants of such a capacity are made
        return Memory.fresh(replace(plan, constants=self._make_constants(evaluation, capacity)), batch_size)

    def step(
        self, purpose: str, memory: Memory, tokens: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]
    ) -> dict[str, npt.NDArray[Any]]:
        """Run one segment on `memory`, and advance the memory by it.

        Args:
            purpose: `score`, `generate` or `detail`. If the bundle has a variant of the graph for such sizes, the
                variant runs: the numbers are the same. Graphs of a fixed length run one after the other.
            tokens: (B, S) ids within the vocabulary; targets (B, S) the token after each.

        Returns:
            The graph's outputs other than memory, by name.

        Raises:
            OptionError: the segment is longer than the graph, the rings or the positions allow.
            BundleGraphError: the graph cannot run, or its outputs differ from the bundle's description.
            StepTimeoutError: a graph took longer than `step_timeout`; the memory has not advanced by its tokens.
        """
        return self.run(purpose, memory, {"tokens": tokens, "targets": targets})

    def run(self, purpose: str, memory: Memory, segment: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Run one segment of arrays (B, S, …) by name, as `step` does; errors are the same."""
        B, S = next(iter(segment.values())).shape[:2]
        if not 1 <= S <= memory.max_segment:
            raise OptionError(
                f"a segment of {S} tokens does not fit: a ring of {memory.capacity} slots that keeps "
                f"{memory.evaluation.most_rows} rows takes 1 to {memory.max_segment}.",
                hint="Split it.",
            )
        if (room := memory.room.min()) < S:
            raise OptionError(
                f"a segment of {S} tokens does not fit: a row has room for {room} more, as the model reads at most "
                f"{memory.evaluation.longest_part} tokens of a document.",
                hint="Restart the row.",
            )
        length, begin, parts = memory.memory_length.copy(), 0, []
        while begin < S:
            sizes = {"batch": B, "segment": S - begin, **memory.slots}
            session = self.session(self.graph_for(purpose, S - begin, sizes))
            sizes["segment"] = session.graph.tokens(sizes)
            end = begin + sizes["segment"]
            # Each token sees as many others as in one step.
            part = {name: array[:, begin:end] for name, array in segment.items()}
            feeds = memory.feeds(session.graph, part, length + begin)
            parts.append(outputs := session.step(feeds, memory))
            check_outputs(self.folder / session.graph.file, session.graph, outputs, sizes, self.bundle.vocab_size)
            memory.advance(end - begin)
            begin = end
        return outputs if len(parts) == 1 else _joined(session.graph, parts)

    def _run_on_device(self, session: Session, feeds: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
        """Run a graph that makes constants; return them as values of the session."""
        outputs = session.run(feeds)
        check_outputs(self.folder / session.graph.file, session.graph, outputs, {}, self.bundle.vocab_size)
        return {name: session.constant(array) for name, array in outputs.items()}

    def longest_step(self, purpose: str, segment_len: int) -> int:
        """Return `segment_len`, or the longest step of the graphs for `purpose` if that is shorter."""
        graphs = self.bundle.graphs
        lengths = [graphs[choice.graph].fixed.get("segment", choice.max_segment) for choice in self._choices(purpose)]
        return min(segment_len, max((length or segment_len for length in lengths), default=segment_len))

    def graph_for(self, purpose: str, segment_len: int, sizes: Mapping[str, int] | None = None) -> str:
        """Return the graph for steps of `segment_len` tokens, or the first of several.

        Args:
            sizes: sizes of the other free axes; None: those that graphs fix.

        Raises:
            OptionError: no graph for `purpose` takes so many tokens.
        """
        choices = self._choices(purpose)
        for choice in choices:
            graph = self.bundle.graphs[choice.graph]
            if segment_len <= (choice.max_segment or inf) and graph.tokens({**(sizes or {}), "segment": segment_len}):
                return choice.graph
        if choices:
            raise OptionError(
                f"a segment of {segment_len} tokens does not fit: the graph for {purpose!r} takes 1 to "
                f"{self.longest_step(purpose, segment_len)}.",
                hint="Split it.",
            )
        return purpose

    def _choices(self, purpose: str) -> tuple[Choice, ...]:
        """Return the graphs of a purpose, or the graph of this name alone."""
        if (choices := self.steps.get(purpose)) is not None:
            return choices
        return (Choice(purpose, self.bundle.max_segment(purpose)),) if purpose in self.bundle.graphs else ()

    def main_graph(self, purpose: str) -> str:
        """Return the graph for the longest steps of a purpose."""
        return max(self.steps[purpose], key=lambda choice: choice.max_segment or inf).graph

    def _can_run(self, choice: Choice) -> bool:
        """Return whether this device and these kernels can run a graph."""
        kernels = frozenset() if self.kernels is None else self.kernels.operators
        return kernels.issuperset(choice.kernels) and not (choice.device == "accelerator" and self.device.on_host)

    def _make_constants(self, evaluation: EvaluationSettings, capacity: int) -> dict[str, Any]:
        """Return the outputs of the graph `positions`: computed once per settings, shared, read-only."""
        graph = self.bundle.graphs.get(POSITIONS)
        if graph is None:  # nothing depends on distances
            return {}
        key = tuple(
            (name, evaluation.slots(feed.ring, capacity) if feed.ring else int(evaluation.values[feed.setting]))
            for name, feed in graph.inputs.items()
        )
        with self._lock:
            if key not in self._constants:
                logger.debug("%s: computing the keys of distances for %s", self.folder, dict(key))
                session = self._open(POSITIONS)  # not kept open: it holds weights and buffers of its own
                feeds = {name: np.array([n], np.int64) for name, n in key}
                self._constants[key] = self._run_on_device(session, feeds)
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
            raise BundleDamagedError(
                f"{file}: damaged ({first_line(error)}).", hint="Copy the bundle again."
            ) from error
        wrong = [
            f"{named(entry.first_value)} for {named(entry.input)}"
            for entry in self.bundle.memory
            if entry.first_value is not None and not entry.begins_with(values.get(entry.first_value))
        ]
        if wrong:
            raise BundleFormatError(
                f"{file}: missing or misshapen rows: {listed(wrong)}.", hint="Convert the checkpoint again."
            )
        return values


def _joined(graph: Graph, parts: Sequence[Mapping[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
    """Join the outputs of consecutive steps: those for each token along their axis, and of others the last."""
    joined = {}
    for name, tensor in graph.outputs.items():
        arrays = [outputs[name] for outputs in parts]
        axis = tensor.shape.index("segment") if "segment" in tensor.shape else None
        joined[name] = arrays[-1] if axis is None else np.concatenate(arrays, axis)
    return joined
