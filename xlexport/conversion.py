"""Convert a checkpoint to a bundle: read, export, verify, publish. A bundle is published only if it is verified."""

from __future__ import annotations

import functools
import json
import platform
import shutil
import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xlexport.atomic_output import writing
from xlexport.bundle_readme import CARD, bundle_readme
from xlexport.bundles import (
    PARITY_FILE,
    check_output,
    open_any_bundle,
    publishing,
)
from xlexport.callbacks import Progress, Tell, no_progress, silent
from xlexport.checkpoints.source import SourceCheckpoint
from xlexport.conversion_options import ConversionOptions
from xlexport.errors import ExportError, ParityError
from xlexport.export.onnx import export_onnx
from xlexport.extras import require
from xlexport.families import Step, architecture
from xlexport.families.options import check_choices, spellings
from xlexport.families.recurrent.horizon import Horizon
from xlexport.families.recurrent.source import MODULE_FORMAT
from xlexport.families.recurrent.trial import TOLERANCE
from xlexport.families.step import StepGraphs
from xlexport.families.step_model import StepModelArchitecture
from xlexport.families.step_model.checks import check_step_graph
from xlexport.families.step_model.inputs import input_specs
from xlexport.manifest import new_manifest, write_manifest
from xlexport.peak_memory import phase
from xlexport.quantization.gate import check_texts, gate_text, require_default_text
from xlexport.quantization.run import check_options, quantize_into
from xlexport.tokenizer_choice import TokenizerChoice, choose_tokenizer
from xlexport.verification import segments_to_read, verify
from xlexport.verification.answers import answers_of_model, with_answers
from xlexport.verification.parity import ParityReport
from xlexport.verification.step_answers import answers_of_steps
from xlexport.verification.step_models import SEGMENTS, random_series, read_series, verify_steps
from xlexport.verification.text import VerificationText, check_verify_text, verify_text
from xlruntime import __version__
from xlruntime.bundle import FIRST_MEMORY_FILE, Bundle, GraphFormat, MemoryEntry
from xlruntime.bundle_files import read_bundle
from xlruntime.documents import Tokenizer
from xlruntime.engine import Engine
from xlruntime.errors import BundleGraphError, OptionError, TextError, TokenError
from xlruntime.evaluation import EvaluationRules
from xlruntime.step_model import StepModel
from xlruntime.tokenizers import make_tokenizer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from xlruntime.engine import Engine

__all__ = ["Conversion", "ConversionPlan", "convert"]

FURTHER_TOKENS = 32  # that are compared in segments of each of an architecture's further lengths


@dataclass(frozen=True)
class Conversion:
    """A bundle that a conversion has written.

    Attributes:
        path: its folder.
        bundle: its manifest.
        report: of the comparison of its graphs, in float32, with the trained model: a `ParityReport`, or of a step
            model a `StepParityReport`.
    """

    path: Path
    bundle: Bundle
    report: Any


def convert(
    source: SourceCheckpoint,
    output: Path,
    options: ConversionOptions | None = None,
    *,
    force: bool = False,
    tell: Tell = silent,
    progress: Progress = no_progress,
) -> Conversion:
    """Write a bundle of `source` to `output`, but only if it is complete and verified.

    For precisions other than float32, the float32 bundle is verified first and then quantized.

    Args:
        tell: called with a line for each stage.
        progress: called after each verified segment with the number verified and the largest possible number.

    Raises:
        OutputExistsError: `output` already exists.
        ExportError, ParityError, OptionError, ConfigError: the model cannot be exported, the graphs differ from it, or
            settings are wrong.
        QuantizationError: another precision would cost too many bits, or the text to measure them is missing.
        OSError: a file cannot be read or written.
    """
    check_output(output, force)
    plan = ConversionPlan.of(source, options or ConversionOptions())
    for line in plan.lines:
        tell(line)
    with publishing(output, force) as folder:
        draft = (_StepDraft if plan.source.architecture == StepModelArchitecture.name else _Draft)(
            plan, folder, tell, progress
        )
        for step in plan.steps:
            getattr(draft, step)()
    return Conversion(output, draft.bundle, draft.report)


@dataclass(frozen=True)
class ConversionPlan:
    """What a conversion will do. All that can be refused without weights, is refused when it is made.

    Attributes:
        source: the checkpoint, with the configuration and notes under the choices of the conversion.
        texts: those that the cost of another precision is measured on, and the graphs are verified on.
    """

    source: SourceCheckpoint
    options: ConversionOptions
    evaluation: EvaluationRules
    tokenizer: TokenizerChoice
    texts: list[Path]

    @classmethod
    def of(cls, source: SourceCheckpoint, options: ConversionOptions) -> ConversionPlan:
        """Plan the conversion of a checkpoint; errors are as in `convert`."""
        options = _with_fixed_settings(options)
        _check_format(source, options)
        if options.quantization is not None:
            check_options(options.quantization)
        source = _chosen(source, options)
        evaluation = _evaluation(source, options)
        tokenizer = choose_tokenizer(source, options.tokenizer, options.vocab_style, bos=options.bos, eos=options.eos)
        texts = [] if options.text is None else [options.text]
        if options.quantization is not None:
            pairs = architecture(source.architecture).encoder(source.config) is not None
            check_texts(tokenizer.spec, texts, options.as_ids, pairs)
        if source.architecture != StepModelArchitecture.name:
            check_verify_text(tokenizer.spec, options.text, options.as_ids)
        return cls(replace(source, notes=_notes(source, options)), options, evaluation, tokenizer, texts)

    @property
    def lines(self) -> tuple[str, ...]:
        """What is read, and what its reader and the choice of a tokenizer noted."""
        read_from = ", ".join(map(str, self.source.files)) or self.source.config.get("model")
        first = f"read {read_from}: {self.source.format}, {self.source.architecture}"
        return first, *self.source.notes, *self.tokenizer.notes

    @property
    def steps(self) -> tuple[str, ...]:
        """The work, in order: methods of `_Draft`."""
        steps = ("write_tokenizer", "choose_text", "check_model", "export", "verify")
        return steps if self.options.quantization is None else (*steps, "quantize")


class _Draft:
    """A bundle in the making, in a folder that is published after the last step of its plan."""

    reader: Tokenizer
    horizon: Horizon | None
    text: VerificationText
    verified_on: str
    bundle: Bundle
    report: Any

    def __init__(self, plan: ConversionPlan, output: Path, tell: Tell, progress: Progress) -> None:
        self.plan, self.output, self.tell, self.progress = plan, output, tell, progress
        self.began = time.monotonic()
        self.adapter = architecture(plan.source.architecture)
        self.folder = output if plan.options.quantization is None else output / "float32"
        self.folder.mkdir(exist_ok=True)

    def write_tokenizer(self) -> None:
        """Write the tokenizer, and read it as runtimes do."""
        self.plan.tokenizer.write(self.folder)
        self.reader = make_tokenizer(self.plan.tokenizer.spec, self.folder)

    def check_model(self) -> None:
        """Refuse a module of a user that breaks a rule; our own tests check the models of files."""
        self.horizon, source = None, self.plan.source
        if source.format == MODULE_FORMAT:
            self.horizon = self.adapter.check(source.build_model(), self.plan.tokenizer.special)

    def choose_text(self) -> None:
        """Choose the token ids to verify on."""
        options = self.plan.options
        self.text = self._text(options.text, options.as_ids)
        self.verified_on = self.text.name
        if options.quantization is not None and not self.plan.texts:
            require_default_text(self.plan.tokenizer.spec, self.reader)

    def _text(self, path: Path | None, as_ids: bool = False) -> VerificationText:
        source = self.plan.source
        return verify_text(
            *(self.plan.tokenizer.spec, source.config["n_token"], self.reader, path, as_ids),
            lambda: self.adapter.possible_ids(source.build_model()),
        )

    def export(self) -> None:
        """Write the graphs, and the manifest that describes them."""
        source, options, folder = self.plan.source, self.plan.options, self.folder
        self.tell("exporting the step graphs")
        with phase("exporting"):
            step_graphs, memory = _export(source, self.plan.evaluation, options, folder)
        self.bundle = new_manifest(
            *(folder, source, step_graphs.graphs),
            tokenizer=self.plan.tokenizer.spec,
            evaluation=self.plan.evaluation,
            memory=memory,
            steps=step_graphs.steps,
            provenance=_provenance(source, self.verified_on, options),
            encoder=self.adapter.encoder(source.config),
        )
        self._write_manifest()

    def verify(self) -> None:
        """Compare graphs without kernels, which every machine can run, with the trained model."""
        source, options = self.plan.source, self.plan.options
        exported = open_any_bundle(self.folder, trust=True, threads=options.threads, ops="none")
        self.report = _verify_lengths(source, exported, self.text.ids, options, self.tell, self.progress)
        if self.horizon is not None:
            within = max(self.report.tolerance["log_prob"], 4 * self.report.max_abs_log_prob_diff)
            model, seconds = source.build_model(), time.monotonic() - self.began
            self.horizon.check_graph(model.module, model.config.n_token, exported, within, seconds)
            self.report = replace(self.report, cuts_compared=self.horizon.compared)
            self._write_manifest()
        self._write_answers(exported)
        self._write_report()

    def _write_report(self) -> None:
        (self.folder / PARITY_FILE).write_text(json.dumps(self.report.to_dict(), indent=1) + "\n", "utf-8")
        (self.folder / "README.md").write_text(bundle_readme(self.bundle, self.report), "utf-8")

    def _write_answers(self, exported: Engine) -> None:
        build, rules = self.plan.source.build_model, self.bundle.evaluation
        ids = self.text.ids
        if self.plan.options.text is not None:  # a bundle has no tokens of its user
            try:
                ids = self._text(None).ids
            except (TextError, TokenError):  # the vocabulary lacks the default text
                ids = ids[:0]
        answers = answers_of_model(exported, build, ids, self.report, rules)
        self.bundle = with_answers(self.folder, self.bundle, answers, self.tell)
        self._write_manifest()

    def quantize(self) -> None:
        """Put the quantized bundle in the place of the one in float32."""
        options = self.plan.options
        assert options.quantization is not None
        exact = open_any_bundle(self.folder, threads=options.threads, check_files=False, ops="none")
        assert not isinstance(exact, StepModel)
        text = gate_text(exact, self.plan.texts, options.as_ids)
        quantize_into(exact, self.output, options.quantization, text, self.tell)
        shutil.rmtree(self.folder)
        self.bundle = read_bundle(self.output, check_files=False)

    def _write_manifest(self) -> None:
        """Write the manifest, with the limit of documents that a check has found."""
        self.bundle = _limited(self.bundle, self.horizon, self.tell)
        write_manifest(self.folder, self.bundle)


class _StepDraft(_Draft):
    """The bundle of a step model in the making, which is verified on numbers in place of a text."""

    def choose_text(self) -> None:
        """Choose the inputs to verify on."""
        options, config = self.plan.options, self.plan.source.config
        segment_len, limit = self.plan.evaluation.segment_len, self.plan.evaluation.max_positions
        rows, specs = (2 if options.fixed is None else options.fixed.batch), input_specs(config["inputs"])
        if options.text is None:
            self.series = random_series(specs, rows, segment_len, options.segments or SEGMENTS, limit)
        else:
            self.series = read_series(options.text, {name: spec.feed for name, spec in specs.items()}, rows, limit)
        self.verified_on = self.series.name

    def verify(self) -> None:
        """Compare the graph without kernels, which every machine can run, with the module."""
        options, build = self.plan.options, self.plan.source.build_model
        exported, segments = open_any_bundle(self.folder, threads=options.threads, ops="none"), options.segments
        self.tell(f"verifying up to {segments or SEGMENTS:,} segments against the module")
        report = verify_steps(exported, build, self.series, segments=segments or SEGMENTS, progress=self.progress)
        report.require_passed()
        if self.horizon is not None:
            check_step_graph(self.horizon, build(), exported, TOLERANCE, time.monotonic() - self.began)
            report = replace(report, cuts_compared=self.horizon.compared)
            self._write_manifest()
        answers = answers_of_steps(exported, build, report)
        self.bundle = with_answers(self.folder, self.bundle, answers, self.tell)
        self._write_manifest()
        self.report = report
        self._write_report()


def _verify_lengths(
    source: SourceCheckpoint,
    exported: Engine,
    ids: npt.NDArray[np.int64],
    options: ConversionOptions,
    tell: Tell,
    progress: Progress,
) -> ParityReport:
    """Verify the graphs in segments of the bundle's own length, and its beginning in segments of other lengths."""
    own = exported.bundle.settings
    segments = options.segments or segments_to_read(exported, ids, own)
    walk = "documents" if own.full_document else f"segments of {own.segment_len} tokens"
    tell(f"verifying up to {segments} {walk} against the eager model")
    walked = functools.partial(_verify, source, exported, ids)
    report = walked(segments=segments, progress=progress, stops=True)
    # Graphs of fixed shapes are for one length; they read others one token after the other.
    for length in () if options.fixed else architecture(source.architecture).further_lengths:
        other, segments = exported.evaluation(segment_len=length), 2 + FURTHER_TOKENS // length
        further = walked(segments=segments, evaluation=other, own_errors=report.rounding).state_ranges or {}
        ranges = {name: max(value, further[name]) for name, value in (report.state_ranges or {}).items()}
        report = replace(report, state_ranges=ranges or None)
    return report


def _verify(source: SourceCheckpoint, exported: Engine, ids: npt.NDArray[np.int64], **options: Any) -> ParityReport:
    """Verify the graphs on token ids (N,), and explain a difference from a user's module by its graph.

    Raises:
        ParityError: the graphs differ, or those of a user's module cannot run.
    """
    try:
        report = verify(exported, source.build_model, ids, **options)
        report.require_passed()
    except (ParityError, BundleGraphError) as error:
        if source.format != MODULE_FORMAT:
            raise
        from xlexport.families.recurrent.graph_faults import graph_fault

        evaluation = options.get("evaluation") or exported.evaluation()
        raise graph_fault(exported, source.build_model(), ids, evaluation, error) from error
    return report


def _limited(bundle: Bundle, checked: Horizon | None, tell: Tell) -> Bundle:
    """Return a bundle whose documents are no longer than its model reads, with a note if the model does not say so."""
    if checked is None or checked.note is None or checked.note in bundle.provenance["notes"]:
        return bundle
    tell(checked.note)
    evaluation = replace(bundle.evaluation, max_positions=checked.limit)
    notes = [*bundle.provenance["notes"], checked.note]
    return replace(bundle, evaluation=evaluation, provenance={**bundle.provenance, "notes": notes})


def _check_format(source: SourceCheckpoint, options: ConversionOptions) -> None:
    """Raise an error for options that need ONNX, and for formats and precisions that cannot hold the architecture.

    Raises:
        OptionError: options need ONNX.
        ExportError: the format or precision cannot hold the architecture.
    """
    adapter = architecture(source.architecture)
    if adapter.encoder(source.config) is not None and options.to not in ("onnx", "exported-program"):
        raise ExportError(
            f"--to {options.to} is not possible for {adapter.kind(source.config, {})}.",
            hint="Leave it out, or choose exported-program.",
        )
    if source.architecture == StepModelArchitecture.name:
        settings = {"--dtype": options.dtype != "float32", "--to": options.to != "onnx", "--ids": options.as_ids}
        settings["--tokenizer"] = options.tokenizer not in (None, "none")
        settings |= {f"--set {name}": getattr(options, name) is not None for name in ("vocab_style", "bos", "eos")}
        if others := [name for name, chosen in settings.items() if chosen]:
            what = f"{' and '.join(others)}: not for a step model, whose bundle holds float32 ONNX graphs over numbers."
            raise ExportError(what, hint="Leave it out.")
    if options.to != "onnx" and source.config.get("form") == "step":
        raise ExportError(
            f"--to {options.to} needs a module with a method segment; a scan over step needs ONNX.",
            hint="Write segment, or leave --to out.",
        )
    if options.to == "executorch":
        if options.fixed is None:
            raise OptionError(
                "--to executorch needs fixed shapes.", hint="Add --fixed, for example --fixed batch=1,segment=32."
            )
        require(None, "executorch")
    problems = {
        "--fixed": options.fixed if options.to != "executorch" else None,
        "--set inline": options.inline,
        "--dtype and its options": options.quantization,
    }
    if options.to != "onnx" and (named := [name for name, chosen in problems.items() if chosen]):
        raise OptionError(
            f"--to {options.to} does not support {' and '.join(named)}.", hint="Leave out one or the other."
        )


def _with_fixed_settings(options: ConversionOptions) -> ConversionOptions:
    """Return options whose settings are also those that `fixed` names.

    Raises:
        OptionError: both give a setting, and differ.
    """
    if options.fixed is None:
        return options
    settings = {"segment_len": options.fixed.segment, **options.fixed.settings}
    for name, value in settings.items():
        if options.settings.get(name) not in (None, value):
            raise OptionError(
                f"{spellings([name])} is {options.settings[name]}, but --fixed says {value}.", hint="Give one of them."
            )
    return replace(options, settings={**options.settings, **settings})


def _export(
    source: SourceCheckpoint, evaluation: EvaluationRules, options: ConversionOptions, folder: Path
) -> tuple[StepGraphs, tuple[MemoryEntry, ...]]:
    """Write the graphs of the model's step, or of one step for each length that they fix; return their memories too."""
    adapter, model = architecture(source.architecture), source.build_model()
    if options.fixed is None:
        steps = [adapter.build_step(model)]
    else:
        steps = [adapter.build_fixed_step(model, sizes) for sizes in options.fixed.sizes(evaluation)]
    for step in steps:
        step.inline = options.inline
    graphs = _write_graphs(steps, folder, options.to)
    _write_first_rows(steps[0], folder)
    for step in steps:
        step.discard()  # torch's exporter keeps references to it, so deleting it would free nothing
    return graphs, steps[0].memory


def _write_graphs(steps: list[Step], folder: Path, to: GraphFormat) -> StepGraphs:
    step = steps[0]
    if to == "torchscript":
        from xlexport.export.torchscript import export_torchscript

        return export_torchscript(step, folder)
    if to == "exported-program":
        from xlexport.export.exported_program import export_programs

        return export_programs(step, folder)
    if to == "executorch":
        from xlexport.export.executorch import export_executorch

        return export_executorch(step, folder, steps[1:])
    return export_onnx(step, folder, steps[1:])


def _chosen(source: SourceCheckpoint, options: ConversionOptions) -> SourceCheckpoint:
    """Return the checkpoint with the configuration and model under the conversion's choices."""
    check_choices(source.architecture, source.config, options.settings)
    adapter = architecture(source.architecture)
    config, notes = adapter.choose(source.config, options.settings)
    if config == source.config:
        return source
    return replace(
        source,
        config=config,
        notes=source.notes + notes,
        build_model=lambda: adapter.configured(source.build_model(), config),
    )


def _evaluation(source: SourceCheckpoint, options: ConversionOptions) -> EvaluationRules:
    missing = [name for name in source.needs if options.settings.get(name) is None]
    if missing:
        raise ExportError(
            f"{next(iter(source.files), 'the checkpoint')}: does not say with which settings it is evaluated.",
            hint=f"Give {spellings(missing)}.",
        )
    adapter = architecture(source.architecture)
    rules = adapter.evaluation(source.config)
    converted = {option.name for option in adapter.conversion_options}  # the configuration holds these already
    chosen = {name: options.settings.get(name) for name in rules.settings if name not in converted}
    rules = rules.adopt(rules.choose(options.settings.get("segment_len"), options.restart, **chosen))
    return rules if options.fixed is None else options.fixed.rules(rules)


def _notes(source: SourceCheckpoint, options: ConversionOptions) -> tuple[str, ...]:
    """Return the source's notes, except notes that only ask for settings that the user gave."""
    settings = options.settings
    asked = {note: getattr(note, "options", ()) for note in source.notes}
    return tuple(
        note for note, names in asked.items() if not names or any(settings.get(name) is None for name in names)
    )


def _write_first_rows(step: Step, folder: Path) -> None:
    """Write the rows of a fresh memory, if they are not zero."""
    rows = step.first_rows()
    arrays = {entry.first_value: rows[entry.input].numpy() for entry in step.memory if entry.first_value is not None}
    if arrays:
        from safetensors.numpy import save_file

        with writing(folder / FIRST_MEMORY_FILE):
            save_file(arrays, folder / FIRST_MEMORY_FILE)


def _provenance(source: SourceCheckpoint, verified_on: str, options: ConversionOptions) -> dict[str, Any]:
    """Return what a bundle says of its origin."""
    stated = {name: getattr(options, name) or source.about.get(name) for name in CARD}
    packages = ["torch", "onnx", "onnxscript", "onnx-ir"]
    if options.to == "executorch":
        packages.append("executorch")
    versions = {"python": platform.python_version(), "xlexport": __version__}
    return {
        **{name: " ".join((text or "").split()) or None for name, text in stated.items()},
        "held_out_bits_per_token": source.about.get("held_out_bits_per_token"),
        "format": source.format,
        "options": dict(source.options),
        "sources": {path.name: digest.sha256 for path, digest in source.files.items()},
        "notes": list(source.notes),
        "parameters": source.parameters,
        "verified_on": verified_on,
        "versions": versions | {name: version(name) for name in packages},
    }
