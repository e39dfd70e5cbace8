"""What commands do, as functions of Python: each command reads its options, calls one of them, and prints."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport import conversion, verification
from xlexport.bundle_readme import defaults
from xlexport.bundles import (
    DESCRIPTIONS,
    check_graphs,
    check_output,
    open_any_bundle,
    open_bundle,
    publishing,
)
from xlexport.callbacks import Progress, Tell, no_progress, silent
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.conversion import Conversion
from xlexport.conversion_options import ConversionOptions
from xlexport.errors import ParityError
from xlexport.families import architecture
from xlexport.families.recurrent.protocol import RecurrentModel
from xlexport.families.step_model import StepModelArchitecture
from xlexport.families.step_model.inputs import input_specs
from xlexport.families.step_model.protocol import StatefulModule
from xlexport.families.step_model.source import user_source
from xlexport.format4 import upgrade
from xlexport.graph_proof.child import prove
from xlexport.graph_proof.options import GraphOptions
from xlexport.graph_proof.report import GraphReport
from xlexport.manifest import write_manifest
from xlexport.meanings import meanings_of
from xlexport.model_names import load_reference, load_source
from xlexport.quantization import run
from xlexport.quantization.options import QuantizeOptions
from xlexport.quantization.report import QuantizationReport
from xlexport.verification.answers import answers_of_graphs, with_answers
from xlexport.verification.parity import ParityReport
from xlexport.verification.reference import Reference
from xlexport.verification.step_models import SEGMENTS, StepParityReport, random_series, read_series, verify_steps
from xlexport.verification.text import verify_ids
from xlruntime.bundle import RUN, Bundle
from xlruntime.bundle_files import read_bundle
from xlruntime.documents import check_ids
from xlruntime.engine import Engine
from xlruntime.errors import BundleGraphError, OptionError
from xlruntime.known_answers import ANSWERS_FILE, KnownAnswers
from xlruntime.messages import listed
from xlruntime.step_model import StepModel

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "Conversion",
    "GraphOptions",
    "GraphReport",
    "ParityReport",
    "QuantizationReport",
    "SourceCheckpoint",
    "StepParityReport",
    "assert_parity",
    "configure",
    "convert",
    "export_module",
    "quantize",
    "read",
    "verify",
    "verify_graph",
]


def read(
    model: str | Path | nn.Module | SourceCheckpoint,
    *,
    format: str | None = None,
    config: Mapping[str, Any] | None = None,
    weights: str | Path | None = None,
    n_token: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> SourceCheckpoint:
    """Read what a trained model is: its architecture, sizes, tokenizer and files. Weights are read when they are used.

    Args:
        model: a file or folder, `ORG/MODEL` in the cache of the Hugging Face hub, `FILE.py:NAME`, the name of an
            installed model, or a module that satisfies `RecurrentModel`.
        format: name of the checkpoint's format; None: recognised.
        config: settings that the checkpoint does not hold, by name.
        weights: a file of weights for a model that code makes.
        n_token: size of a module's vocabulary; None: its attribute `n_token`, or the last axis of its logits.
        inputs: what a `StatefulModule` takes, such as `{"observation": (8,)}`; None: its attribute `inputs`.
        trust: whether code in the named file may run.

    Raises:
        CheckpointNotFoundError: there is no such model.
        CheckpointError, TrustError: it cannot be read, or is code that may not run.
        ExportError: a module breaks a rule of `RecurrentModel`.
    """
    _refuse_unused(model, format=format, config=config, weights=weights)
    for name, value in {"n_token": n_token, "inputs": inputs}.items():
        if value is not None and isinstance(model, str | Path | SourceCheckpoint):
            raise OptionError(f"{name}: for a module.", hint="Leave it out.")
    if isinstance(model, SourceCheckpoint):
        return model
    if isinstance(model, str | Path):
        return load_source(model, format, config, weights=_path(weights), trust=trust)
    return user_source(model, n_token=n_token, inputs=inputs)


def convert(
    model: str | Path | nn.Module | SourceCheckpoint,
    output: str | Path,
    *,
    format: str | None = None,
    config: Mapping[str, Any] | None = None,
    weights: str | Path | None = None,
    n_token: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    trust: bool = False,
    tokenizer: str | Path | None = None,
    text: str | Path | None = None,
    force: bool = False,
    tell: Tell = silent,
    progress: Progress = no_progress,
    **options: Any,
) -> Conversion:
    """Write the bundle of a trained model, once its graphs are found equal to it over many segments.

    Args:
        model, format, config, weights, n_token, inputs, trust: as in `read`. A module stays as it is, and the bundle
            holds none of its code.
        output: folder to write.
        tokenizer: a vocabulary, `tokenizer.json` or SentencePiece model, `bytes`, or `none`: the bundle takes only
            token ids; None: the checkpoint's, or `none` for a module.
        text: a text to verify on; None: topics of Python's documentation. For a step model, a file .npz of its inputs,
            arrays (N, …); None: 1,000 segments of random numbers in their ranges.
        force: whether to replace an existing bundle.
        tell: called with a line for each stage.
        progress: called after each verified segment with its number and the number of all.
        options: further fields of `ConversionOptions`, such as `segments`, `threads`, `to` and `dtype`, and settings of
            the model, such as `segment_len`.

    Raises:
        OutputExistsError: the bundle exists.
        ExportError: the model cannot be exported, or a module breaks a rule of `RecurrentModel`.
        ParityError: the graphs differ from the model.
        QuantizationError: `dtype` costs too many bits.
        XlexportError, XlruntimeError, OSError: a file or a setting is wrong.
    """
    source = read(model, format=format, config=config, weights=weights, n_token=n_token, inputs=inputs, trust=trust)
    by_name = isinstance(model, str | Path | SourceCheckpoint)
    choices = ConversionOptions.of(
        tokenizer=str(tokenizer) if tokenizer is not None else None if by_name else "none",
        text=_path(text),
        **options,
    )
    return conversion.convert(source, Path(output), choices, force=force, tell=tell, progress=progress)


def export_module(
    model: RecurrentModel | StatefulModule, output: str | Path, **arguments: Any
) -> ParityReport | StepParityReport:
    """Return the report of `convert`, which has the same arguments, for a module of yours."""
    return convert(model, output, **arguments).report  # type: ignore[arg-type]


def verify(
    bundle: str | Path | Engine,
    model: str | Path | nn.Module | SourceCheckpoint | None = None,
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
) -> ParityReport | StepParityReport:
    """Compare a bundle with the trained model, or with eager code of yours, over segments of carried memory.

    Args:
        bundle: its folder, or an open bundle, whose graphs are closed meanwhile and open again later.
        model: what `convert` took.
        text: path of a text file, or token ids (n,); None: the default text of `xlexport verify`. For a step model, a
            file .npz of its inputs, as in `convert`.
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
    _refuse_unused(model, format=format, config=config, weights=weights)
    engine = bundle if isinstance(bundle, Engine) else open_any_bundle(bundle, trust=trust)
    evaluation = engine.evaluation(**settings)
    if engine.bundle.purpose == RUN:
        given = {"reference": reference, "as_ids": as_ids or None, **settings}
        if unused := [name for name, value in given.items() if value is not None]:
            raise OptionError(f"{listed(unused)}: not for a step model.", hint="Leave it out.")
        by_name = isinstance(model, str | Path | SourceCheckpoint) or isinstance(
            getattr(model, "inputs", None), Mapping
        )
        inputs = None if by_name else engine.bundle.config.get("inputs")
        source = read(model, format=format, config=config, weights=weights, inputs=inputs, trust=trust)  # type: ignore[arg-type]
        _check_kind(engine, source)
        assert isinstance(engine, StepModel)
        return _verify_step_model(engine, source, text, segments, progress)
    eager: Any
    if reference is not None:
        eager = Reference(load_reference(reference, trust=trust) if isinstance(reference, str) else reference)
    else:
        if isinstance(model, str | Path):
            record = engine.bundle
            source = load_source(model, format, config, weights=_path(weights), trust=trust, bundle=record)
        else:
            assert model is not None
            source = read(model, n_token=engine.bundle.vocab_size)
        _check_kind(engine, source)
        eager = source.build_model
    ids = _ids(engine, text, as_ids, eager)
    return verification.verify(engine, eager, ids, segments=segments, evaluation=evaluation, progress=progress)


def _check_kind(engine: Engine, source: SourceCheckpoint) -> None:
    """Refuse to compare a step model with what is none, and the other way round."""
    steps = StepModelArchitecture.name
    if (source.architecture == steps) != (engine.bundle.purpose == RUN):
        raise ParityError(
            f"{engine.folder}: a {engine.kind}, but the model is of the architecture {source.architecture}.",
            hint="Give the model of its conversion.",
        )


def _verify_step_model(
    engine: StepModel, source: SourceCheckpoint, text: Any, segments: Any, progress: Progress
) -> StepParityReport:
    rows, rules = engine.bundle.fixed.get("batch", 2), engine.bundle.evaluation
    if not (segments in (None, "all") or (isinstance(segments, int) and segments > 0)):
        raise OptionError(f"segments is {segments!r}, expected a number from 1 on, or 'all'.")
    count = segments if isinstance(segments, int) else SEGMENTS
    if text is None:
        specs = input_specs(source.config["inputs"])
        series = random_series(specs, rows, rules.segment_len, count, rules.max_positions)
    elif not isinstance(text, str | Path):
        raise OptionError("text: a step model is verified on a file .npz.", hint="Write the arrays with numpy.savez.")
    else:
        series = read_series(Path(text), engine.inputs, rows, rules.max_positions)
        count = series.steps if segments == "all" else count
    return verify_steps(engine, source.build_model, series, segments=count, progress=progress)


def verify_graph(
    graph: str | Path,
    other: str | Path | None = None,
    *,
    options: GraphOptions | None = None,
    progress: Progress = no_progress,
) -> GraphReport:
    """Prove the carried state of an ONNX graph that others wrote, by many steps in several ways.

    The graph runs in a process with limits of memory and time.

    Args:
        graph: an ONNX file with a state as input and output.
        other: another such file, or `FILE.py:NAME`, to compare with. A module is called as it was exported: with the
            graph's inputs in their order, it returns outputs in the graph's order. A module of PyTorch gets tensors,
            other code gets arrays.
        options: the choices; None: states are guessed, inputs are random.
        progress: called with the number of steps of the long walk and the number of all.

    Returns:
        The report; `passed` says whether no check failed.

    Raises:
        GraphError: the graph cannot be verified: it is no graph, has no state, or needs more than the limits.
        TrustError: `other` is code, which `options` do not trust.
        XlexportError, XlruntimeError, OSError: a file or an option is wrong.
    """
    return prove(Path(graph), None if other is None else str(other), options or GraphOptions(), progress)


def assert_parity(
    bundle: str | Path | Engine, model: str | Path | nn.Module | SourceCheckpoint | None = None, **arguments: Any
) -> ParityReport | StepParityReport:
    """Return the report of `verify`, which has the same arguments; fail unless both are equal.

    Raises:
        ParityError: they differ; Python and pytest print the table of the report with it. Others as `verify`.
    """
    report = verify(bundle, model, **arguments)
    if (error := report.problem()) is not None:
        error.add_note(str(report))
        raise error
    return report


def quantize(
    bundle: str | Path,
    output: str | Path,
    dtype: str = "int8",
    *,
    text: str | Path | Sequence[str | Path] = (),
    as_ids: bool = False,
    force: bool = False,
    tell: Tell = silent,
    **options: Any,
) -> QuantizationReport:
    """Write a float32 bundle in a lower precision, if that costs few bits per token of a real text.

    Args:
        bundle, output: folders.
        dtype: `int8`, `weight-int8`, `weight-int4` or `float16`.
        text: files to measure on; none: topics of Python's documentation.
        as_ids: whether these files hold token ids separated by white space.
        force: whether to replace an existing bundle.
        tell: called with a line for each stage.
        options: further fields of `QuantizeOptions`, such as `max_delta_bits`, `keep_float` and `memory_dtype`.

    Raises:
        OutputExistsError: the bundle exists.
        QuantizationError: quantization costs too many bits, or a text or an option is wrong.
        XlruntimeError, OSError: the bundle or a file is wrong.
    """
    texts = [Path(each) for each in ([text] if isinstance(text, str | Path) else text)]
    choices = QuantizeOptions(dtype, **options)
    return run.quantize(Path(bundle), Path(output), choices, texts=texts, as_ids=as_ids, force=force, tell=tell)


def configure(
    bundle: str | Path,
    output: str | Path,
    *,
    force: bool = False,
    tell: Tell = silent,
    **settings: int | bool | None,
) -> Bundle:
    """Write a copy of a bundle with other evaluation settings; weights, graphs and fingerprint stay the same.

    The copy of a bundle of format 4 has the present format, with or without other settings.

    Args:
        bundle, output: folders.
        force: whether to replace an existing bundle.
        tell: called with each note about a bundle of format 4.
        settings: evaluation settings, such as `segment_len`, `mem_len` and `restart`; None or absent: the bundle's own.

    Returns:
        The manifest of the copy.

    Raises:
        OutputExistsError: the output exists.
        OptionError: there is nothing to change, or the model has no such setting.
        XlruntimeError, OSError: the bundle or a file is wrong.
    """
    bundle, output = Path(bundle), Path(output)
    check_output(output, force)
    before = read_bundle(bundle, upgrade=upgrade)
    if all(value is None for value in settings.values()) and before.meaning:
        raise OptionError("nothing to change.", hint="Give at least one of the model settings.")
    check_graphs(bundle, before)
    try:
        rules = before.evaluation.adopt(before.evaluation.choose(**settings))
    except OptionError as error:
        raise OptionError(f"{bundle}: {error.message}", hint=error.hint) from None
    meaning = meanings_of(before.graphs.values(), before.memory)
    after = dataclasses.replace(before, evaluation=rules, meaning=meaning)
    with publishing(output, force) as folder:
        for name in {*before.files, *DESCRIPTIONS}:
            if (bundle / name).is_file():
                shutil.copyfile(bundle / name, folder / name)
        if (readme := folder / "README.md").is_file():
            text = readme.read_text("utf-8", "surrogateescape")
            text = text.replace(defaults(before.settings), defaults(after.settings))
            readme.write_text(text, "utf-8", "surrogateescape")
        # Others have settings of their own, on which neither outputs nor scores of targets depend.
        is_onnx = all(graph.format == "onnx" for graph in after.graphs.values())
        if ANSWERS_FILE in after.files and is_onnx and after.purpose != RUN and after.encoder is None:
            write_manifest(folder, after)
            after = with_answers(folder, after, _new_answers(bundle, folder), tell)
        write_manifest(folder, after)
    for note in () if before.meaning else after.provenance["notes"]:
        tell(note)
    return after


def _new_answers(before: Path, after: Path) -> KnownAnswers:
    """Return the answers of a bundle's graphs under other settings, once they have reproduced the known ones.

    Raises:
        BundleGraphError: they compute something else on this machine.
    """
    with open_bundle(before, ops="none") as model:
        known, result = KnownAnswers.read(model), model.check()
    assert known is not None
    if result.passed is False and result.certain:
        raise BundleGraphError(f"{before}: {result}.", hint="Convert the checkpoint again.")
    return answers_of_graphs(open_bundle(after, ops="none", check_files=False), known)


def _refuse_unused(model: object, **arguments: Any) -> None:
    """Raise OptionError for arguments that say how a name is read, if the model has none."""
    unused = [name for name, value in arguments.items() if value is not None]
    if unused and not isinstance(model, str | Path):
        raise OptionError(f"{listed(unused)}: for a model that is read by its name.", hint="Leave it out.")


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


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
