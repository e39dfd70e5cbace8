"""Export a recurrent PyTorch module of one's own to a bundle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlexport.convert import ConversionOptions, convert
from xlexport.families.recurrent.protocol import RecurrentModel
from xlexport.families.recurrent.source import module_source
from xlexport.families.scan import scan

if TYPE_CHECKING:
    from xlexport.verification.parity import ParityReport

__all__ = ["RecurrentModel", "export_module", "scan"]


def export_module(
    model: RecurrentModel,
    output: str | Path,
    *,
    n_token: int | None = None,
    tokenizer: str | Path | None = None,
    segment_len: int | None = None,
    force: bool = False,
    tell: Callable[[str], None] = lambda message: None,
    **options: Any,
) -> ParityReport:
    """Write a bundle of a recurrent module, once it is checked and the graphs are found equal to it.

    Args:
        model: a `torch.nn.Module`; it stays as it is, and the bundle holds none of its code.
        n_token: size of the vocabulary; None: the model's attribute `n_token`, or the last axis of its logits.
        tokenizer: a vocabulary, `tokenizer.json` or SentencePiece model, or `bytes`; None: the bundle takes ids only.
        segment_len: tokens of a segment; None: the model's attribute `segment_len`, or 128.
        force: whether to replace an existing bundle.
        tell: called with a line for each stage.
        options: fields of `ConversionOptions`, such as `verify_segments`, `verify_text`, `threads` and `dtype`.

    Returns:
        The differences between the graphs and the module, over many segments with carried state.

    Raises:
        ExportError: the module breaks a rule of `RecurrentModel`, or cannot be exported. The message names the place.
        ParityError: the graphs differ from the module.
        OutputExistsError: the bundle exists.
    """
    source = module_source(model, n_token=n_token)
    choices = ConversionOptions.of(tokenizer=str(tokenizer or "none"), segment_len=segment_len, **options)
    return convert(source, Path(output), choices, force=force, tell=tell)
