"""Parts of a manifest that stand alone: an encoder, requirements, and digests of files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from .json_fields import Pattern, Size
from .messages import listed, named
from .operator_domain import DOMAINS
from .tokenizer_entry import TokenId

__all__ = ["Encoder", "FileDigest", "Requirements", "Sha256"]

Sha256 = Annotated[str, Pattern("[0-9a-f]{64}", "a SHA-256")]
Version = Annotated[str, Pattern(r"[0-9]{1,4}(\.[0-9]{1,4}){0,3}", "a version such as 1.24.1")]


@dataclass(frozen=True)
class Encoder:
    """The sizes and reserved ids of an encoder-decoder. Its other graphs read targets.

    The graph `encode` takes `source` (sources, source_tokens) int64. Its outputs are constants of the whole target;
    in the other graphs their axes are named `batch` and `source`.

    Attributes:
        source_len: most tokens of a source.
        pad: id that pads shorter sources of a batch, behind their ends.
        start: id that a target begins with; it is read, not predicted.
        end: id that follows a target's last token.
    """

    source_len: Annotated[int, range(1, (1 << 20) + 1)]
    pad: TokenId
    start: TokenId
    end: TokenId

    def __post_init__(self) -> None:
        if len({self.pad, self.start, self.end}) < 3:
            raise ValueError("pad, start and end are not three different ids")


@dataclass(frozen=True)
class Requirements:
    """Requirements of the ONNX graphs: the oldest ONNX Runtime, the opset, and domains of other operators."""

    onnxruntime: Version | None = None  # "1.24.1"
    opset: Size | None = None
    domains: Mapping[str, Size] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lacking = [f"{named(name)} {n}" for name, n in self.domains.items() if n > DOMAINS.get(name, 0)]
        if lacking:
            raise ValueError(f"it needs operators that this xlruntime lacks: {listed(lacking)}")


@dataclass(frozen=True)
class FileDigest:
    """Size and SHA-256 that a file of the bundle must have."""

    sha256: Sha256
    size: Annotated[int, range(2**53)]
