"""The contract of a bundle: the inputs and outputs of its graphs, and which output becomes which input.

The exporter fills in these dataclasses, and writes them to `bundle.json` and to each graph's metadata. The runtime
reads them and knows nothing else about an architecture.

    Bundle
    ├── graphs: {purpose: Graph}      score, generate, detail, score_few, positions
    ├── memory: (Memory, ...)         input -> output pairs that a stream carries
    ├── encoder: Encoder              of an encoder-decoder, with the graph encode
    └── evaluation: EvaluationRules   the settings that a caller may choose (see `evaluation`)

An axis is a number (fixed) or a name (free): `batch`, `segment`, `near + 1`, or the symbol of a ring's capacity.
Besides tokens, targets, memory and settings, a step graph may take `position` (B,): the number of tokens read of the
row's own document. The graph `positions` computes the constants of a walk from settings and capacities alone: its
outputs are inputs of the step graphs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import PurePosixPath
from typing import Any, Literal

from .encoder import Encoder
from .errors import BundleError
from .evaluation import EvaluationRules, EvaluationSettings
from .json_fields import read_fields
from .limits import Limits, parse_json
from .manifest_digest import DIGEST_KEY, check_manifest_digest, manifest_digest
from .messages import listed, named, shown
from .tensor_kinds import LARGEST_AXIS, check_kind

__all__ = [
    "DESCRIPTIONS",
    "FIRST_MEMORY_FILE",
    "FORMAT_VERSION",
    "MANIFEST_LIMITS",
    "METADATA_KEY",
    "Bundle",
    "FileDigest",
    "Format",
    "Graph",
    "Layout",
    "Memory",
    "Tensor",
    "Tokenizer",
]

# 1: Transformer-XL graphs with a positional key for each slot. 2: evaluation settings known to the runtime by name.
FORMAT_VERSION = 3
METADATA_KEY = "xlexport.graph"  # key of a graph's spec in the file's metadata
FIRST_MEMORY_FILE = "first_memory.safetensors"  # first rows of a fresh memory, unless they are zero
DESCRIPTIONS = ("README.md", "parity.json", "quantization.json")  # for people; nothing runs them
COMPUTING = (".onnx", ".data", ".pt", ".pt2", ".safetensors")
MANIFEST_LIMITS = Limits(bytes=1 << 26, operations=1_000_000)  # the sample takes 0.6 MB and 5,000 values
LONGEST_NAME, LARGEST_FILE = 255, 1 << 62  # bytes; names have at most 255 on most file systems
# Defaults that manifest and metadata leave out.
IMPLIED: Mapping[str, Any] = {"layout": "ring", "max_segment": None, "format": "onnx"}

EACH = ("batch", "segment")
# Required outputs of the graphs, by purpose. A text is a size that the bundle defines.
GIVEN: Mapping[str, Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "score": {"log_prob": ("float32", EACH)},
    "generate": {"logits": ("float32", ("batch", "vocabulary"))},
    "detail": {
        "log_prob": ("float32", EACH),
        "rank": ("int64", EACH),
        "entropy": ("float32", EACH),
        "top_ids": ("int64", (*EACH, "listed")),
        "top_log_probs": ("float32", (*EACH, "listed")),
    },
}

Axis = int | str
Layout = Literal["ring", "window", "state"]
Format = Literal["onnx", "torchscript", "exported-program"]


@dataclass(frozen=True)
class Tensor:
    """One input or output of a graph."""

    name: str
    dtype: str  # numpy name, "float32"
    shape: tuple[Axis, ...]

    def __post_init__(self) -> None:
        check_kind(self.name, self.dtype, self.shape)


@dataclass(frozen=True)
class Memory:
    """One carried tensor: the input of a step graph that takes it, and the output with its next value.

    It has one entry along the axis `batch` for each batch row. Layouts:

    * `ring`: rows along the axis named by the symbol of its capacity. A step writes only its own slots.
    * `window`: a fixed number of newest rows, oldest first, along the last axis but one. A step returns all rows.
    * `state`: fixed size, without rows. A step returns the whole state; a document begins with the first value.
    """

    input: str  # "memory_key_0"
    output: str  # "new_memory_key_0"
    dtype: str
    shape: tuple[Axis, ...]  # ("batch", n_head, "capacity", d_head)
    first_value: str | None = None  # tensor in FIRST_MEMORY_FILE for each fresh slot; None: zero
    layout: Layout = "ring"

    def __post_init__(self) -> None:
        check_kind(self.input, self.dtype, self.shape)

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
        """Return whether a value can be the first one: finite floats, shaped as one slot or one state."""
        shape = tuple(axis for index, axis in enumerate(self.shape) if index not in (0, self.row_axis))
        return value is not None and value.shape == shape and value.dtype.kind == "f" and bool((abs(value) < inf).all())

    def problem(self, rings: Mapping[str, Any]) -> str | None:
        """Return the problem of the shape, or None."""
        free = [axis for axis in self.shape[1:] if isinstance(axis, str)]
        if not self.shape or self.shape[0] != "batch":
            return "has no axis 'batch' in front"
        if self.layout == "ring":
            return None if len(free) == 1 and free[0] in rings else f"is a ring over {free}, expected one of {[*rings]}"
        if free:
            return f"is a {self.layout} with free axes {free}"
        return "is a window without rows" if self.layout == "window" and len(self.shape) < 3 else None


@dataclass(frozen=True)
class Graph:
    """One graph of the bundle. `inputs` and `outputs` are complete, memory included.

    An ONNX file or an exported program of PyTorch holds one graph. A TorchScript file has one method per purpose.
    """

    file: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_segment: int | None = None  # most tokens of a step; None: any number
    format: Format = "onnx"  # the others need PyTorch, and loading them runs code from the file

    def __post_init__(self) -> None:
        if self.max_segment is not None and self.max_segment < 1:
            raise ValueError(f"max_segment is {self.max_segment}, expected a whole number of at least 1")
        for what, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            if len({tensor.name for tensor in tensors}) < len(tensors):
                raise ValueError(f"{what} of {named(self.file)} have the same name")

    def metadata(self, memory: tuple[Memory, ...]) -> str:
        """Return the file's metadata as JSON: this spec, and which of its outputs becomes which input."""
        taken = {tensor.name for tensor in self.inputs}
        carried = [_fields(entry) for entry in memory if entry.input in taken]
        return json.dumps({**_fields(self), "memory": carried}, separators=(",", ":"))


@dataclass(frozen=True)
class Tokenizer:
    """The tokenizer of a bundle.

    Its kind is `bytes` (id = byte + first_id), `none` (ids only), or one with a file: `vocabulary` (see `Vocabulary`),
    `tokenizers` or `sentencepiece` (files of these libraries).
    """

    kind: Literal["bytes", "vocabulary", "tokenizers", "sentencepiece", "none"]
    file: str | None = None
    first_id: int = 0  # id of byte 0; smaller ids have no text

    def __post_init__(self) -> None:
        if self.first_id < 0:
            raise ValueError(f"first_id is {self.first_id}, expected a whole number of at least 0")
        if (self.file is None) != (self.kind in ("bytes", "none")):
            raise ValueError(f"tokenizer {self.kind!r} with file {named(self.file)}: only bytes and none have no file")
        if self.file == "":
            raise ValueError("the tokenizer's file has no name")


@dataclass(frozen=True)
class FileDigest:
    """Size and SHA-256 that a file of the bundle must have."""

    sha256: str
    size: int

    def __post_init__(self) -> None:
        if re.fullmatch("[0-9a-f]{64}", self.sha256) is None or not 0 <= self.size <= LARGEST_FILE:
            raise ValueError(f"{ascii(self.sha256)[:70]} and {shown(self.size)} bytes, expected a SHA-256 and a size")


@dataclass(frozen=True)
class Bundle:
    """`bundle.json`: the single source of truth about a bundle."""

    architecture: str
    config: Mapping[str, Any]
    vocab_size: int
    tokenizer: Tokenizer
    precision: str
    evaluation: EvaluationRules
    memory: tuple[Memory, ...]
    graphs: Mapping[str, Graph]
    provenance: Mapping[str, Any]
    files: Mapping[str, FileDigest]
    format_version: int = FORMAT_VERSION
    encoder: Encoder | None = None  # of an encoder-decoder, whose other graphs read targets

    @property
    def settings(self) -> EvaluationSettings:
        """The default evaluation settings."""
        return self.evaluation.choose()

    @property
    def fingerprint(self) -> str:
        """Identity of this bundle's numbers: a digest of graphs, weights and first rows, not of other files."""
        computing = {name: digest.sha256 for name, digest in self.computing_files.items()}
        return hashlib.sha256(json.dumps(computing, sort_keys=True).encode()).hexdigest()

    @property
    def computing_files(self) -> dict[str, FileDigest]:
        """The files that determine the numbers that this bundle computes."""
        return {name: digest for name, digest in self.files.items() if name.endswith(COMPUTING)}

    @property
    def guarded_files(self) -> dict[str, FileDigest]:
        """The files that must be those of their digests: all but descriptions, which people may edit."""
        return {name: digest for name, digest in self.files.items() if name not in DESCRIPTIONS}

    def to_json(self) -> str:
        """Return `bundle.json` as text, with its own digest."""
        fields = dataclasses.asdict(self)
        for graph in fields["graphs"].values():
            if graph["format"] == IMPLIED["format"]:  # older runtimes refuse the field
                del graph["format"]
        if not self.evaluation.reads_last:  # also refused by older runtimes, which would not follow it
            del fields["evaluation"]["reads_last"]
        if self.encoder is None:  # the same
            del fields["encoder"]
        return json.dumps({**fields, DIGEST_KEY: manifest_digest(fields)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> Bundle:
        """Read `bundle.json`.

        Args:
            text: content of the file; bytes are UTF-8.
            where: its path, for messages.

        Raises:
            BundleError: the text is not JSON, too large, not a manifest, of another format version, or changed after it
                was written; or a field is missing or wrong.
        """
        raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        fields = parse_json(raw, MANIFEST_LIMITS.budget(where, BundleError, "Convert the checkpoint again."))
        if not isinstance(fields, dict) or type(fields.get("format_version")) is not int:
            raise BundleError(f"{where}: no integer format_version, so not a bundle that xlexport wrote.")
        found = fields["format_version"]
        if found > FORMAT_VERSION:
            raise BundleError(
                f"{where}: format version {str(found)[:20]} is newer than {FORMAT_VERSION}, the newest this xlexport "
                "reads.",
                repair="Install a newer xlexport, or convert the checkpoint again.",
            )
        if found < FORMAT_VERSION:
            raise BundleError(
                f"{where}: format version {str(found)[:20]} is of an earlier xlexport, this one reads "
                f"{FORMAT_VERSION}.",
                repair=f"Convert the checkpoint again: {_conversion(fields, where)}",
            )
        check_manifest_digest(fields, where)
        try:
            bundle = read_fields(cls, fields)
        except ValueError as error:
            raise BundleError(
                f"{where}: a field is missing or malformed ({error}).", repair="Convert it again."
            ) from error
        bundle._check(where)
        return bundle

    def _check(self, where: str) -> None:
        """Refuse contradictions, file names that leave the folder, and files that are used but not listed."""
        problems = list(self._contradictions())
        if problems:
            raise BundleError(f"{where}: {'; '.join(problems)}.", repair="Convert it again.")
        used = {graph.file for graph in self.graphs.values()} | ({self.tokenizer.file} - {None})
        if any(entry.first_value is not None for entry in self.memory):
            used.add(FIRST_MEMORY_FILE)
        outside = [name for name in self.files if not _is_file_name(name)]
        if outside:
            raise BundleError(f"{where}: file names must stay inside the bundle, found {ascii(outside)[:200]}.")
        unlisted = ", ".join(sorted(str(name) for name in used - set(self.guarded_files)))
        if unlisted:
            raise BundleError(
                f"{where}: files are used but have no digest: {named(unlisted)}.", repair="Convert it again."
            )

    def _contradictions(self) -> Iterator[str]:
        """Yield contradictions between parts of the manifest."""
        if not 1 <= self.vocab_size <= LARGEST_AXIS:
            yield f"vocab_size is {shown(self.vocab_size)}, expected 1 to {LARGEST_AXIS}"
        if taken := {"batch", "segment"} & set(self.evaluation.rings):
            yield f"a ring has the symbol {min(taken)!r}, which is another axis"
        first, last = self.tokenizer.first_id, self.tokenizer.first_id + 255
        if self.tokenizer.kind == "bytes" and last >= self.vocab_size:
            yield f"bytes have ids {first} to {last}, but the vocabulary is 0 to {self.vocab_size - 1}"
        sizes = {t.shape[-1] for g in self.graphs.values() for t in g.outputs if t.name == "logits" and t.shape}
        if wrong := [size for size in sizes if isinstance(size, int) and size != self.vocab_size]:
            yield f"vocab_size is {self.vocab_size}, but the graphs know {wrong[0]} tokens"
        if "score" not in self.graphs:
            yield "the graph 'score' is missing"
            return
        inputs, outputs = (
            {tensor.name for tensor in t} for t in (self.graphs["score"].inputs, self.graphs["score"].outputs)
        )
        for entry in self.memory:
            if problem := entry.problem(self.evaluation.rings):
                yield f"memory {named(entry.input)} {problem}"
        strange = [entry.input for entry in self.memory if entry.input not in inputs or entry.output not in outputs]
        if strange:
            yield f"memory that the score graph does not take or return: {listed(map(shown, strange))}"
        if len({entry.input for entry in self.memory} | {entry.output for entry in self.memory}) < 2 * len(self.memory):
            yield "memories share an input or output"
        if self.encoder is not None:
            yield from self.encoder.contradictions(self.vocab_size, self.evaluation.max_positions, self.graphs)
        for purpose, graph in self.graphs.items():
            yield from self._strange_outputs(purpose, graph)

    def _strange_outputs(self, purpose: str, graph: Graph) -> Iterator[str]:
        """Yield differences between a graph's declared outputs and the needs of its purpose."""
        found = {tensor.name: tensor for tensor in graph.outputs}
        for name, (dtype, shape) in GIVEN.get(purpose.removesuffix("_few").removesuffix("_fixed"), {}).items():
            tensor = found.get(name)
            if tensor is None:
                yield f"the graph {named(purpose)!r} does not return {name}"
            elif (tensor.dtype, len(tensor.shape)) != (dtype, len(shape)) or not all(
                map(self._is_size, tensor.shape, shape)
            ):
                yield f"{name} of the graph {named(purpose)!r} is not {dtype} ({', '.join(shape)})"

    def _is_size(self, axis: Axis, expected: str) -> bool:
        if expected == "listed":
            return isinstance(axis, int) and axis <= self.vocab_size
        return axis == (self.vocab_size if expected == "vocabulary" else expected)


def _conversion(fields: Mapping[str, Any], where: str) -> str:
    """Return the command that makes the bundle again, as far as a manifest of another version has its source."""
    provenance = fields.get("provenance")
    sources = provenance.get("sources") if isinstance(provenance, dict) else None
    # A checkpoint of several files is a folder, and manifests do not have its name.
    named = [*sources] if isinstance(sources, dict) and len(sources) == 1 else []
    source = next((name for name in named if name.isprintable()), None)
    precision = fields.get("precision")
    dtype = f" --dtype {precision}" if precision in ("float16", "int8", "weight-int8", "weight-int4") else ""
    folder = PurePosixPath(where).parent
    return f"xlexport convert {shlex.quote(source or 'CHECKPOINT')} -o {shlex.quote(str(folder))} --force{dtype}"


def _is_file_name(name: str) -> bool:
    """Return whether a file name stays inside a folder, and a message can show it."""
    inside = PurePosixPath(name).name == name and name not in ("", ".", "..")
    return inside and name.isprintable() and len(name.encode("utf-8", "replace")) <= LONGEST_NAME


def _fields(entry: Memory | Graph) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(entry).items() if (name, value) not in IMPLIED.items()}
