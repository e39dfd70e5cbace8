"""The options of a conversion: fields that declare help, default and range. Importing this module is quick."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xlexport.choices import VOCAB_STYLES
from xlexport.fixed_shapes import FixedShapes
from xlexport.quantization.options import PrecisionOptions, QuantizeOptions
from xlruntime.bundle import GraphFormat
from xlruntime.errors import OptionError
from xlruntime.messages import listed
from xltraining.config_fields import options_of, setting

__all__ = ["ConversionOptions"]

RENAMED = {"verify_segments": "segments", "verify_text": "text"}
_tokenizer = functools.partial(setting, None, heading="Tokenizer", metavar="TOKEN")
_verification = functools.partial(setting, heading="Verification", common=True)
_statement = functools.partial(setting, None, heading="Statements for the bundle's README", metavar="TEXT")


@dataclass(frozen=True, kw_only=True)
class ConversionOptions(PrecisionOptions):
    """The choices of a conversion; None keeps the checkpoint's own value.

    Attributes:
        to: format of the graphs: `onnx`, `torchscript`, `exported-program` (PyTorch runs both) or `executorch`.
        inline: whether ONNX graphs have standard operators only, for tools other than ONNX Runtime.
        dtype: precision of the bundle, `float32` or one of `QuantizeOptions`. Its cost in bits is measured on `text`.
        tokenizer: a file (vocabulary, `tokenizer.json` or SentencePiece model), `bytes`, or `none` for a bundle that
            takes only token ids.
        vocab_style: rule that splits text into symbols of a vocabulary, one of `vocabularies.STYLES`.
        bos, eos: names of the tokens that begin and end a text, or `none`; None: as the checkpoint's files say.
        text: a text to verify on; None: the text of `xlexport.sample`.
        as_ids: whether `text` holds token ids separated by white space.
        segments: number of segments to verify; None: as many as `verification.segments_to_read` returns.
        fixed: shapes that all graphs fix; None: batch, segment and memory are free. `executorch` needs them.
        threads: threads of one step; None: ONNX Runtime chooses.
        restart: whether to reset position and memory when a document exceeds the positions, instead of failing.
        settings: evaluation settings of the model and choices of its architecture, by name: `segment_len`, `mem_len`,
            `clamp_len` and `same_length` of a Transformer-XL, `rule` and `n_hashes` of a Reformer.
        licence, data, intended_use: what the author states about the model, for the provenance and README; None: what
            the checkpoint says.

    Raises:
        OptionError: options do nothing without others.
    """

    to: GraphFormat = setting(
        "onnx",
        "Only onnx runs without PyTorch.",
        heading="Graphs",
        common=True,
    )
    inline: bool = setting(
        False, "Use standard operators only, for tools other than ONNX Runtime; slower.", heading="Graphs"
    )
    dtype: str = setting("float32", "Precision; first verified in float32.", heading="Graphs", common=True)
    tokenizer: str | None = _tokenizer(
        "Tokenizer.  [default: the checkpoint's]",
        metavar="FILE|bytes|none",
        heading="Checkpoint",
        common=True,
    )
    vocab_style: str | None = _tokenizer(
        f"How to read a vocabulary: {', '.join(VOCAB_STYLES)}.  [default: by the symbols]", metavar="STYLE"
    )
    bos: str | None = _tokenizer("Token that begins a text, or none.  [default: as files say]")
    eos: str | None = _tokenizer("Token that ends a text, or none.  [default: as files say]")
    text: Path | None = setting(
        None, "Text to verify on.  [default: Python's documentation]", heading="Verification", common=True
    )
    as_ids: bool = _verification(False, "--text holds token ids, separated by white space.", flags=("--ids",))
    segments: int | None = _verification(None, "Segments to verify.", minimum=1)
    fixed: FixedShapes | None = setting(
        None,
        "Fix all shapes; also mem_len=N.",
        heading="Graphs",
        metavar="batch=1,segment=N,…",
        common=True,
    )
    threads: int | None = setting(None, option=False)
    restart: bool | None = setting(None, option=False)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False, metadata={"option": False})
    licence: str | None = _statement("Licence of the model.")
    data: str | None = _statement("Data that the model was trained on.")
    intended_use: str | None = _statement("Use that the author intends.")

    def __post_init__(self) -> None:
        precision = {option.name: option for option in options_of(PrecisionOptions).values()}
        changed = [option.spelling for name, option in precision.items() if getattr(self, name) != option.default]
        if changed and self.dtype == "float32":
            raise OptionError(f"{listed(changed)}: only for a quantization.", hint="Choose another --dtype.")
        if self.as_ids and self.text is None:
            raise OptionError("--ids is for the file of --text.", hint="Add --text with a file of token ids.")

    @classmethod
    def of(cls, *, settings: Mapping[str, Any] | None = None, **values: Any) -> ConversionOptions:
        """Return options from keyword arguments; keywords that are not fields go into `settings`."""
        if renamed := {old: new for old, new in RENAMED.items() if old in values}:
            hint = f"Write {listed(renamed.values())}."
            raise OptionError(f"{listed(renamed)}: no longer an option of a conversion.", hint=hint)
        names = {field.name for field in dataclasses.fields(cls)}
        others = {name: value for name, value in values.items() if name not in names}
        own = {name: value for name, value in values.items() if name in names}
        return cls(**own, settings={**(settings or {}), **others})

    @property
    def quantization(self) -> QuantizeOptions | None:
        """The options to quantize the float32 bundle, or None."""
        if self.dtype == "float32":
            return None
        names = (field.name for field in dataclasses.fields(PrecisionOptions))
        shared = {name: getattr(self, name) for name in names}
        return QuantizeOptions(self.dtype, threads=self.threads, **shared)
