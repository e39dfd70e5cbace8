"""Options that several commands share, and those that mirror the fields of a configuration."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xlexport.choices import FORMATS, PROTOCOLS

if TYPE_CHECKING:
    from xlexport.scoring.inputs import Reading

__all__ = [
    "DOCUMENT",
    "OUTPUT",
    "PATH",
    "Decorator",
    "Integers",
    "OutputFile",
    "Selection",
    "all_of",
    "any_memory_options",
    "checkpoint_options",
    "conversion_options",
    "device_options",
    "document_options",
    "evaluation_options",
    "grouped",
    "hashing_options",
    "protocol_options",
    "reading_options",
    "runtime_options",
]

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Integers(click.ParamType[tuple[int, ...]]):
    """Integers separated by commas: with `some` one or more, none of them smaller than `at_least`."""

    name = "integers"

    def __init__(self, some: bool = False, at_least: int | None = None) -> None:
        self.some, self.at_least = some, at_least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            integers = tuple(int(part) for part in value.split(",") if part.strip())
        except ValueError:
            self.fail(f"{value!r} is not a list of integers separated by commas.", param, ctx)
        if self.some and not integers:
            self.fail("an empty list; give integers separated by commas.", param, ctx)
        if self.at_least is not None and any(integer < self.at_least for integer in integers):
            self.fail(f"{value!r} is not a list of integers of at least {self.at_least}.", param, ctx)
        return integers


class OutputFile(click.Path):
    """A file to write, whose name must not be that of a folder."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, readable=False, allow_dash=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.endswith(("/", os.sep)):
            self.fail(f"{value!r} is the name of a folder. Give that of a file.", param, ctx)
        return super().convert(value, param, ctx)


PATH = click.Path(path_type=Path)
OUTPUT = OutputFile()
# Not checked here: of several documents, one that cannot be read is told of and the others are scored.
DOCUMENT = click.Path(path_type=Path, allow_dash=True, readable=False)


def all_of(*options: Decorator) -> Decorator:
    """One decorator for several options."""
    return lambda function: functools.reduce(lambda decorated, option: option(decorated), reversed(options), function)


def grouped(name: str, kind: type[Any]) -> Decorator:
    """Let a command have one argument `name`: a dataclass made of the options that are called as its fields."""
    names = [field.name for field in dataclasses.fields(kind)]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def collected(**values: Any) -> Any:
            return function(**{name: kind(**{field: values.pop(field) for field in names})}, **values)

        return collected

    return decorate


@dataclasses.dataclass(frozen=True)
class Selection:
    """How files become documents; options of the same names.

    Raises:
        click.UsageError: they do not go together.
    """

    field: str | None
    id_field: str | None
    include: tuple[str, ...]
    ids: bool

    def __post_init__(self) -> None:
        if self.id_field is not None and self.field is None:
            raise click.UsageError("--id-field is for JSON lines. Give --field, too.")

    @property
    def reading(self) -> Reading:
        """The same for the library."""
        from xlexport.scoring.inputs import Reading

        return Reading(self.ids, self.field, self.id_field)


reading_options = all_of(
    click.option("--field", metavar="NAME", help="The files are JSON lines, each with a document in this field."),
    click.option(
        "--id-field", metavar="NAME", help="With --field: the field that names a document, where there is one."
    ),
    click.option("--include", multiple=True, metavar="PATTERN", help="Of folders, take only files named so: '*.txt'."),
    click.option("--ids", is_flag=True, help="The files hold token ids separated by white space, not text."),
    grouped("selection", Selection),
)


def _read_config(context: click.Context, parameter: click.Parameter, file: Path | None) -> dict[str, Any] | None:
    from xlexport.checkpoints.files import read_json

    return None if file is None else read_json(file)


def _clamp_len(context: click.Context, parameter: click.Parameter, value: int | None) -> int | None:
    if value == 0:
        raise click.BadParameter("0 is neither -1 (no clamp) nor at least 1.", context, parameter)
    return value


_segment_len = click.option(
    "--segment-len", type=click.IntRange(1), help="Tokens in one step.  [default: the model's own]"
)
_mem_len = click.option(
    "--mem-len", type=click.IntRange(1), help="Rows of memory that a layer keeps.  [default: the model's own]"
)
_other_evaluation = all_of(
    click.option(
        "--clamp-len",
        type=click.IntRange(-1),
        callback=_clamp_len,
        help="Largest distinct distance; -1 is none.  [default: the model's own]",
    ),
    click.option(
        "--same-length/--no-same-length",
        default=None,
        help="Whether every token sees equally many others.  [default: the model's own]",
    ),
)
evaluation_options = all_of(_segment_len, _mem_len, _other_evaluation)

hashing_options = all_of(
    click.option(
        "--n-hashes",
        type=click.IntRange(1),
        help="Rounds of hashing, at most as many as were exported (Reformer).  [default: the model's own]",
    ),
)

_restart = click.option(
    "--restart",
    is_flag=True,
    default=None,
    help="Let a document that is longer than the model can read start afresh there, instead of refusing it.",
)
document_options = all_of(evaluation_options, hashing_options, _restart)
# Where the command itself tries memory lengths.
any_memory_options = all_of(_segment_len, _other_evaluation, hashing_options, _restart)

conversion_options = all_of(
    click.option(
        "--to",
        type=click.Choice(["onnx", "torchscript", "exported-program"]),
        default="onnx",
        show_default=True,
        help="What the graphs are. All but onnx run by PyTorch alone, and are to be trusted like programs.",
    ),
    click.option(
        "--tokenizer",
        metavar="FILE|bytes|none",
        help="A vocabulary (vocab.txt, cache.pt, vocab.pkl …), tokenizer.json or SentencePiece model; 'bytes'; or "
        "'none' for token ids only.  [default: the checkpoint's]",
    ),
    click.option(
        "--vocab-style",
        metavar="STYLE",
        help="How text becomes a vocabulary's symbols: wikitext, ptb, lm1b, enwik8, text8 or characters.  "
        "[default: found out from the symbols]",
    ),
    click.option(
        "--text",
        "verify_text",
        type=click.Path(path_type=Path),
        help="Text to verify on.  [default: one that every Python brings]",
    ),
    click.option("--segments", "verify_segments", type=click.IntRange(1), help="Segments to verify."),
    click.option(
        "--rule",
        type=click.Choice(["band", "chunk"]),
        help="Rule of LSH attention, though the model was trained for another (Reformer).  [default: the model's own]",
    ),
    click.option(
        "--n-hashes",
        type=click.IntRange(1),
        help="Rounds of hashing to export; scoring may then choose fewer (Reformer).  [default: the model's own]",
    ),
    click.option(
        "--cuda-graphs",
        is_flag=True,
        default=None,
        help="Also write the graphs that --cuda-graphs of other commands needs (Transformer-XL).",
    ),
    click.option("--threads", type=click.IntRange(1), help="Threads of one step.  [default: all cores]"),
)


def _with_buckets(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let `config` hold what the options that stand beside it say."""

    @functools.wraps(function)
    def merged(config: dict[str, Any] | None, num_buckets: Any, max_length: int | None, **values: Any) -> Any:
        buckets = num_buckets[0] if num_buckets and len(num_buckets) == 1 else num_buckets  # as a file has one number
        said = {"num_buckets": buckets, "max_length": max_length}
        given = {name: value for name, value in said.items() if value is not None}
        return function(config={**(config or {}), **given} if given else config, **values)

    return merged


checkpoint_options = all_of(
    click.option(
        "--format",
        "format_name",
        type=click.Choice(FORMATS),
        help="Format of the checkpoint.  [default: found out from the content]",
    ),
    click.option(
        "--config",
        metavar="FILE",
        type=click.Path(path_type=Path),
        callback=_read_config,
        help="JSON file with hyper-parameters that the checkpoint does not hold, or evaluation settings of training.",
    ),
    click.option(
        "--num-buckets",
        metavar="N[,M]",
        type=Integers(),
        help="Buckets of a round of hashing, or factors of their number, where a Reformer checkpoint does not say.",
    ),
    click.option(
        "--max-length",
        metavar="T",
        type=click.IntRange(1),
        help="Instead: as many buckets as its own code has for documents of T tokens.",
    ),
    _with_buckets,
)

device_options = all_of(
    click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:N."),
    click.option(
        "--strict-device",
        is_flag=True,
        help="Fail where the CPU would compute what the device has no kernel for, sizes of tensors left aside.",
    ),
    click.option(
        "--cuda-graphs",
        is_flag=True,
        help="Capture steps of one shape and replay them, where the bundle was converted for it.",
    ),
)


def _as_runtime(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let `runtime` hold what `open_bundle` takes."""

    @functools.wraps(function)
    def merged(**values: Any) -> Any:
        runtime = {name: values.pop(name) for name in ("device", "strict_device", "cuda_graphs", "threads")}
        if values.pop("trust"):
            runtime["trust"] = True
        return function(runtime=runtime, **values)

    return merged


runtime_options = all_of(
    device_options,
    click.option("--threads", type=click.IntRange(1), help="Threads of one step.  [default: all cores]"),
    click.option(
        "--trust",
        is_flag=True,
        help="Run a bundle of TorchScript or exported programs, too, by PyTorch. That runs code that is in it.",
    ),
    _as_runtime,
)

protocol_options = all_of(
    click.option(
        "--protocol",
        type=click.Choice(PROTOCOLS),
        default=PROTOCOLS[0],
        show_default=True,
        help="Whose walk: streams of equal length; the same after a warm-up; or one stream.",
    ),
    click.option(
        "--batch-size",
        type=click.IntRange(1),
        help="Parallel streams, on which the score depends.  [default: the protocol's own: 10, 16 or 1]",
    ),
    click.option(
        "--sentences/--no-sentences",
        default=None,
        help="Pack sentences into the streams.  [default: as kimiyoung does, where the vocabulary marks them]",
    ),
)
