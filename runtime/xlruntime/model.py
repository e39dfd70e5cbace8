"""An open bundle: its sessions, shared by all the streams that walk documents with it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .bundle import read_bundle
from .cuda_graphs import FixedSessions
from .documents import Document, Source
from .errors import BundleError, OptionError
from .generation import Sampling
from .memory import RingMemory, check_room
from .placement import count_placed
from .providers import Device, first_line, parse_device
from .scorer import Scorer
from .scores import DocumentScore, TokenScores
from .session import GraphSession
from .spec import FIRST_MEMORY_FILE, Bundle, Evaluation, Graph
from .stream import Stream, restore_stream
from .tokenizers import make_tokenizer
from .whole import generate_whole

__all__ = ["Model", "load"]

KEPT_POSITIONS = 4  # numbers of distances whose positional keys are kept for the next stream


def load(
    folder: str | Path,
    *,
    device: str = "cpu",
    threads: int | None = None,
    check_files: bool = True,
    strict_device: bool = False,
    cuda_graphs: bool = False,
) -> Model:
    """Open a bundle.

    Args:
        folder: what `xlexport convert` wrote.
        device: `cpu`, `cuda` or `cuda:1`. One that is missing is an error, never another one in its place.
        threads: threads of one step; None leaves the choice to ONNX Runtime.
        check_files: compare every file with its digest; turn it off only where something else guards them.
        strict_device: insist that the device computes everything but the sizes of tensors, graph by graph as they are
            opened. Otherwise the CPU serves nodes for which the device has no kernel; `Model.placement` shows which.
        cuda_graphs: capture steps of a shape that comes again and again as CUDA graphs, and replay them. The bundle
            must have the graphs for it (`xlexport convert --cuda-graphs`); each shape has its own copy of the weights.

    Raises:
        BundleNotFoundError, BundleError: there is no bundle, or it is broken.
        ProviderError: ONNX Runtime or the device is missing, or with `strict_device` a node runs elsewhere.
        OptionError: the device or the number of threads is malformed, or there is nothing to capture CUDA graphs of.
    """
    if threads is not None and threads < 1:
        raise OptionError(f"threads is {threads}, at least 1 is needed.")
    path, where = Path(folder), parse_device(device)
    if cuda_graphs and where.kind != "cuda":
        raise OptionError(f"cuda_graphs needs a CUDA device, but the device is {where}. Leave it out, or choose cuda.")
    bundle = read_bundle(path, check_files)
    if cuda_graphs and not any(purpose.endswith("_fixed") for purpose in bundle.graphs):
        raise OptionError(f"{path}: no graphs for cuda_graphs. Convert the checkpoint again with --cuda-graphs.")
    model = Model(path, bundle, where, threads, strict_device)
    if cuda_graphs:
        model.use_fixed()
    return model


class Model:
    """A bundle that is open for scoring and generating. Safe to share between threads.

    Attributes:
        folder: where it was opened.
        bundle: the manifest.
        tokenizer: text to token ids and back.
        device: where steps run and memories live.
        threads: of one step; None: as ONNX Runtime chooses.
        strict_device: whether the device must compute everything but the sizes of tensors.
    """

    def __init__(
        self, folder: Path, bundle: Bundle, device: Device, threads: int | None, strict_device: bool = False
    ) -> None:
        self.folder = folder
        self.bundle = bundle
        self.device = device
        self.threads = threads
        self.strict_device = strict_device
        self.tokenizer = make_tokenizer(bundle.tokenizer, folder)
        self._lock = threading.Lock()
        self._sessions: dict[str, GraphSession] = {}
        self._fixed: FixedSessions | None = None
        self._positions: dict[tuple[int, int], dict[str, Any]] = {}
        self.session("score")  # fail at load, not at the first document
        self._first_rows = self._read_first_rows()

    def session(self, purpose: str) -> GraphSession:
        """The session of one graph, opened when first needed.

        Raises:
            OptionError: the bundle has no graph for `purpose`.
        """
        if (opened := self._sessions.get(purpose)) is not None:
            return opened
        with self._lock:
            if purpose not in self._sessions:
                self._sessions[purpose] = self._open(purpose)
            return self._sessions[purpose]

    def _open(self, purpose: str) -> GraphSession:
        graph = self.bundle.graphs.get(purpose)
        if graph is None:
            have = ", ".join(sorted(self.bundle.graphs))
            raise OptionError(f"{self.folder}: no graph for {purpose!r}; this bundle has {have}.")
        session = self._new_session(purpose, graph)
        if session.metadata != graph.metadata(self.bundle.memory):
            raise BundleError(
                f"{self.folder / graph.file}: its metadata is not what the manifest says about it. "
                "Convert the checkpoint again."
            )
        return session

    def _new_session(self, purpose: str, graph: Graph) -> GraphSession:
        """What runs one graph; `xlexport.torch_runtime` has its own for those of PyTorch."""
        if graph.format != "onnx":
            raise BundleError(
                f"{self.folder / graph.file}: {graph.format}, which PyTorch runs, not ONNX Runtime, and loading it "
                "runs code that is in it. If you trust it like a program, give --trust to a command that has it, or "
                "open it with xlexport.torch_runtime.load; all else needs a bundle of convert --to onnx."
            )
        return GraphSession(self.folder, graph, self.device, self.threads, self.strict_device)

    def placement(self, purpose: str) -> dict[str, dict[str, int]]:
        """Where the nodes of a graph run: `{execution provider: {operator: count}}`.

        Raises:
            OptionError: the bundle has no graph for `purpose`.
        """
        return count_placed(self.session(purpose).nodes)

    def use_fixed(self) -> None:
        """From now on, run steps of a shape that comes again and again in a session for that shape alone.

        `load` does so for `cuda_graphs`. Elsewhere it gains nothing.
        """
        self._fixed = FixedSessions(self.folder, self.bundle.graphs, self.device, self.threads)

    def release(self, purpose: str) -> None:
        """Close the session of one graph, and free what it holds. It opens again when it is needed."""
        with self._lock:
            self._sessions.pop(purpose, None)

    def evaluation(
        self,
        segment_len: int | None = None,
        mem_len: int | None = None,
        clamp_len: int | None = None,
        same_length: bool | None = None,
        n_hashes: int | None = None,
        restart: bool | None = None,
    ) -> Evaluation:
        """The bundle's evaluation settings with those given replaced.

        Args:
            segment_len: tokens in one step; the longest document where a document is one step.
            mem_len: rows of memory that a layer keeps.
            clamp_len: largest distinct distance, -1: none.
            same_length: whether every token sees equally many others.
            n_hashes: rounds of hashing, at most those that were exported.
            restart: whether a document that has no positions left goes on as one that begins, instead of being refused.

        Raises:
            OptionError: a value is out of range, or chooses what this bundle's graphs do not have.
        """
        own = self.bundle.evaluation
        chosen = own.with_options(segment_len, mem_len, clamp_len, same_length, n_hashes, restart)
        taken = {tensor.name for graph in self.bundle.graphs.values() for tensor in graph.inputs}
        problems = []
        if chosen.clamp_len != own.clamp_len and "clamp_len" not in taken:
            problems.append(f"clamp_len is {clamp_len}, but this model has no distances to clamp")
        if chosen.same_length != own.same_length and "memory_length" not in taken:
            problems.append(f"same_length is {same_length}, but this model knows only {own.same_length}")
        if chosen.n_hashes != own.n_hashes and "n_hashes" not in taken:
            problems.append(f"n_hashes is {n_hashes}, but these graphs always compute {own.n_hashes} rounds")
        if problems:
            raise OptionError(f"{self.folder}: {'; '.join(problems)}. Leave it out.")
        return chosen

    def new_memory(self, evaluation: Evaluation, batch_size: int = 1, capacity: int | None = None) -> RingMemory:
        """Fresh memory for `batch_size` rows; `capacity` None is just enough for `evaluation.segment_len`."""
        capacity = evaluation.capacity() if capacity is None else capacity
        if batch_size < 1:
            raise OptionError(f"batch size is {batch_size}, at least 1 is needed.")
        if evaluation.max_segment(capacity) < 1:
            raise OptionError(f"a capacity of {capacity} slots holds no segment beside mem_len {evaluation.mem_len}.")
        if self.device.kind == "cpu":
            check_room(self.bundle.memory, batch_size, capacity)
        return RingMemory(
            self.bundle.memory,
            self._first_rows,
            self._position_keys(evaluation.near(capacity), evaluation.clamp_len),
            evaluation,
            batch_size,
            capacity,
            self.device,
        )

    def step(
        self, purpose: str, memory: RingMemory, tokens: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]
    ) -> dict[str, npt.NDArray[Any]]:
        """Run one segment on `memory`, which moves on by it.

        Args:
            purpose: `score`, `generate` or `detail`. Where the bundle has a graph for it that is made for few tokens,
                such as `score_few`, and they are few enough, that one runs: the numbers are the same.
            tokens: (B, S) ids within the vocabulary; targets (B, S) the token after each.

        Returns:
            The graph's outputs other than memory, by name.

        Raises:
            OptionError: the segment is longer than the graph, the ring or the positions allow.
        """
        S = tokens.shape[1]
        if not 1 <= S <= memory.max_segment:
            raise OptionError(
                f"a segment of {S} tokens does not fit: a ring of {memory.capacity} slots with mem_len "
                f"{memory.evaluation.mem_len} takes 1 to {memory.max_segment}. Split it."
            )
        if (room := memory.room.min()) < S:
            raise OptionError(
                f"a segment of {S} tokens does not fit: a row has room for {room} more, as the model reads at most "
                f"{memory.evaluation.longest_part} tokens of a document. Restart the row."
            )
        feeds = {"tokens": tokens, "targets": targets, **memory.feeds()}
        fixed = None if self._fixed is None else self._fixed.session(purpose, memory, S)
        outputs = (fixed or self.session(self.graph_for(purpose, S))).step(feeds, memory)
        memory.advance(S)
        return outputs

    def longest_step(self, purpose: str, segment_len: int) -> int:
        """`segment_len`, or what the graphs for `purpose` take at most in one step if that is less."""
        lengths = [graph.max_segment for graph in self._graphs_for(purpose).values()]
        return min(segment_len, max((length or segment_len for length in lengths), default=segment_len))

    def graph_for(self, purpose: str, segment_len: int) -> str:
        """The graph that serves steps of `segment_len` tokens: the purpose's own, or its variant for few tokens.

        Raises:
            OptionError: no graph for it takes so many.
        """
        variants = self._graphs_for(purpose)
        for name, graph in variants.items():
            if graph.max_segment is None or segment_len <= graph.max_segment:
                return name
        if variants:
            raise OptionError(
                f"a segment of {segment_len} tokens does not fit: the graph for {purpose!r} takes 1 to "
                f"{self.longest_step(purpose, segment_len)}. Split it."
            )
        return purpose

    def _graphs_for(self, purpose: str) -> dict[str, Graph]:
        """The graphs that compute it, the one for fewest tokens first."""
        graphs = self.bundle.graphs
        return {name: graphs[name] for name in (f"{purpose}_few", purpose) if name in graphs}

    def stream(
        self,
        *,
        segment_len: int | None = None,
        mem_len: int | None = None,
        clamp_len: int | None = None,
        same_length: bool | None = None,
        n_hashes: int | None = None,
        restart: bool | None = None,
        capacity: int | None = None,
    ) -> Stream:
        """A walk through one document. Settings (see `evaluation`) that are None are the bundle's.

        Raises:
            OptionError: a setting is out of range, or this bundle reads each document in one step.
        """
        evaluation = self.evaluation(segment_len, mem_len, clamp_len, same_length, n_hashes, restart)
        return Stream(self, evaluation, capacity)

    def restore(self, file: str | Path, *, capacity: int | None = None) -> Stream:
        """Go on with a stream that `Stream.save` wrote.

        Args:
            capacity: ring slots; None keeps the saved ones and is bit-equal to not having stopped. Another number
                lays the memory out anew, which is equal up to rounding.

        Raises:
            StateError: not a stream's state, a broken one, or one of another bundle.
            FileNotFoundError: there is no such file.
        """
        return restore_stream(self, Path(file), capacity)

    def score(
        self,
        documents: Iterable[Document | Source],
        *,
        batch_size: int = 1,
        segment_len: int | None = None,
        mem_len: int | None = None,
        clamp_len: int | None = None,
        same_length: bool | None = None,
        n_hashes: int | None = None,
        restart: bool | None = None,
    ) -> Iterator[DocumentScore]:
        """Score whole documents, `batch_size` at a time, each with a memory of its own; results in input order.

        Args:
            documents: texts, bytes, paths, open binary files, token ids, or `Document`s that name them.
            batch_size: where a document is one step it stands alone all the same.
            segment_len and so on: see `evaluation`.

        Raises:
            OptionError, TokenError, TextError, OSError: a setting or a document is not usable.
        """
        evaluation = self.evaluation(segment_len, mem_len, clamp_len, same_length, n_hashes, restart)
        return Scorer(self, evaluation, batch_size).documents(documents)

    def score_tokens(
        self,
        documents: Iterable[Document | Source],
        *,
        batch_size: int = 1,
        detail: int | None = None,
        segment_len: int | None = None,
        mem_len: int | None = None,
        clamp_len: int | None = None,
        same_length: bool | None = None,
        n_hashes: int | None = None,
        restart: bool | None = None,
    ) -> Iterator[TokenScores]:
        """As `score`, but every token's score as soon as it is known; nothing is kept.

        Args:
            detail: with a number, parts also say each target's rank, the entropy of each prediction and the so many
                likeliest tokens (0 to 10): the `detail` graph runs in place of `score`, and gives the same scores.

        Raises:
            OptionError: also where the bundle lists fewer likeliest tokens.
        """
        evaluation = self.evaluation(segment_len, mem_len, clamp_len, same_length, n_hashes, restart)
        return Scorer(self, evaluation, batch_size, detail).tokens(documents)

    def generate(
        self,
        prompt: str | bytes | npt.NDArray[np.int64] | list[int],
        *,
        max_tokens: int,
        sampling: Sampling | None = None,
        segment_len: int | None = None,
        mem_len: int | None = None,
        clamp_len: int | None = None,
        same_length: bool | None = None,
        n_hashes: int | None = None,
        restart: bool | None = None,
    ) -> Iterator[int]:
        """Continue `prompt`: yields up to `max_tokens` token ids as they are drawn.

        Raises:
            OptionError: a setting is out of range. TextError: the prompt is empty, or with what is asked for too long.
        """
        evaluation = self.evaluation(segment_len, mem_len, clamp_len, same_length, n_hashes, restart)
        if evaluation.whole:
            return generate_whole(self, evaluation, prompt, max_tokens, sampling or Sampling())
        return Stream(self, evaluation).generate(prompt, max_tokens=max_tokens, sampling=sampling)

    def _position_keys(self, near: int, clamp_len: int) -> dict[str, Any]:
        """Positional keys for so many distances: made once, shared by all streams of them, never written."""
        with self._lock:
            key = (near, clamp_len)
            if key not in self._positions:
                if "positions" not in self.bundle.graphs:  # nothing depends on distances
                    return {}
                session = self._open("positions")  # not kept open: it holds weights and buffers of its own
                feeds = {"near": np.array([near], np.int64), "clamp_len": np.array([clamp_len], np.int64)}
                self._positions[key] = session.run_on_device(feeds)
                while len(self._positions) > KEPT_POSITIONS:  # a stream that still uses one holds it itself
                    del self._positions[next(iter(self._positions))]
            return self._positions[key]

    def _read_first_rows(self) -> dict[str, npt.NDArray[np.float32]]:
        if all(entry.first_value is None for entry in self.bundle.memory):
            return {}
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        file = self.folder / FIRST_MEMORY_FILE
        try:
            rows = dict(load_file(file))
        except (SafetensorError, ValueError) as error:
            raise BundleError(f"{file}: damaged ({first_line(error)}). Copy the bundle anew.") from error
        wrong = [
            f"{entry.first_value} for {entry.input}"
            for entry in self.bundle.memory
            if entry.first_value is not None and not entry.begins_with(rows.get(entry.first_value))
        ]
        if wrong:
            raise BundleError(f"{file}: no such rows: {', '.join(wrong[:5])}. Convert the checkpoint again.")
        return rows
