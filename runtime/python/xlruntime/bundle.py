"""The manifest of a bundle, and the check of its files.

The exporter writes these dataclasses to `bundle.json`. A runtime knows nothing else about an architecture.

    Bundle
    ├── steps: {purpose: (Choice, ...)}   the graphs that can run a step, in order of preference
    ├── graphs: {name: Graph}         score, generate, detail, positions, encode, run, and other forms of them
    │   ├── inputs: {name: Feed}      what a step feeds to each input
    │   └── outputs: {name: Tensor}   without memories
    ├── memory: (MemoryEntry, ...)    input -> output pairs that a stream carries
    ├── evaluation: EvaluationRules   how documents are cut, settings and rings (see `evaluation`)
    └── encoder: Encoder              of an encoder-decoder

An axis is a number (fixed) or a name (free): `batch`, `segment`, `near + 1`, or the symbol of a ring's capacity.
docs/bundle_format.md specifies all of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from math import inf
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from .bundle_parts import Encoder, FileDigest, Requirements, Sha256
from .errors import BundleFormatError
from .evaluation import EvaluationRules, EvaluationSettings, FreshMemory, Length, Ring, Setting
from .json_fields import OPTIONAL, Pattern, Size, read_fields
from .limits import Limits, parse_json
from .messages import listed, named, quoted, shown
from .operator_domain import DOMAIN
from .tokenizer_entry import TextToken, TokenizerEntry

__all__ = [
    "DIGEST",
    "DOMAIN",
    "EACH",
    "ENCODE",
    "FIRST_MEMORY_FILE",
    "FORMAT",
    "MANIFEST",
    "MANIFEST_LIMITS",
    "OUTPUTS",
    "POSITIONS",
    "RUN",
    "Axis",
    "Bundle",
    "Choice",
    "Encoder",
    "Feed",
    "FileDigest",
    "Graph",
    "GraphFormat",
    "Layout",
    "Manifest",
    "MemoryEntry",
    "Requirements",
    "Ring",
    "Setting",
    "Tensor",
    "TextToken",
    "TokenizerEntry",
]

FORMAT = 5
MANIFEST = "bundle.json"
DIGEST = "bundle.json.sha256"
FIRST_MEMORY_FILE = "first_memory.safetensors"  # first values of a fresh memory, unless they are zero
POSITIONS = "positions"  # graphs that make constants: of settings,
ENCODE = "encode"  # and of a source
RUN = "run"  # the purpose of step models, which map numbers to numbers
MANIFEST_LIMITS = Limits(bytes=1 << 26, operations=1_000_000)  # the sample takes 0.6 MB and 5,000 values
SIZES = (8, 16, 32, 64)  # bits of whole numbers
DTYPES = ("float16", "float32", "float64", "bool", *(f"{sign}int{size}" for sign in ("", "u") for size in SIZES))
LONGEST_NAME = 255  # bytes: at most so many on most file systems
LISTED = 3  # contradictions that a message lists

EACH = ("batch", "segment")
# Outputs of the graphs, by purpose. A text is a size that the bundle defines.
OUTPUTS: Mapping[str, Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "score": {"log_prob": ("float32", EACH)},
    "generate": {"logits": ("float32", ("batch", "vocab_size"))},
    "detail": {
        "log_prob": ("float32", EACH),
        "rank": ("int64", EACH),
        "entropy": ("float32", EACH),
        "top_ids": ("int64", (*EACH, "k")),
        "top_log_probs": ("float32", (*EACH, "k")),
    },
    RUN: {},  # any
}
RING_FEEDS = ("offset", "length", "window", "slots")
RUN_FEEDS = ("input", "memory", "position")

Axis = Size | Annotated[str, Pattern(r"[\s\S]+", "a name")]
Dtype = Annotated[str, Pattern("|".join(DTYPES), f"one of {', '.join(DTYPES)}")]
InputDtype = Annotated[str, Pattern("float32|bool|u?int(8|16|32|64)", "float32, bool, or an integer type")]
Layout = Literal["ring", "window", "state"]
GraphFormat = Literal["onnx", "torchscript", "exported-program", "executorch"]
Format, Tokenizer = GraphFormat, TokenizerEntry  # their names before this version
FeedKind = Literal[
    "tokens",
    "targets",
    "position",
    "offset",
    "length",
    "window",
    "slots",
    "setting",
    "constant",
    "memory",
    "source",
    "input",
]


@dataclass(frozen=True)
class Tensor:
    """One output of a graph."""

    dtype: Dtype  # numpy name, "float32"
    shape: tuple[Axis, ...]


@dataclass(frozen=True)
class Feed:
    """The value that a step feeds to an input of a graph: its kind, and the ring or setting it depends on.

    The kind `input` is an array of the caller, of this dtype and shape.
    """

    feed: FeedKind
    ring: str = field(default="", metadata=OPTIONAL)
    setting: str = field(default="", metadata=OPTIONAL)
    dtype: InputDtype = field(default="", metadata=OPTIONAL)
    shape: tuple[Axis, ...] = field(default=(), metadata=OPTIONAL)

    def __post_init__(self) -> None:
        if bool(self.ring) != (self.feed in RING_FEEDS) or bool(self.setting) != (self.feed == "setting"):
            raise ValueError(f"the feed {self.feed!r} is of ring {self.ring!r} and setting {self.setting!r}")
        if bool(self.dtype) != (self.feed == "input") or bool(self.shape) != (self.feed == "input"):
            raise ValueError(f"the feed {self.feed!r} has dtype {self.dtype!r} and shape {shown(self.shape)}")


@dataclass(frozen=True)
class MemoryEntry:
    """One carried tensor: the input of a step graph that takes it, and the output with its next value.

    It has one entry along the axis `batch` for each batch row. Layouts:

    * `ring`: rows along the axis named by the symbol of its capacity. A step writes only its own slots.
    * `window`: a fixed number of newest rows, oldest first, along the last axis but one. A step returns all rows.
    * `state`: fixed size, without rows. A step returns the whole state; a document begins with the first value.
    """

    input: str  # "memory_key_0"
    output: str  # "new_memory_key_0"
    dtype: Dtype
    shape: tuple[Axis, ...]  # ("batch", n_head, "capacity", d_head)
    layout: Layout = "ring"
    first_value: str | None = None  # tensor in FIRST_MEMORY_FILE for each fresh slot; None: zero

    @property
    def symbol(self) -> str | None:
        """Symbol of the capacity; None if it is not a ring."""
        free = [axis for axis in self.shape if isinstance(axis, str) and axis != "batch"]
        return free[0] if self.layout == "ring" and len(free) == 1 else None

    @property
    def row_axis(self) -> int | None:
        """Index of the axis of rows; None for a state."""
        if self.layout == "ring":
            return self.shape.index(str(self.symbol))
        return len(self.shape) - 2 if self.layout == "window" else None

    def begins_with(self, value: Any) -> bool:
        """Return whether a value can be the first value: finite floats, shaped as one slot or one state."""
        shape = tuple(axis for index, axis in enumerate(self.shape) if index not in (0, self.row_axis))
        return value is not None and value.shape == shape and value.dtype.kind == "f" and bool((abs(value) < inf).all())

    def problem(self, rings: Mapping[str, Ring]) -> str | None:
        """Return the problem of the shape, or None."""
        free = [axis for axis in self.shape[1:] if isinstance(axis, str)]
        if not self.shape or self.shape[0] != "batch":
            return "has no axis 'batch' in front"
        if self.layout == "ring":
            if len(free) == 1 and free[0] in rings:
                return None
            return f"is a ring over {shown(free)}, expected one of {shown([*rings])}"
        if free:
            return f"is a {self.layout} with free axes {shown(free)}"
        return "is a window without rows" if self.layout == "window" and len(self.shape) < 3 else None


@dataclass(frozen=True)
class Graph:
    """One graph of the bundle.

    An ONNX file or an exported program holds one graph. A file of TorchScript or ExecuTorch has a method per graph.

    Attributes:
        inputs: the values that a step feeds, by the names of inputs.
        outputs: all outputs except memories.
        format: all formats but `onnx` need PyTorch, and loading them can run code from the file.
        fixed: sizes of axes that this graph fixes.
    """

    file: str
    format: GraphFormat
    inputs: Mapping[str, Feed]
    outputs: Mapping[str, Tensor]
    fixed: Mapping[str, Size] = field(default_factory=dict)

    def tokens(self, sizes: Mapping[str, int]) -> int:
        """Return how many of the tokens of a step of these sizes (`segment`, `batch`, slots of rings) the graph takes.

        It takes all or none, unless it fixes `segment`: then it takes so many. Missing sizes fit.
        """
        others = all(sizes.get(axis, size) == size for axis, size in self.fixed.items() if axis != "segment")
        S = self.fixed.get("segment", sizes["segment"])
        return S if others and sizes["segment"] >= S else 0


@dataclass(frozen=True)
class Choice:
    """A graph that can run a step of some purpose, and when a runtime may choose it.

    Attributes:
        graph: its name.
        max_segment: most tokens of a step; None: any number.
        kernels: the operators for which the runtime must have kernels.
        device: `accelerator`: only devices other than the CPU run it; None: every device.
    """

    graph: str
    max_segment: Size | None = None
    kernels: tuple[str, ...] = ()
    device: Literal["accelerator"] | None = None

    @property
    def everywhere(self) -> bool:
        """Whether every runtime can run it on every device."""
        return not self.kernels and self.device is None


@dataclass(frozen=True)
class _Model:
    """The model: its family, its hyper-parameters for people and for `verify`, and its vocabulary."""

    architecture: str
    config: Mapping[str, Any]
    vocab_size: Annotated[int, range(2**31)]
    precision: str


@dataclass(frozen=True)
class _Document:
    """How documents are cut into steps."""

    segment_len: Length
    max_positions: Length | None
    restart: bool
    full_document: bool
    bidirectional: bool
    fresh_memory: FreshMemory
    encoder: Encoder | None


@dataclass(frozen=True)
class Manifest:
    """The fields of `bundle.json`."""

    format: Annotated[int, range(FORMAT, FORMAT + 1)]
    requires: Requirements
    model: _Model
    tokenizer: TokenizerEntry
    document: _Document
    settings: Mapping[str, Setting]
    rings: Mapping[str, Ring]
    memory: tuple[MemoryEntry, ...]
    graphs: Mapping[str, Graph]
    steps: Mapping[str, tuple[Choice, ...]]
    meaning: Mapping[str, str]
    provenance: Mapping[str, Any]
    fingerprint: Sha256
    files: Mapping[str, FileDigest]


# Fields that a `Bundle` has under the same names.
_SAME = ("requires", "tokenizer", "memory", "graphs", "steps", "meaning", "provenance", "fingerprint", "files")


@dataclass(frozen=True)
class Bundle:
    """`bundle.json`: the single source of truth about a bundle.

    Attributes:
        architecture, config: the model's family, and its hyper-parameters for people and for `verify`.
        vocab_size: ids are 0 to `vocab_size` - 1; 0 for a step model, which reads no tokens.
        precision: of weights and products, such as `float32` or `int8`.
        tokenizer: how text becomes ids; encoder: of an encoder-decoder, else None.
        evaluation: how documents are cut, settings and rings.
        memory: the carried tensors; graphs: the graphs by name.
        steps: the graphs that can run a step, by purpose, in order of preference.
        meaning: of each input and output of the graphs, for people.
        fingerprint: identity of this bundle's numbers: a digest of graphs, weights and first values.
        provenance: object for people; files: digest and size of every other file; requires: what graphs need.
        digest: SHA-256 of the `bundle.json` that it was read from.
    """

    architecture: str
    config: Mapping[str, Any]
    vocab_size: int
    precision: str
    tokenizer: TokenizerEntry
    evaluation: EvaluationRules
    memory: tuple[MemoryEntry, ...]
    graphs: Mapping[str, Graph]
    steps: Mapping[str, tuple[Choice, ...]]
    provenance: Mapping[str, Any]
    files: Mapping[str, FileDigest]
    fingerprint: str
    meaning: Mapping[str, str] = field(default_factory=dict)
    requires: Requirements = field(default_factory=Requirements)
    encoder: Encoder | None = None
    digest: str = field(default="", init=False, compare=False)

    @property
    def purpose(self) -> str:
        """The purpose that every bundle of its kind has: `score`, or `run` for a step model."""
        return RUN if RUN in self.steps else "score"

    @property
    def settings(self) -> EvaluationSettings:
        """The evaluation settings that the bundle has chosen."""
        return self.evaluation.choose()

    @property
    def computing_files(self) -> dict[str, FileDigest]:
        """The files that determine the numbers that this bundle computes."""
        return {name: digest for name, digest in self.files.items() if name not in self.tokenizer.files}

    @property
    def tokenizer_digest(self) -> str:
        """The SHA-256 of the tokenizer's file; empty if it has none."""
        return "" if self.tokenizer.file is None else self.files[self.tokenizer.file].sha256

    @property
    def fixed(self) -> Mapping[str, int]:
        """The sizes that the graphs for the longest steps fix: `batch` and `segment`, or none."""
        return self.graphs[self.purpose].fixed

    def max_segment(self, graph: str) -> int | None:
        """Return the most tokens of a step for which a graph is chosen; None: any number."""
        choices = (choice for each in self.steps.values() for choice in each)
        return next((choice.max_segment for choice in choices if choice.graph == graph), None)

    def to_json(self) -> str:
        """Return `bundle.json` as text."""
        rules = self.evaluation
        fields = asdict(
            Manifest(
                format=FORMAT,
                model=_Model(self.architecture, self.config, self.vocab_size, self.precision),
                document=_Document(
                    rules.segment_len,
                    rules.max_positions,
                    rules.restart,
                    rules.full_document,
                    rules.bidirectional,
                    rules.fresh_memory,
                    self.encoder,
                ),
                settings=rules.settings,
                rings=rules.rings,
                **{name: getattr(self, name) for name in _SAME},
            )
        )
        for graph in fields["graphs"].values():
            for name, feed in graph["inputs"].items():
                graph["inputs"][name] = {key: value for key, value in feed.items() if value}
        required = ("kind", "file", "first_id")
        fields["tokenizer"] = {key: value for key, value in fields["tokenizer"].items() if value or key in required}
        return json.dumps(fields, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Bundle:
        """Read `bundle.json`.

        Args:
            text: content of the file; bytes are UTF-8.
            where: its path, for messages.

        Raises:
            BundleFormatError: the text is not JSON, too large, of another format, contradicts itself, or has a wrong,
                missing or unknown field.
        """
        raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        hint = f"Convert the checkpoint again: xlexport convert CHECKPOINT -o {quoted(PurePosixPath(where).parent)}"
        fields = parse_json(raw, MANIFEST_LIMITS.budget(where, BundleFormatError, hint), strict=True)
        version = fields.get("format", fields.get("format_version")) if isinstance(fields, dict) else None
        if type(version) is not int:
            raise BundleFormatError(f"{where}: its format is not an integer, so xlexport did not write it.")
        if version != FORMAT:
            if version == FORMAT - 1:
                hint = f"Rewrite it: xlexport configure {quoted(PurePosixPath(where).parent)} -o NEW"
            raise BundleFormatError(
                f"{where}: is of format {str(version)[:20]}, this xlruntime reads {FORMAT}.", hint=hint
            )
        try:
            manifest = read_fields(Manifest, fields)
            document = dict(vars(manifest.document))
            encoder = document.pop("encoder")
            bundle = cls(
                **vars(manifest.model),
                evaluation=EvaluationRules(**document, settings=manifest.settings, rings=manifest.rings),
                encoder=encoder,
                **{name: getattr(manifest, name) for name in _SAME},
            )
            if problems := list(islice(bundle.problems(), LISTED)):
                raise ValueError("; ".join(problems))
            object.__setattr__(bundle, "digest", hashlib.sha256(raw).hexdigest())
        except ValueError as error:
            raise BundleFormatError(f"{where}: {str(error).rstrip('.')}.", hint=hint) from error
        return bundle

    def problems(self) -> Iterator[str]:
        """Yield contradictions between parts of the manifest, and file names that leave the folder."""
        if outside := [name for name in self.files if not _is_file_name(name)]:
            yield f"file names must stay inside the bundle, found {ascii(outside)[:200]}"
        used = {graph.file for graph in self.graphs.values()} | self.tokenizer.files
        if any(entry.first_value is not None for entry in self.memory):
            used.add(FIRST_MEMORY_FILE)
        if unlisted := sorted(str(name) for name in used - self.files.keys()):
            yield f"files are used but have no digest: {listed(map(named, unlisted))}"
        marks = (self.tokenizer.begin, *self.tokenizer.ends)
        for token in (token for token in marks if token is not None and token.id >= self.vocab_size):
            yield f"token {named(token.name)} has id {token.id}, expected 0 to {self.vocab_size - 1}"
        first, last = self.tokenizer.first_id, self.tokenizer.first_id + 255
        if self.tokenizer.kind == "bytes" and last >= self.vocab_size:
            yield f"bytes have ids {first} to {last}, but the vocabulary is 0 to {self.vocab_size - 1}"
        if taken := {"batch", "segment"} & self.evaluation.rings.keys():
            yield f"a ring has the symbol {min(taken)!r}, which is another axis"
        yield from self._problems_of_memory()
        yield from self._problems_of_encoder()
        yield from self._problems_of_step_model()
        for name, graph in self.graphs.items():
            purposes = [purpose for purpose, choices in self.steps.items() if any(name == c.graph for c in choices)]
            for purpose in purposes or [name]:
                yield from self._problems_of_graph(f"the graph {named(name)!r}", purpose, graph)
        for purpose, choices in self.steps.items():
            yield from self._problems_of_steps(f"steps of {named(purpose)!r}", choices)

    def _problems_of_memory(self) -> Iterator[str]:
        for entry in self.memory:
            if problem := entry.problem(self.evaluation.rings):
                yield f"memory {named(entry.input)} {problem}"
        if len({name for entry in self.memory for name in (entry.input, entry.output)}) < 2 * len(self.memory):
            yield "memories share an input or output"
        purpose = self.purpose
        if purpose not in self.graphs or purpose not in self.steps:
            yield f"the graph {purpose!r}, or its step, is missing"
        elif left := [entry.input for entry in self.memory if entry.input not in self.graphs[purpose].inputs]:
            yield f"memory that the graph {purpose!r} does not take: {listed(map(shown, left))}"

    def _problems_of_step_model(self) -> Iterator[str]:
        if (self.vocab_size == 0) != (RUN in self.steps):
            yield f"a vocabulary of {self.vocab_size} tokens, expected 0 for steps {RUN!r}, and for no others"
        if RUN not in self.steps:
            return
        foreign = {*OUTPUTS, POSITIONS, ENCODE} & self.graphs.keys() | self.steps.keys()
        if others := sorted(foreign - {RUN}):
            yield f"beside steps {RUN!r} graphs for {listed(map(named, others))}"
        graphs = [self.graphs[choice.graph] for choice in self.steps[RUN] if choice.graph in self.graphs]
        if any(graph.inputs != graphs[0].inputs for graph in graphs):
            yield f"steps of {RUN!r} are graphs with different inputs"
        if not all(graph.outputs and any(feed.feed == "input" for feed in graph.inputs.values()) for graph in graphs):
            yield f"a graph for steps {RUN!r} has no input, or no output"
        rules = self.evaluation
        if self.tokenizer.kind != "none" or rules.full_document or rules.restart:
            yield f"steps {RUN!r} with a tokenizer, whole documents or restarts"

    def _problems_of_encoder(self) -> Iterator[str]:
        encode = self.graphs.get(ENCODE)
        if (encode is None) != (self.encoder is None):
            yield f"expected both a graph {ENCODE!r} and an encoder, found only one of them"
        if encode is None or self.encoder is None:
            return
        ids = {"pad": self.encoder.pad, "start": self.encoder.start, "end": self.encoder.end}
        if wrong := [f"{name} {value}" for name, value in ids.items() if value >= self.vocab_size]:
            yield f"ids of the encoder are outside the vocabulary: {', '.join(wrong)}"
        if self.evaluation.max_positions is None:
            yield "targets have no longest length, max_positions"
        if misplaced := [name for name, tensor in encode.outputs.items() if tensor.shape[:1] != ("sources",)]:
            yield f"outputs of the graph {ENCODE!r} have no axis 'sources' in front: {listed(map(named, misplaced))}"

    def _problems_of_steps(self, where: str, choices: tuple[Choice, ...]) -> Iterator[str]:
        if unknown := [choice.graph for choice in choices if choice.graph not in self.graphs]:
            yield f"{where} name graphs that are missing: {listed(map(named, unknown))}"
        elif not any(choice.everywhere for choice in choices):
            yield f"{where} have no graph that runs without kernels on every device"
        elif any(self.graphs[choice.graph].outputs != self.graphs[choices[0].graph].outputs for choice in choices):
            yield f"{where} are graphs with different outputs"

    def _problems_of_graph(self, where: str, purpose: str, graph: Graph) -> Iterator[str]:
        """Yield inputs that nothing feeds, and differences between outputs and the needs of the graph's purpose."""
        for label, feed in graph.inputs.items():
            if not self._can_feed(purpose, label, feed):
                yield f"{where} takes {named(label)}, but nothing feeds it as {feed.feed} {feed.ring or feed.setting}"
        if both := graph.outputs.keys() & {entry.output for entry in self.memory}:
            yield f"{where} lists memory among its outputs: {listed(map(named, sorted(both)))}"
        if purpose == RUN:
            shapes = {name: tensor.shape for name, tensor in graph.outputs.items()}
            shapes |= {name: feed.shape for name, feed in graph.inputs.items() if feed.feed == "input"}
            for name, shape in shapes.items():
                if shape[:2] != EACH or not all(isinstance(axis, int) for axis in shape[2:]):
                    yield f"{named(name)} of {where} has the shape {shown(shape)}, expected batch, segment, and numbers"
        if misplaced := graph.fixed.keys() - {*EACH, *self.evaluation.rings}:
            yield f"{where} fixes axes that no step has: {listed(map(named, sorted(misplaced)))}"
        for label, (dtype, shape) in OUTPUTS.get(purpose, {}).items():
            tensor = graph.outputs.get(label)
            if tensor is None:
                yield f"{where} does not return {label}"
            elif (tensor.dtype, len(tensor.shape)) != (dtype, len(shape)) or not all(
                map(self._is_size, tensor.shape, shape)
            ):
                yield f"{label} of {where} is not {dtype} ({', '.join(shape)})"
        ids, log_probs = map(graph.outputs.get, ("top_ids", "top_log_probs"))
        if purpose == "detail" and ids and log_probs and ids.shape != log_probs.shape:
            yield f"{where} lists other numbers of tokens in top_ids and top_log_probs"

    def _can_feed(self, purpose: str, label: str, feed: Feed) -> bool:
        for own, feeds in ((ENCODE, ("source",)), (RUN, RUN_FEEDS)):
            if purpose == own or feed.feed == feeds[0]:
                return purpose == own and feed.feed in feeds and self._is_memory(label, feed)
        if feed.ring and feed.ring not in self.evaluation.rings:
            return False
        if feed.setting and feed.setting not in self.evaluation.settings:
            return False
        if purpose == POSITIONS:
            return feed.feed in ("slots", "setting")
        if feed.feed == "constant":
            return any(name in self.graphs and label in self.graphs[name].outputs for name in (POSITIONS, ENCODE))
        return self._is_memory(label, feed)

    def _is_memory(self, label: str, feed: Feed) -> bool:
        return feed.feed != "memory" or any(entry.input == label for entry in self.memory)

    def _is_size(self, axis: Axis, expected: str) -> bool:
        if expected == "k":
            return isinstance(axis, int) and axis <= self.vocab_size
        return axis == (self.vocab_size if expected == "vocab_size" else expected)


def _is_file_name(name: str) -> bool:
    """Return whether a file name stays inside a folder on every system, and a message can show it."""
    plain = name not in ("", ".", "..") and not set(name) & set("/\\:")
    return plain and name.isprintable() and len(name.encode("utf-8", "replace")) <= LONGEST_NAME
