"""Quantize a float32 bundle; publish the result only if it costs few more bits per token of a real text.

The code rewrites nodes itself instead of using `onnxruntime.quantization`, for three reasons. That module takes one
model file at a time and writes separate weights for each, but the graphs of a bundle share their weights. Its dynamic
int8 has one scale for a whole batch, so a token's scores would depend on its neighbours. Its blocks need operators
that only ONNX Runtime has, although the standard operators are as fast.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import shutil
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from xlexport.bundles import (
    PARITY_FILE,
    REPORT_FILE,
    WEIGHTS_FILE,
    check_graphs,
    check_output,
    open_any_bundle,
    publishing,
    stored_parity,
)
from xlexport.callbacks import Tell, silent
from xlexport.errors import QuantizationError
from xlexport.manifest import digests, fingerprint, write_manifest
from xlexport.meanings import meanings_of
from xlexport.quantization.gate import (
    GateText,
    LogProbs,
    check_texts,
    compare,
    documents,
    gate_text,
    log_probs,
    pairs,
    products_to_keep,
    strangeness,
)
from xlexport.quantization.graphs import (
    PRECISIONS,
    Precision,
    changed_bytes,
    product_names,
    unquantized_names,
    weights_bytes,
    write_graphs,
)
from xlexport.quantization.int8_rings import RINGS, ring_problem
from xlexport.quantization.options import QuantizeOptions
from xlexport.quantization.report import QuantizationReport, quantized_readme
from xlexport.verification.answers import answers_of_graphs, with_answers
from xlruntime import __version__
from xlruntime.bundle import ENCODE, FIRST_MEMORY_FILE, RUN, TokenizerEntry
from xlruntime.bundle_files import read_bundle
from xlruntime.documents import Ids
from xlruntime.known_answers import KnownAnswers, read_answers
from xlruntime.load_options import LoadOptions
from xlruntime.memory import Memory
from xlruntime.messages import named
from xlruntime.model import Model
from xlruntime.step_model import StepModel
from xlruntime.translator import Translator

__all__ = ["check_options", "quantize", "quantize_into"]

logger = logging.getLogger(__name__)
FLOAT32 = "float32"
SLICE = 1_024  # tokens on which one product's effect is measured
FLOAT16 = 65_504.0  # its largest number
HEADROOM = 4  # times that a state may grow beyond what the text of the verification showed
CHECKED_SEGMENTS = 20  # segments that graphs other than score walk
# The largest difference between the graphs of one bundle, in nats. Graphs that sum in different orders differ by 2e-6,
# or by more if a number is rounded to the next step. A graph with a wrong weight differs by whole nats.
GRAPHS_AGREE = 0.05


def check_options(options: QuantizeOptions) -> None:
    """Raise QuantizationError for options that are out of range or do not fit together.

    Raises:
        QuantizationError: the message lists all problems.
    """
    problems = []
    if options.dtype not in PRECISIONS:
        problems.append(f"dtype is {options.dtype}, expected {' or '.join(PRECISIONS)}")
    if not options.max_delta_bits > 0:
        problems.append(f"max_delta_bits is {options.max_delta_bits:g}, expected a number above 0")
    if options.memory_dtype not in (FLOAT32, "float16", "int8"):
        problems.append(f"memory_dtype is {options.memory_dtype}, expected float32, float16 or int8")
    elif options.memory_dtype != FLOAT32 and (options.memory_dtype == "float16") != (options.dtype == "float16"):
        problems.append(f"memory_dtype is {options.memory_dtype}, which does not go with dtype {options.dtype}")
    if problems:
        raise QuantizationError(f"{'; '.join(problems)}.")


def quantize(
    source: Path,
    output: Path,
    options: QuantizeOptions,
    *,
    texts: Sequence[Path] = (),
    as_ids: bool = False,
    force: bool = False,
    tell: Tell = silent,
) -> QuantizationReport:
    """Quantize the float32 bundle `source` and write it to `output`, but only if it is complete and within the limit.

    Args:
        texts: real text to measure on; if empty, Python's language reference.
        as_ids: the texts are files of token ids.
        tell: called with a line for each stage.

    Raises:
        OutputExistsError: `output` already exists.
        BundleNotFoundError, BundleError: the bundle is missing or broken.
        QuantizationError: options, text or bundle do not fit, or quantization would cost too many bits.
        OSError: a file cannot be read or written.
    """
    check_options(options)
    check_output(output, force)
    bundle = read_bundle(source)
    if bundle.precision != FLOAT32:
        raise QuantizationError(
            f"{source}: is already {bundle.precision}.", hint="Quantize the float32 bundle that it was made from."
        )
    if bundle.purpose == RUN:
        what = f"{source}: a step model, whose outputs have no cost in bits by which a precision could be judged."
        raise QuantizationError(what, hint="Run it in float32.")
    weights = source / WEIGHTS_FILE
    if weights.is_file() and weights.stat().st_nlink > 1:  # onnx-ir rejects it: an attacker may have made it
        raise QuantizationError(
            f"{weights}: has several hard links.", hint="Copy the bundle (cp -r), and quantize the copy."
        )
    check_texts(bundle.tokenizer, texts, as_ids, bundle.encoder is not None)
    with publishing(output, force) as folder:
        # Without kernels, which not every machine has.
        exact = open_any_bundle(source, threads=options.threads, check_files=False, ops="none")
        assert not isinstance(exact, StepModel)
        check_graphs(source, bundle)  # onnx-ir reads them next
        return quantize_into(exact, folder, options, gate_text(exact, texts, as_ids, options.tokens), tell)


def _check_ranges(folder: Path) -> None:
    """Raise QuantizationError if a state came near the end of float16 while the bundle was verified."""
    ranges = (stored_parity(folder) or {}).get("state_ranges")
    for name, value in ranges.items() if isinstance(ranges, dict) else ():
        if isinstance(value, int | float) and not abs(value) < FLOAT16 / HEADROOM:
            raise QuantizationError(
                f"{folder}: the state {named(name)} reached {value:.4g} in the text of its verification, and float16 "
                f"ends at {FLOAT16:,.0f}; in a longer document it may reach more.",
                hint="Leave out --memory-dtype float16: states then stay float32.",
            )


def quantize_into(
    exact: Model | Translator, folder: Path, options: QuantizeOptions, text: GateText, tell: Tell
) -> QuantizationReport:
    """Write the quantized bundle of an open float32 bundle into the empty `folder`.

    Raises:
        QuantizationError: as in `quantize`.
    """
    if options.memory_dtype == "float16":
        _check_ranges(exact.folder)
    names = product_names(exact.folder, exact.bundle)
    unquantized = unquantized_names(exact.folder, exact.bundle, PRECISIONS[options.dtype])
    names = [name for name in names if name not in unquantized]
    if not names:
        why = "".join(f"; {name}: {reason}" for name, reason in unquantized.items())
        raise QuantizationError(f"{exact.folder}: has no weight matrices that can be {options.dtype}{why}.")
    if options.dtype == "float16":
        tell("float16 is for CUDA; on a CPU it gives correct results, but slowly")
    parts = [*names, RINGS] if options.memory_dtype == "int8" else names
    by_user = _asked_for(parts, options.keep_float)
    reasons = {name: "asked for" for name in parts if name in by_user}
    if RINGS in parts and (problem := ring_problem(exact.folder, exact.bundle)):
        reasons[RINGS] = problem
    changed = functools.partial(changed_bytes, exact.folder, exact.bundle, PRECISIONS[options.dtype])
    few, whole = changed(keep={*reasons, *unquantized}), (exact.folder / WEIGHTS_FILE).stat().st_size
    if 2 * few < whole:
        share = f"{few:,} of {whole:,} bytes of weights ({few / whole:.0%})"
        why = "; ".join(["the rest stays float32", *dict.fromkeys([*unquantized.values(), *reasons.values()])])
        logger.warning("%s changes only %s: %s", options.dtype, share, why)
    attempt = _Attempts(exact, folder, options, text, parts, tell)
    if warning := strangeness(attempt.reference, exact.bundle.provenance):
        logger.warning(warning)
    always = frozenset(reasons)
    effects, difference = products_to_keep(
        parts, always, options.max_delta_bits, attempt.measure, attempt.effect_of, tell
    )
    reasons |= {name: f"alone it moves log-probabilities by {effect:.2g} nats" for name, effect in effects.items()}
    _copy_others(exact, folder)
    bundle = write_graphs(
        exact.folder, exact.bundle, folder, attempt.precision, frozenset(reasons), options.memory_dtype
    )
    quantized = type(exact)(folder, bundle, LoadOptions(threads=options.threads, ops="none"))
    _check_graphs(quantized, text, attempt.log_probs[frozenset(reasons)])
    if isinstance(known := read_answers(exact), KnownAnswers):
        bundle = with_answers(folder, bundle, answers_of_graphs(quantized, known), tell)
    memory_kept = reasons.pop(RINGS, None)
    report = QuantizationReport(
        dtype=options.dtype,
        memory_dtype=FLOAT32 if memory_kept else options.memory_dtype,
        memory_kept=memory_kept,
        products=len(names) + len(unquantized),
        kept=reasons | unquantized,
        max_delta_bits=options.max_delta_bits,
        **dataclasses.asdict(difference),
        text=text.files,
        weights_bytes=weights_bytes(folder, bundle),
        float32_weights_bytes=whole,
        changed_bytes=changed(keep=reasons | unquantized),
        float32_fingerprint=exact.bundle.fingerprint,
        version=__version__,
    )
    (folder / REPORT_FILE).write_text(json.dumps(report.to_dict(), indent=1) + "\n", "utf-8")
    (folder / "README.md").write_text(quantized_readme(bundle, report), "utf-8")
    provenance = {**bundle.provenance, "quantization": report.to_dict()}
    files, graphs = digests(folder), bundle.graphs.values()
    bundle = dataclasses.replace(
        bundle,
        provenance=provenance,
        files=files,
        fingerprint=fingerprint(files, graphs),
        meaning=meanings_of(graphs, bundle.memory),
    )
    write_manifest(folder, bundle)
    return report


def _asked_for(names: Sequence[str], patterns: Sequence[str]) -> frozenset[str]:
    unknown = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
    if unknown:
        raise QuantizationError(f"keep_float is {', '.join(unknown)}, but the weight matrices are {', '.join(names)}.")
    return frozenset(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


class _Attempts:
    """Score graphs with some products quantized, measured on the text."""

    def __init__(
        self,
        exact: Model | Translator,
        folder: Path,
        options: QuantizeOptions,
        text: GateText,
        names: Sequence[str],
        tell: Tell,
    ) -> None:
        self.exact, self.folder, self.options, self.text, self.tell = exact, folder, options, text, tell
        self.precision: Precision = PRECISIONS[options.dtype]
        self.names = frozenset(names)
        self.log_probs: dict[frozenset[str], LogProbs] = {}
        tell(f"scoring {len(text.ids) - 1:,} tokens in float32")
        self.reference = log_probs(exact, text.ids)
        exact.release("score")

    def measure(self, keep: frozenset[str]) -> Any:
        """Return the difference on the whole text if these products stay float32."""
        self.tell(f"scoring them in {self.precision.name}")
        self.log_probs[keep] = self._try(keep, len(self.text.ids))
        return compare(self.reference, self.log_probs[keep])

    def effect_of(self, name: str) -> float:
        """Return the root mean square change, in nats, of a slice's log-probabilities if one product is quantized."""
        quantized = self._try(self.names - {name}, SLICE)
        return float(np.sqrt(np.square(quantized - self.reference[: len(quantized)], dtype=np.float64).mean()))

    def _try(self, keep: frozenset[str], tokens: int) -> LogProbs:
        trial = self.folder / "trial"
        trial.mkdir()
        try:
            bundle = self.exact.bundle
            choices = tuple(one for one in bundle.steps["score"] if one.everywhere and one.max_segment is None)
            bundle = dataclasses.replace(bundle, tokenizer=TokenizerEntry("none"), steps={"score": choices})
            scoring = (choice.graph for choice in choices)
            purposes = tuple(name for name in (ENCODE, *scoring, "positions") if name in bundle.graphs)
            bundle = write_graphs(
                self.exact.folder, bundle, trial, self.precision, keep, self.options.memory_dtype, purposes
            )
            if (self.exact.folder / FIRST_MEMORY_FILE).exists():
                shutil.copyfile(self.exact.folder / FIRST_MEMORY_FILE, trial / FIRST_MEMORY_FILE)
            return log_probs(
                type(self.exact)(trial, bundle, LoadOptions(threads=self.options.threads, ops="none")),
                self.text.ids[:tokens],
            )
        finally:
            shutil.rmtree(trial)


def _copy_others(exact: Model | Translator, folder: Path) -> None:
    """Copy what quantization does not change: tokenizer, first values, and the parity report of the float32 graphs."""
    rewritten = {WEIGHTS_FILE, *(graph.file for graph in exact.bundle.graphs.values())}
    for name in {*exact.bundle.files, PARITY_FILE} - rewritten:
        if (exact.folder / name).is_file():
            shutil.copyfile(exact.folder / name, folder / name)


def _check_graphs(model: Model | Translator, text: GateText, reference: LogProbs) -> None:
    """Walk the first segments with every graph and compare the results with the measured graph.

    Raises:
        QuantizationError: a graph differs too much.
    """
    for purpose in {choice.graph for choices in model.steps.values() for choice in choices}:
        for start, memory, tokens, targets, exact_log_probs in _segments(model, purpose, text, reference):
            if (memory.room < len(tokens)).any():
                break
            outputs = model.step(purpose, memory, tokens[None], targets[None])
            if "log_prob" in outputs:
                result, expected = outputs["log_prob"][0, : len(exact_log_probs)], exact_log_probs
            else:
                logits = outputs["logits"][0].astype(np.float64)
                result, expected = logits[targets[-1]] - np.logaddexp.reduce(logits), exact_log_probs[-1]
            largest = np.abs(result - expected).max()
            if not largest <= GRAPHS_AGREE:
                raise QuantizationError(
                    f"{purpose}: differs from the graph that was measured by {largest:.3g} nats "
                    f"in the segment at token {start}, {GRAPHS_AGREE:g} allowed.",
                    hint="Report this.",
                )
        model.release(purpose)


def _segments(
    model: Model | Translator, purpose: str, text: GateText, reference: LogProbs
) -> Iterator[tuple[int, Memory, Ids, Ids, LogProbs]]:
    """Yield the place, memory, tokens, targets and expected log-probabilities of the first segments for a graph.

    Other graphs than `score` are compared with it in segments of their own length, because another length rounds
    otherwise, and in float16 a rounded hash may choose other keys. An encoder-decoder gets the first pairs, with their
    places among all targets. A model that reads a document in one step gets the first document as it was measured.
    """
    evaluation = model.bundle.settings
    if isinstance(model, Translator):
        start, encoder = 0, model.encoder
        for source, target in pairs(model, text.ids)[:CHECKED_SEGMENTS]:
            tokens, targets = np.insert(target, 0, encoder.start), np.append(target, encoder.end)
            yield start, model.new_targets([source]), tokens, targets, reference[start : start + len(targets)]
            start += len(targets)
        return
    memory, beside = model.new_memory(evaluation), model.new_memory(evaluation)
    if not evaluation.full_document:
        S = min(model.longest_step(purpose, evaluation.segment_len), len(text.ids) - 1, 1_024)
        for start in range(0, min(CHECKED_SEGMENTS * S, len(text.ids) - S), S):
            if (memory.room < S).any():
                return
            tokens, targets = text.ids[start : start + S], text.ids[start + 1 : start + S + 1]
            expected = reference[start : start + S]
            if purpose != "score" and not model.bundle.fixed:
                expected = model.step("score", beside, tokens[None], targets[None])["log_prob"][0]
            yield start, memory, tokens, targets, expected
        return
    document = documents(model, text.ids)[0]
    tokens = document if evaluation.bidirectional else document[:-1]
    targets = np.append(document[1:], document[0])[: len(tokens)]
    expected = reference[: len(document) - 1]
    if evaluation.bidirectional and purpose == "generate":  # no score has what it predicts after the last token
        fresh = model.new_memory(evaluation)
        expected = model.step("score", fresh, tokens[None], targets[None])["log_prob"][0]
    yield 0, memory, tokens, targets, expected
