"""The known answers of a bundle: a few tokens with the scores of the trained model, and how far rounding may move them.

The trained model reads in float64 where it can. Its scores are rounded to fixed digits, so that all hosts write the
same ones. Bounds follow from the errors of the verification.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from xlexport.callbacks import Tell
from xlexport.errors import ExportError, ParityError
from xlexport.families import architecture
from xlexport.peak_memory import phase
from xlexport.verification.eager import Eager
from xlexport.verification.parity import ParityReport
from xlexport.verification.spans import Ids, Span, pairs, segments_of
from xlruntime.bundle import RUN, Bundle
from xlruntime.bundle_files import digest_file
from xlruntime.errors import OptionError
from xlruntime.known_answers import ANSWERS_FILE, LARGEST_FILE, KnownAnswers, KnownSteps, KnownTargets, walk
from xlruntime.translator import Translator

if TYPE_CHECKING:
    from xlruntime.engine import Engine
    from xlruntime.evaluation import EvaluationRules, EvaluationSettings
    from xlruntime.memory import Memory

__all__ = ["ROOM", "answers_of_graphs", "answers_of_model", "rounded_up", "walk_settings", "with_answers"]

TOKENS = 200  # that are scored
FEWEST = 32  # if hashes leave no longer piece of text
SEGMENT = 64  # tokens of a step: the last one of 200 tokens has 8, so graphs for a few tokens run too
MEMORY = 64  # rows, which 200 tokens overwrite
ROOM = 10  # times the verified error; rounded up to one digit, a bound is at most 20 times the error
DIGITS = 7  # of an answer in nats, behind the point
STARTS = 24  # pieces of text in which a hash without a close decision is sought
# Nats of a quantized bundle: about three times the largest differences between kernels and bodies on AVX-512, AVX2,
# SSE4.2 and ARM, of the small models of tests/conformance/bundles.py; for float16, of the sample on ARM.
QUANTIZED = {"float16": 0.3, "int8": 0.1, "weight-int8": 0.25, "weight-int4": 0.25}
QUANTIZED_MEMORY = 0.25  # with memories of integers
# Large models may move further. So a bound is also `SPREAD` times the largest change that noise in the carried memories
# makes in `WALKS` readings. With this noise, a trained Transformer-XL moves about as far as between kernels and bodies:
# between them, and between AVX2, SSE4.2 and ARM, the sample moved at most 0.52 of the bound.
NOISE, WALKS, SPREAD = 1e-5, 4, 3
LEAD = 100  # times the error of a hash's projections, by which every bucket must lead


def answers_of_model(
    engine: Engine, build: Callable[[], Any], ids: Ids, report: ParityReport, rules: EvaluationRules
) -> KnownAnswers | None:
    """Return the trained model's answers for the first tokens of a text that suit; None if there are none.

    Args:
        build: returns the trained model in eval mode.
        ids: token ids (n,) that the bundle was verified on.
        report: of that verification.
        rules: of the finished bundle, whose documents may be shorter than those of the open one.
    """
    if isinstance(engine, Translator):
        return _answers_of_target(engine, build, ids, report)
    evaluation = engine.evaluation(**walk_settings(engine))
    longest = min(TOKENS, rules.longest_part or TOKENS, len(ids) - 1)
    if longest < 1:
        return None
    reader = _Reader(engine, build, evaluation)
    best: _Piece | None = None
    for start in range(0, min(len(ids) - longest, STARTS * longest), longest):
        piece = reader.read(ids[start : start + longest + 1])
        if FEWEST <= piece.clear < longest:
            piece = max(piece, reader.read(piece.tokens[: piece.clear + 1]), key=_Piece.rank)
        if np.isfinite(piece.expected).all():
            best = piece if best is None else max(best, piece, key=_Piece.rank)
            if best.clear == longest:
                break
    return None if best is None else _known(walk_settings(engine), best, report)


def _answers_of_target(
    engine: Translator, build: Callable[[], Any], ids: Ids, report: ParityReport
) -> KnownTargets | None:
    """Return the trained model's answers for the first target of a text; see `answers_of_model`."""
    source, target = next(pairs(engine, ids), (ids[:0], ids[:0]))
    target = target[: min(TOKENS, engine.longest_target - 1)]
    settings: dict[str, int | bool] = {"segment_len": len(target) // 4 + 1}  # several steps, which carry memory
    tokens = np.array([engine.encoder.start, *target, engine.encoder.end], np.int64)
    piece = _Reader(engine, build, engine.evaluation(**settings)).read(tokens, source)
    if not len(target) or not np.isfinite(piece.expected).all():
        return None
    return KnownTargets(**vars(_known(settings, piece, report)), source=tuple(source.tolist()))


def _known(settings: dict[str, int | bool], best: _Piece, report: ParityReport) -> KnownAnswers:
    """Return the scores of a piece as answers, with bounds that follow from the verification."""
    own = float(np.abs(best.found - best.expected).max())
    error = report.max_abs_log_prob_diff if report.rounding is None else report.rounding.graph_largest
    units = np.spacing(np.maximum(1, np.abs(best.expected)).astype(np.float32))
    return KnownAnswers(
        settings=settings,
        tokens=tuple(best.tokens.tolist()),
        log_probs=tuple(round(float(number), DIGITS) for number in best.expected),
        bounds=tuple(rounded_up(ROOM * float(unit)) for unit in np.maximum(units, max(error, own))),
        memory=best.memory,
        margin=None if math.isinf(best.lead) else float(f"{best.lead:.2g}"),
        certain=best.is_clear and own <= report.tolerance["log_prob"],
    )


def answers_of_graphs(engine: Engine, before: KnownAnswers) -> KnownAnswers:
    """Return the answers of a bundle's own graphs, under its present settings.

    Args:
        before: the answers of the bundle that it was made of, for the same tokens.
    """
    settings, precision = walk_settings(engine), engine.bundle.precision
    if precision == "float32" and settings == before.settings:
        return before
    has_integers = any(entry.dtype == "int8" for entry in engine.bundle.memory)
    bound = QUANTIZED_MEMORY if has_integers else QUANTIZED.get(precision, max(before.bounds))
    inputs, longest = before.arrays(engine.bundle)[0], engine.bundle.evaluation.longest_part
    inputs = {name: ids[:longest] for name, ids in inputs.items()}
    source = getattr(before, "source", None)
    found, memory = walk(engine, inputs, settings, source=source)
    scores = found["log_prob"].tolist()
    if precision != "float32" or has_integers:
        add_noise = functools.partial(_add_noise, np.random.default_rng(0))
        walks = (walk(engine, inputs, settings, source=source, after_step=add_noise)[0] for _ in range(WALKS))
        changes = [float(np.abs(other["log_prob"] - found["log_prob"]).max()) for other in walks]
        if bound < (moved := SPREAD * max(changes)) < math.inf:
            bound = rounded_up(moved)
    return dataclasses.replace(
        before,
        settings=settings,
        tokens=before.tokens[: len(scores) + 1],
        log_probs=tuple(round(number, DIGITS) for number in scores),
        bounds=(bound,) * len(scores),
        memory=memory,
        margin=None,
        # Graphs do not say how clearly a bucket leads. In other low precision than `int8`, ONNX Runtime computes in
        # another way on each kind of processor; for memories of integers, kernels and bodies do.
        certain=before.certain and before.margin is None and precision in ("float32", "int8") and not has_integers,
    )


def _add_noise(random: np.random.Generator, memory: Memory) -> None:
    """Change all floats of a memory on the CPU by about `NOISE` of each, or by the last digit of their type."""
    for entry in memory.entries:
        array = memory.array(entry)
        if array.dtype.kind == "f":
            scale = max(NOISE, float(np.finfo(array.dtype).eps) / 2)
            array *= (1 + scale * random.standard_normal(array.shape)).astype(array.dtype)


def with_answers(folder: Path, bundle: Bundle, answers: KnownAnswers | KnownSteps | None, tell: Tell) -> Bundle:
    """Write the answers into a bundle's folder, and return its manifest with them; without answers, with none."""
    files = {name: digest for name, digest in bundle.files.items() if name != ANSWERS_FILE}
    (folder / ANSWERS_FILE).unlink(missing_ok=True)
    if answers is not None:
        raw = json.dumps(dataclasses.asdict(answers)).encode() + b"\n"
        if len(raw) <= LARGEST_FILE:
            (folder / ANSWERS_FILE).write_bytes(raw)
            files = dict(sorted({**files, ANSWERS_FILE: digest_file(folder / ANSWERS_FILE)}.items()))
    if ANSWERS_FILE not in files:
        numbers = "the numbers of a step are too many, too large or not finite"
        tell(f"no known answers: {numbers if bundle.purpose == RUN else 'the text or the bundle does not suit'}")
    elif answers is not None and not answers.certain:
        tell("rounding may move the known answers: on another machine, a difference only warns")
    return dataclasses.replace(bundle, files=files)


def walk_settings(engine: Engine) -> dict[str, int | bool]:
    """Return the settings for known answers: short steps and a short memory, which a few tokens overwrite."""
    own = engine.bundle.settings
    settings: dict[str, int | bool] = {"segment_len": own.segment_len, **own.values}
    if engine.bundle.fixed or own.full_document:
        return settings
    short = settings | {"segment_len": min(own.segment_len, SEGMENT)}
    if "mem_len" in short:
        short["mem_len"] = min(int(short["mem_len"]), MEMORY)
    try:
        engine.evaluation(**short)
    except OptionError:  # the model needs a longer memory
        return settings
    return short


@dataclasses.dataclass(frozen=True)
class _Piece:
    """A piece of text with the scores of both sides.

    Attributes:
        found, expected: (n,) of the graphs, and of the trained model.
        clear: tokens before the first one with a close decision about its bucket.
        lead: the smallest lead of a bucket; infinite without LSH attention.
    """

    tokens: Ids
    found: npt.NDArray[np.float64]
    expected: npt.NDArray[np.float64]
    memory: dict[str, tuple[int, ...]]
    clear: int
    lead: float

    @property
    def is_clear(self) -> bool:
        return self.clear == len(self.found)

    def rank(self) -> tuple[int, float]:
        """Return a key that is larger for a better piece."""
        return self.clear if self.is_clear else 0, self.lead


class _Reader:
    """Graphs and trained model that read pieces of a text, each as a document.

    Only a model that copies the graphs' buckets is in memory beside them.
    """

    def __init__(self, engine: Engine, build: Callable[[], Any], evaluation: EvaluationSettings) -> None:
        self.engine, self.evaluation = engine, evaluation
        self.adapter = architecture(engine.bundle.architecture)
        self.open_eager = lambda: Eager(self.adapter, engine, build(), evaluation)
        self.eager = self.open_eager() if self.adapter.gives_buckets else None
        self.exact = None if self.eager is None else self.eager.in_float64()
        self.error: float | None = None  # of the projections of hashes

    def read(self, tokens: Ids, source: Ids | None = None) -> _Piece:
        """Return the scores of a document's tokens (n + 1,), or of the target of a source."""
        segments = segments_of(tokens, self.evaluation.segment_len, None)
        spans = [dataclasses.replace(span, source=source) for span in segments]
        nothing: list[Any] = [()] * len(spans)
        expected = self._alone(spans, nothing) if self.eager is None else None
        with phase("graphs"):
            found, memory, buckets = self._graphs(spans)
        clear, lead = len(found), math.inf
        if expected is None:
            assert self.eager is not None
            expected, flips, leads = _answers(self.exact or self.eager, spans, buckets)
            if leads.size:
                self.error = self._projection_error(spans, buckets, leads) if self.error is None else self.error
                close = flips | ~(leads > LEAD * self.error)  # NaN is close
                clear, lead = int(np.argmax(np.append(close, True))), float(leads.min())
        shapes = {entry.input: (1, *memory.array(entry).shape[1:]) for entry in memory.entries}
        return _Piece(tokens, np.array(found), expected, shapes, clear, lead)

    def _graphs(self, spans: Sequence[Span]) -> tuple[list[float], Memory, list[Any]]:
        """Return the scores of the graphs, their memory, and the buckets that they chose in each span."""
        rows, source = self.engine.bundle.fixed.get("batch", 1), spans[0].source
        translator: Any = self.engine
        memory = translator.new_memory(self.evaluation, rows) if source is None else translator.new_targets([source])
        found: list[float] = []
        buckets = []
        for span in spans:
            pair = (ids.repeat(rows, axis=0) for ids in (span.tokens, span.targets))
            outputs = self.engine.step("score", memory, *pair)
            found += outputs["log_prob"][0].tolist()
            model = None if self.eager is None else self.eager.model
            buckets.append(self.adapter.buckets(model, memory, outputs, span.tokens.shape[1]))
        return found, memory, buckets

    def _alone(self, spans: Sequence[Span], buckets: Sequence[Any]) -> npt.NDArray[np.float64]:
        """Return what the model says in float64, or else in float32; afterwards it is not in memory."""
        for purpose in self.engine.bundle.graphs:
            self.engine.release(purpose)
        with phase("float64"), contextlib.suppress(ExportError, ParityError):  # a user's module may have none
            if (exact := self.open_eager().in_float64()) is not None:
                return _answers(exact, spans, buckets)[0]
        return _answers(self.open_eager(), spans, buckets)[0]

    def _projection_error(self, spans: Sequence[Span], buckets: Sequence[Any], exact: npt.NDArray[Any]) -> float:
        """Return the largest error of a bucket's lead in float32; infinite without a model in float64."""
        if self.exact is None or self.eager is None:
            return math.inf
        return float(np.abs(_answers(self.eager, spans, buckets)[2] - exact).max())


_Answers = tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_], npt.NDArray[np.float64]]


def _answers(eager: Eager, spans: Iterable[Span], buckets: Iterable[Any]) -> _Answers:
    """Return scores (n,), whether a bucket would be another one (n,), and the smallest lead of a bucket (n,)."""
    scores, flips, leads, memory = [], [], [], None
    for span, ids in zip(spans, buckets, strict=True):
        answer, memory = eager.read(span, memory, False, ids)
        scores.append(answer.expected.log_prob.astype(np.float64))
        for layer in answer.trace[:1]:
            flips.append(np.zeros(layer.own.shape[-1], bool))
            leads.append(np.full(layer.own.shape[-1], math.inf))
        for layer in answer.trace:
            flips[-1] |= (layer.own != layer.buckets)[0].any(dim=0).any(dim=0).numpy()
            leads[-1] = np.minimum(leads[-1], layer.lead[0].amin(dim=(0, 1)).double().numpy())
    none = [np.zeros(0)]
    return np.concatenate(scores), np.concatenate(flips or none).astype(bool), np.concatenate(leads or none)


def rounded_up(number: float) -> float:
    """Return the smallest number of one digit that is not below a number."""
    unit = 10.0 ** math.floor(math.log10(number))
    return float(f"{math.ceil(number / unit * (1 - 1e-12)) * unit:.0e}")
