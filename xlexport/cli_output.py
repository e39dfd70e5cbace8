"""What the commands print: data on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from xlexport.parity import ParityReport
    from xlruntime.protocols import CorpusScore

__all__ = [
    "StatusLine",
    "bar",
    "corpus_rows",
    "counted",
    "duration",
    "failure",
    "one_line",
    "parity_rows",
    "print_json",
    "print_table",
    "progress_bar",
    "quantization_rows",
    "standard_output",
    "tell",
]

EVERY = 0.2  # seconds between two pictures of a status line
WIDTH = 24  # of a bar
STDOUT = "standard output"


def tell(message: str) -> None:
    """A line for the person at the terminal."""
    click.echo(one_line(message), err=True)


def one_line(text: str) -> str:
    """A text as a terminal can show it: what would end the line or be obeyed becomes an escape, like \\n.

    Names of files and documents may hold anything.
    """
    return "".join(mark if mark.isprintable() else ascii(mark)[1:-1] for mark in text)


def counted(n: int, what: str) -> str:
    """How many there are of what, with an s where it is not one."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def print_json(value: Any, err: bool = False) -> None:
    """One JSON value on a line; numbers that JSON does not have become null."""
    with contextlib.nullcontext() if err else standard_output():
        click.echo(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False), err=err)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def print_table(rows: Sequence[tuple[str, str]]) -> None:
    """Two aligned columns."""
    width = max((len(name) for name, _ in rows), default=0)
    with standard_output():
        for name, value in rows:
            click.echo(f"{name:<{width}}  {value}".rstrip())


@contextlib.contextmanager
def standard_output() -> Iterator[None]:
    """Writing there: errors say so.

    Raises:
        OSError: with its name; as any, where a reader has read enough (EPIPE).
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        raise OSError(error.errno, error.strerror, STDOUT) from error


def parity_rows(report: ParityReport) -> list[tuple[str, str]]:
    """A ParityReport for people."""
    tolerance = report.tolerance
    behind = "" if report.detail_segments == report.segments else f", first {report.detail_segments} segments"
    memory = ("largest memory difference", f"{report.max_abs_memory_diff:.2e} (≤ {tolerance['memory']:g})")
    if report.mem_len:
        walked = ("segments", f"{report.segments} of {report.segment_len} tokens, memory {report.mem_len}")
    else:
        walked = ("documents", f"{report.segments}, of {report.tokens:,} tokens together")
    return [
        walked,
        (
            "largest log-probability difference",
            f"{report.max_abs_log_prob_diff:.2e} nats (≤ {tolerance['log_prob']:g})",
        ),
        ("of other tokens, relative", f"{report.max_distribution_diff:.2e} (≤ {tolerance['log_prob']:g}){behind}"),
        *([memory] if report.mem_len else []),
        ("bits per token", f"{report.bits_per_token:.4f}, graph {report.delta_bits_per_token:+.1e}"),
        ("same best token", f"{report.top1_agreement:.2%}{behind}"),
        ("drift, last third to first", "-" if report.drift is None else f"{report.drift:.2f}"),
        *_lsh_rows(report),
        ("equal", "yes" if report.passed else "NO"),
    ]


def _lsh_rows(report: ParityReport) -> list[tuple[str, str]]:
    if report.bucket_flips is None:
        return []
    flips = f"{report.bucket_flips:,}"
    if report.bucket_flips:
        flips += (
            f", margin {report.largest_flip_margin:.1e} (≤ {report.tolerance['flip_margin']:g}), "
            f"{report.flip_effect_bits_per_token:+.1e} bits per token"
        )
    rows = [("buckets the model alone would change", flips)]
    if report.overflow_fraction_per_layer is not None:
        layers = ", ".join(f"{fraction:.2%}" for fraction in report.overflow_fraction_per_layer)
        rows.append(("overflow, by LSH layer", layers))
    if report.overflow_mismatches:
        rows.append(("overflow counted otherwise", f"in {report.overflow_mismatches:,} places (= 0)"))
    return rows


def quantization_rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A QuantizationReport's fields for people."""
    kept, texts = report["kept"], ", ".join(str(file["name"]) for file in report["text"])
    return [
        ("quantized", f"{report['products'] - len(kept)} of {report['products']} products to {report['dtype']}"),
        *((f"float32: {name}", why) for name, why in kept.items()),
        ("memories", report["memory_dtype"]),
        ("measured on", f"{report['tokens']:,} tokens of {texts}"),
        (
            "bits per token",
            f"{report['bits_per_token']:.4f}, quantized {report['delta_bits_per_token']:+.4f} "
            f"± {report['standard_error']:.4f} (≤ {report['max_delta_bits']:g})",
        ),
        (
            "log-probability differences",
            f"mean {report['mean_abs_log_prob_diff']:.2g}, largest {report['max_abs_log_prob_diff']:.2g} nats",
        ),
        ("weights", f"{report['weights_bytes']:,} bytes of {report['float32_weights_bytes']:,}"),
    ]


def corpus_rows(score: CorpusScore) -> list[tuple[str, str]]:
    """A CorpusScore for people; what does not occur is left out."""
    unit = score.unit
    text = f", {score.bytes:,} bytes" if score.bytes and unit != "byte" else ""
    clamp = "no clamp" if score.clamp_len < 0 else f"clamp {score.clamp_len:,}"
    warmup = f", {score.warmup_segments} segments of warm-up" if score.warmup_segments else ""
    rows = [
        ("corpus", f"{score.corpus}: {score.tokens:,} {unit}s{text}"),
        ("no token for", f"{score.dropped_bytes:,} bytes" if score.dropped_bytes else ""),
        ("unknown", f"{score.unknown_tokens:,} {unit}s" if score.unknown_tokens else ""),
        ("protocol", f"{score.protocol}{', sentences packed' if score.sentences else ''}{warmup}"),
        ("streams", f"{score.batch_size:,} of {score.stream_len:,} predicted {unit}s"),
        (
            "not predicted",
            f"{score.unpredicted_tokens:,}, the first of each {'sentence' if score.sentences else 'stream'}, and "
            f"{score.trimmed_tokens:,} at the end",
        ),
        (
            "settings",
            f"segment {score.segment_len:,}, memory {score.mem_len:,}, {clamp}, "
            f"{'' if score.same_length else 'no '}same length, first memory {score.first_memory}"
            f"{f', {score.n_hashes} rounds of hashing' if score.n_hashes else ''}"
            f"{', afresh where the model cannot read on' if score.restart else ''}",
        ),
        (f"nats per {unit}", f"{score.nats_per_token:.4f}"),
        (f"bits per {unit}", f"{score.bits_per_token:.5f}"),
        ("perplexity", f"{score.perplexity:.3f}"),
        ("tokens/s", f"{score.tokens_per_second:,.0f}"),
    ]
    return [row for row in rows if row[1]]


class StatusLine:
    """A line on standard error that is drawn anew again and again: only on a terminal, and one that can do that.

    Attributes:
        visible: whether it is shown at all.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.visible = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = -math.inf
        self._shown = False

    def draw(self, line: Callable[[], str]) -> None:
        """Show what `line` gives, unless it has just been drawn."""
        now = time.monotonic()
        if not self.visible or now - self._drawn < EVERY:
            return
        self._drawn, self._shown = now, True
        columns = shutil.get_terminal_size().columns
        self._stream.write(f"\r{line()[: columns - 1]}\x1b[K")
        self._stream.flush()

    def clear(self) -> None:
        """Make room for other lines."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False


def bar(fraction: float) -> str:
    """A share of the whole, as a number and as a picture."""
    filled = round(fraction * WIDTH)
    return f"{fraction:4.0%} {'█' * filled}{'░' * (WIDTH - filled)}"


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as a clock shows them."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


@contextlib.contextmanager
def progress_bar(length: int, label: str) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal while the block runs, which is given what to tell how far it came since."""
    line, done, began = StatusLine(), 0, time.monotonic()

    def picture() -> str:
        left = f"  {duration((length - done) * (time.monotonic() - began) / done)} left" if 0 < done <= length else ""
        return f"{bar(min(done / max(length, 1), 1.0))}  {label}{left}"

    def advance(more: int) -> None:
        nonlocal done
        done += more
        line.draw(picture)

    line.draw(picture)
    try:
        yield advance
    finally:
        line.clear()


def failure(error: Exception) -> str | None:
    """The line that tells a person what went wrong and how to mend it; None for an error of ours (a bug)."""
    from xlexport.errors import XlexportError
    from xlruntime.errors import XlruntimeError
    from xltraining.errors import XltrainingError

    if isinstance(error, XlexportError | XlruntimeError | XltrainingError):
        return f"Error: {error}"
    if isinstance(error, OSError):
        return f"Error: {_system(error)}"
    if isinstance(error, MemoryError):
        return "Error: out of memory. Use a smaller --batch-size, --segment-len or --mem-len, or a larger machine."
    return None


def _system(error: OSError) -> str:
    repairs = {
        errno.ENOSPC: "Free some space, or write to another disk; nothing was published.",
        errno.ENOENT: "Check the path.",
        errno.EISDIR: "Give a file.",
        errno.EACCES: "Check its permissions.",
        errno.EROFS: "Write to another place.",
    }
    if error.strerror is None:
        return str(error)
    where = f"{error.filename}: " if error.filename is not None else ""
    repair = repairs.get(error.errno or 0, "") if error.filename != STDOUT else ""
    return f"{where}{error.strerror}. {repair}".rstrip()
