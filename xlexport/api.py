"""What commands do, as functions of Python: each command reads its options, calls one of them, and prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport import verification
from xlexport.bundles import open_any_bundle
from xlexport.callbacks import Progress, no_progress
from xlexport.families import architecture
from xlexport.families.recurrent.source import module_source
from xlexport.model_names import load_reference, load_source
from xlexport.verification.parity import ParityReport
from xlexport.verification.reference import Reference
from xlexport.verification.text import verify_ids
from xlruntime.documents import check_ids
from xlruntime.engine import Engine
from xlruntime.errors import OptionError
from xlruntime.messages import listed

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ParityReport", "assert_parity", "verify"]


def verify(
    bundle: str | Path | Engine,
    model: str | Path | nn.Module | None = None,
    *,
    text: str | Path | npt.ArrayLike | None = None,
    as_ids: bool = False,
    segments: verification.Segments = None,
    reference: str | Callable[..., Any] | object | None = None,
    format: str | None = None,
    config: Mapping[str, Any] | None = None,
    weights: str | Path | None = None,
    trust: bool = False,
    progress: Progress = no_progress,
    **settings: int | bool | None,
) -> ParityReport:
    """Compare a bundle with the trained model, or with eager code of yours, over segments of carried memory.

    Args:
        bundle: its folder, or an open bundle, whose graphs are closed meanwhile and open again later.
        model: what `xlexport convert` took, by its path or name, or the module of `export_module`.
        text: path of a text file, or token ids (n,); None: the default text of `xlexport verify`.
        as_ids: whether the file of `text` holds token ids separated by white space.
        segments: how many are read; "all": the whole text; None: enough to write the memory twice, at least 20, and
            at least 1,000 tokens.
        reference: eager code instead of `model`, or its name `FILE.py:NAME`: a function `(tokens, targets, state) ->
            (log_probs, state)`, or an object with such a method `segment`. Tokens, and the token after each, are
            (B, S) int64; `state` is None where a document begins. Log-probabilities of the targets are (B, S), in nats.
        format, config, weights: as in the conversion of `model`; None: what the bundle records.
        trust: whether code in the named files, and in the bundle, may run.
        progress: called after every segment with their number and the number of all.
        settings: evaluation settings, such as `segment_len` and `mem_len`; None or absent: the bundle's own.

    Returns:
        The report; `passed` says whether both are equal within the tolerance of the bundle's precision.

    Raises:
        XlexportError, XlruntimeError, OSError: both cannot be compared: a file, a setting, a size or a result is wrong.
    """
    if (model is None) == (reference is None):
        raise OptionError("verify needs a model or a reference.", hint="Give one of them, not both.")
    reading: dict[str, Any] = {
        "format": format,
        "config": config,
        "weights": None if weights is None else Path(weights),
    }
    unused = [name for name, value in reading.items() if value is not None]
    if unused and not isinstance(model, str | Path):
        raise OptionError(f"{listed(unused)}: for a model that is read by its name.", hint="Leave it out.")
    engine = bundle if isinstance(bundle, Engine) else open_any_bundle(bundle, trust=trust)
    evaluation = engine.evaluation(**settings)
    eager: Any
    if reference is not None:
        eager = Reference(load_reference(reference, trust=trust) if isinstance(reference, str) else reference)
    elif isinstance(model, str | Path):
        eager = load_source(model, trust=trust, bundle=engine.bundle, **reading).build_model
    else:
        eager = module_source(model, n_token=engine.bundle.vocab_size).build_model
    ids = _ids(engine, text, as_ids, eager)
    return verification.verify(engine, eager, ids, segments=segments, evaluation=evaluation, progress=progress)


def assert_parity(
    bundle: str | Path | Engine, model: str | Path | nn.Module | None = None, **arguments: Any
) -> ParityReport:
    """Return the report of `verify`, which has the same arguments; fail unless both are equal.

    Raises:
        ParityError: they differ; Python and pytest print the table of the report with it. Others as `verify`.
    """
    report = verify(bundle, model, **arguments)
    if (error := report.problem()) is not None:
        error.add_note(str(report))
        raise error
    return report


def _ids(engine: Engine, text: str | Path | npt.ArrayLike | None, as_ids: bool, eager: Any) -> npt.NDArray[np.int64]:
    """Return the token ids (n,) of a text."""
    if text is None or isinstance(text, str | Path):
        adapter = architecture(engine.bundle.architecture)
        possible = None if isinstance(eager, Reference) else lambda: adapter.possible_ids(eager())
        return verify_ids(engine.bundle, engine.tokenizer, None if text is None else Path(text), as_ids, possible)
    ids = np.asarray(text)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise OptionError(f"text is {ids.dtype} of shape {ids.shape}.", hint="Give a path, or token ids (n,).")
    check_ids(ids, engine.bundle.vocab_size, "text")
    return ids.astype(np.int64)
