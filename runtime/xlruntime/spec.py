"""The contract of a bundle: what its graphs take and give, and which output becomes which input.

Declared once, here. The exporter fills these dataclasses in and writes them to `bundle.json` and to each graph's
metadata; the runtime reads them and knows nothing else about an architecture.

    Bundle
    ├── graphs: {purpose: Graph}      score, generate, detail, score_few, positions
    ├── memory: (Memory, ...)         input -> output pairs that a stream carries
    └── evaluation: Evaluation        how far a token sees, unless the caller chooses otherwise

An axis is a number (fixed) or a name (free): `batch`, `segment`, `capacity`, `near + 1`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import PurePosixPath
from typing import Any, Literal

from .errors import BundleError, OptionError
from .json_fields import read_fields

__all__ = [
    "FIRST_MEMORY_FILE",
    "FORMAT_VERSION",
    "METADATA_KEY",
    "UNBOUNDED_WINDOW",
    "Bundle",
    "Evaluation",
    "FileDigest",
    "Format",
    "Graph",
    "Layout",
    "Memory",
    "Tensor",
    "Tokenizer",
]

FORMAT_VERSION = 2  # 1: Transformer-XL graphs with a positional key for each slot
METADATA_KEY = "xlexport.graph"  # where a file's metadata holds its spec
DIGEST_KEY = "manifest_sha256"  # where the manifest holds the SHA-256 of all else that it says
FIRST_MEMORY_FILE = "first_memory.safetensors"  # the rows a fresh memory starts with, where they are not zero
LONGEST_NAME = 255  # bytes, on most file systems
LARGEST_LENGTH = 2**30  # of segment, memory and clamp: more than any machine holds, and far from overflowing
# What manifest and metadata leave out, as it is so in most graphs.
IMPLIED: Mapping[str, Any] = {"layout": "ring", "max_segment": None, "format": "onnx"}
UNBOUNDED_WINDOW = 2**62  # "no window": larger than any distance, and safe to add to in int64

Axis = int | str
FirstMemory = Literal["empty", "zeros"]
Layout = Literal["ring", "recent"]
Format = Literal["onnx", "torchscript", "exported-program"]


@dataclass(frozen=True)
class Tensor:
    """One input or output of a graph."""

    name: str
    dtype: str  # numpy name, "float32"
    shape: tuple[Axis, ...]


@dataclass(frozen=True)
class Memory:
    """One carried tensor: where it enters a step graph and where its next value leaves.

    With one entry along `batch` for each batch row, its rows are laid out as a `ring` along the axis named `capacity`,
    of which a step writes only its own slots, or as the `recent` ones: always the same number, oldest first, all of
    which a step gives anew.
    """

    input: str  # "memory_key_0"
    output: str  # "new_memory_key_0"
    dtype: str
    shape: tuple[Axis, ...]  # ("batch", n_head, "capacity", d_head)
    first_value: str | None = None  # tensor in FIRST_MEMORY_FILE that each fresh slot holds; None is zero
    layout: Layout = "ring"

    @property
    def row_axis(self) -> int:
        """Index of the axis along which the rows stand: `capacity`, or the last but one."""
        return self.shape.index("capacity") if self.layout == "ring" else len(self.shape) - 2

    def begins_with(self, rows: Any) -> bool:
        """Whether an array (or None) can be the first value of every slot: finite floats of this shape."""
        shape = tuple(axis for index, axis in enumerate(self.shape) if index not in (0, self.row_axis))
        return rows is not None and rows.shape == shape and rows.dtype.kind == "f" and bool((abs(rows) < inf).all())


@dataclass(frozen=True)
class Graph:
    """One graph of the bundle. `inputs` and `outputs` leave nothing out, memory included.

    An ONNX file and an exported program of PyTorch hold one graph, a TorchScript file a method for each by its purpose.
    """

    file: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    max_segment: int | None = None  # tokens that a step takes at most; None: any number
    format: Format = "onnx"  # the others run in PyTorch, and loading them runs code that is in the file

    def metadata(self, memory: tuple[Memory, ...]) -> str:
        """What the file itself says, as JSON: this spec, and which of its outputs becomes which input."""
        taken = {tensor.name for tensor in self.inputs}
        carried = [_fields(entry) for entry in memory if entry.input in taken]
        return json.dumps({**_fields(self), "memory": carried}, separators=(",", ":"))


@dataclass(frozen=True)
class Evaluation:
    """How far a token sees. The settings of `with_options` may be chosen anew for each stream.

    A document that has no more positions left is refused, or with `restart` goes on as one that begins: each token is
    scored from what stands before it, so the first of a new part still from the old part, the second from it alone.
    """

    segment_len: int  # tokens in one step; with `whole` the longest document
    mem_len: int  # rows of earlier segments that a layer keeps
    clamp_len: int  # distances beyond it count as it; -1: not clamped
    same_length: bool  # every query sees `window` keys; else the first of a segment sees fewer than the last
    first_memory: FirstMemory = "empty"  # a fresh memory has no rows, or mem_len rows that are attended to
    window_extra: int = 0  # 1 where the source's same_length rule sees mem_len + 1 keys (NVIDIA, TensorFlow)
    n_hashes: int | None = None  # rounds of hashing; None: there is no LSH attention
    max_positions: int | None = None  # tokens of a document that can be read; None: any number
    restart: bool = False  # whether a longer document starts afresh at each multiple of that
    whole: bool = False  # a document is one step, and nothing is carried

    def __post_init__(self) -> None:
        problems = []
        if self.segment_len < 1:
            problems.append(f"segment_len is {self.segment_len}, at least 1 is needed")
        if self.whole and self.mem_len != 0:
            problems.append(f"mem_len is {self.mem_len}, but a document is read in one step, without memory")
        if not self.whole and self.mem_len < 1:
            problems.append(f"mem_len is {self.mem_len}, at least 1 is needed")
        if self.clamp_len == 0 or self.clamp_len < -1:
            problems.append(f"clamp_len is {self.clamp_len}, expected -1 (not clamped) or at least 1")
        problems += [
            f"{name} is {length}, at most {LARGEST_LENGTH} is possible"
            for name in ("segment_len", "mem_len", "clamp_len")
            if (length := getattr(self, name)) > LARGEST_LENGTH
        ]
        problems += [
            f"{name} is {number}, at least 1 is needed"
            for name in ("n_hashes", "max_positions")
            if (number := getattr(self, name)) is not None and number < 1
        ]
        if self.restart and self.longest_part is None:
            problems.append("restart is chosen, but documents may be of any length, so nothing ever restarts")
        if self.first_memory not in ("empty", "zeros"):
            problems.append(f"first_memory is {self.first_memory!r}, expected 'empty' or 'zeros'")
        if self.window_extra not in (0, 1):
            problems.append(f"window_extra is {self.window_extra}, expected 0 or 1")
        if problems:
            raise OptionError("evaluation settings: " + "; ".join(problems) + ".")

    @property
    def window(self) -> int:
        """Keys that a query sees at most, itself included."""
        return self.mem_len + self.window_extra if self.same_length and not self.whole else UNBOUNDED_WINDOW

    @property
    def segmentation_matters(self) -> bool:
        """Whether scores depend on `segment_len` and on where feeds end: they do without `same_length`."""
        return not self.same_length

    @property
    def longest_part(self) -> int | None:
        """Tokens of a document that are read at most before it is refused or restarts; None: any number.

        One more can be scored, as the last one is not read.
        """
        limits = [self.max_positions, self.segment_len if self.whole else None]
        return min((limit for limit in limits if limit is not None), default=None)

    def with_options(
        self,
        segment_len: int | None = None,
        mem_len: int | None = None,
        clamp_len: int | None = None,
        same_length: bool | None = None,
        n_hashes: int | None = None,
        restart: bool | None = None,
    ) -> Evaluation:
        """These settings with those that are given replaced; a segment is never longer than a document can be.

        Raises:
            OptionError: a value is out of range, more rounds of hashing than there are here; lists all that are.
        """
        chosen = {
            "segment_len": segment_len,
            "mem_len": mem_len,
            "clamp_len": clamp_len,
            "same_length": same_length,
            "n_hashes": n_hashes,
            "restart": restart,
        }
        given: dict[str, Any] = {key: value for key, value in chosen.items() if value is not None}
        if n_hashes is not None and self.n_hashes is None:
            raise OptionError(f"n_hashes is {n_hashes}, but this model has no LSH attention. Leave it out.")
        if n_hashes is not None and self.n_hashes is not None and n_hashes > self.n_hashes:
            raise OptionError(
                f"n_hashes is {n_hashes}, expected 1 to {self.n_hashes}, the rounds that were exported. Convert the "
                f"checkpoint again with --n-hashes {n_hashes}."
            )
        found = dataclasses.replace(self, **given)
        if self.max_positions is not None and found.segment_len > self.max_positions:
            return dataclasses.replace(found, segment_len=self.max_positions)
        return found

    def capacity(self, segment_len: int | None = None) -> int:
        """Ring slots needed: a step must not overwrite what its first query still sees."""
        return self.mem_len + (segment_len or self.segment_len)

    def max_segment(self, capacity: int) -> int:
        """Longest step a ring of `capacity` slots takes; one token more would be silently wrong."""
        return capacity - self.mem_len

    def near(self, capacity: int) -> int:
        """Newest rows of a ring that need positional keys of their own: beyond clamp_len all distances count as one.

        That many from the last query of a step, so as many more as a step has tokens from its first.
        """
        return min(capacity, self.clamp_len + self.max_segment(capacity)) if self.clamp_len > 0 else capacity


@dataclass(frozen=True)
class Tokenizer:
    """How text becomes token ids: `bytes` (id = byte + first_id), `none` (ids only), or one that has a file:
    `vocabulary` (see `Vocabulary`), or what the `tokenizers` or the `sentencepiece` library reads."""

    kind: Literal["bytes", "vocabulary", "tokenizers", "sentencepiece", "none"]
    file: str | None = None
    first_id: int = 0  # of byte 0: ids before it stand for no text

    def __post_init__(self) -> None:
        if self.first_id < 0:
            raise ValueError(f"first_id is {self.first_id}, expected a whole number of at least 0")
        if (self.file is None) != (self.kind in ("bytes", "none")):
            raise ValueError(
                f"tokenizer {self.kind!r} with file {_shown(str(self.file))}: only bytes and none have none"
            )


@dataclass(frozen=True)
class FileDigest:
    """What a file of the bundle must be, byte for byte."""

    sha256: str
    size: int

    def __post_init__(self) -> None:
        if re.fullmatch("[0-9a-f]{64}", self.sha256) is None or self.size < 0:
            raise ValueError(f"{ascii(self.sha256)[:70]} and {self.size} bytes, expected a SHA-256 and a size")


@dataclass(frozen=True)
class Bundle:
    """`bundle.json`: the single source of truth about a bundle."""

    architecture: str
    config: Mapping[str, Any]
    vocab_size: int
    tokenizer: Tokenizer
    precision: str
    evaluation: Evaluation
    memory: tuple[Memory, ...]
    graphs: Mapping[str, Graph]
    provenance: Mapping[str, Any]
    files: Mapping[str, FileDigest]
    format_version: int = FORMAT_VERSION

    @property
    def fingerprint(self) -> str:
        """Identity of the numbers this bundle computes: its graphs, weights and first rows, not its paperwork."""
        computing = {
            name: digest.sha256
            for name, digest in self.files.items()
            if name.endswith((".onnx", ".data", ".pt", ".pt2", ".safetensors"))
        }
        return hashlib.sha256(json.dumps(computing, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        """`bundle.json` as text, with its own digest."""
        fields = dataclasses.asdict(self)
        for graph in fields["graphs"].values():
            if graph["format"] == IMPLIED["format"]:  # runtimes that know no other refuse the field
                del graph["format"]
        return json.dumps({**fields, DIGEST_KEY: _digest(fields)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Bundle:
        """Read `bundle.json`.

        Args:
            text: contents of the file.
            where: its path, for messages.

        Raises:
            BundleError: not JSON, not a bundle, of another format version, changed since it was written, or with a
                field missing or of a wrong kind.
        """
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError) as error:
            reason = str(error).partition("\n")[0]
            raise BundleError(f"{where}: not JSON ({reason}). Convert the checkpoint again.") from error
        if not isinstance(fields, dict) or type(fields.get("format_version")) is not int:
            raise BundleError(f"{where}: no integer format_version, so not a bundle that xlexport wrote.")
        found = fields["format_version"]
        if found > FORMAT_VERSION:
            raise BundleError(
                f"{where}: format version {str(found)[:20]} is newer than {FORMAT_VERSION}, the newest this xlexport "
                "reads. Upgrade it (pip install -U xlexport), or convert the checkpoint again."
            )
        if found < FORMAT_VERSION:
            raise BundleError(
                f"{where}: format version {str(found)[:20]} is of an earlier xlexport, this one reads "
                f"{FORMAT_VERSION}. Convert the checkpoint again."
            )
        _check_digest(fields, where)
        try:
            bundle = read_fields(cls, fields)
        except ValueError as error:
            raise BundleError(f"{where}: a field is missing or malformed ({error}). Convert it again.") from error
        bundle._check(where)
        return bundle

    def _check(self, where: str) -> None:
        """Refuse what does not go together, names that leave the folder, and files that are used but not listed."""
        problems = list(self._contradictions())
        if problems:
            raise BundleError(f"{where}: {'; '.join(problems)}. Convert it again.")
        used = {graph.file for graph in self.graphs.values()} | ({self.tokenizer.file} - {None})
        if any(entry.first_value is not None for entry in self.memory):
            used.add(FIRST_MEMORY_FILE)
        outside = [name for name in self.files if not _is_file_name(name)]
        if outside:
            raise BundleError(f"{where}: file names must stay inside the bundle, found {ascii(outside)[:200]}.")
        unlisted = ", ".join(sorted(str(name) for name in used - set(self.files)))
        if unlisted:
            raise BundleError(f"{where}: files are used but have no digest: {_shown(unlisted)}. Convert it again.")

    def _contradictions(self) -> Iterator[str]:
        """What the manifest's parts say against each other."""
        first, last = self.tokenizer.first_id, self.tokenizer.first_id + 255
        if self.tokenizer.kind == "bytes" and last >= self.vocab_size:
            yield f"bytes have ids {first} to {last}, but the vocabulary is 0 to {self.vocab_size - 1}"
        sizes = {t.shape[-1] for g in self.graphs.values() for t in g.outputs if t.name == "logits" and t.shape}
        if wrong := [size for size in sizes if isinstance(size, int) and size != self.vocab_size]:
            yield f"vocab_size is {self.vocab_size}, but the graphs know {wrong[0]} tokens"
        if "score" not in self.graphs:
            yield "there is no graph 'score'"
            return
        inputs, outputs = (
            {tensor.name for tensor in t} for t in (self.graphs["score"].inputs, self.graphs["score"].outputs)
        )
        strange = [entry.input for entry in self.memory if entry.input not in inputs or entry.output not in outputs]
        if strange:
            yield f"memory that the score graph does not take or give: {', '.join(map(repr, strange[:5]))}"


def _is_file_name(name: str) -> bool:
    """Whether it stays inside a folder, and a message can show it."""
    inside = PurePosixPath(name).name == name and name not in ("", ".", "..")
    return inside and name.isprintable() and len(name.encode("utf-8", "replace")) <= LONGEST_NAME


def _shown(text: str) -> str:
    """Fit for a message."""
    return text if text.isprintable() and len(text) <= LONGEST_NAME else ascii(text)[:LONGEST_NAME]


def _fields(entry: Memory | Graph) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(entry).items() if (name, value) not in IMPLIED.items()}


def _digest(fields: Mapping[str, Any]) -> str:
    """SHA-256 of what a manifest says, however it is laid out."""
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _check_digest(fields: dict[str, Any], where: str) -> None:
    """Take the digest out of a manifest, and refuse one that says something else than was written.

    Manifests of earlier versions have none.
    """
    stated = fields.pop(DIGEST_KEY, None)
    try:
        intact = stated is None or stated == _digest(fields)
    except RecursionError:
        intact = False
    if not intact:
        raise BundleError(
            f"{where}: was changed since it was written (its {DIGEST_KEY} differs). Copy it anew; if you changed it on "
            f"purpose, remove {DIGEST_KEY}."
        )
