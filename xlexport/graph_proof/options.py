"""The options of a proof of a graph: fields that declare help, default and range. Importing this module is quick."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from xlruntime.errors import OptionError
from xlruntime.messages import named, shown
from xltraining.config_fields import limit_problems, setting

__all__ = ["GraphOptions", "parts_of"]

HEADING = "Graph of others"
_graph = functools.partial(setting, common=True, heading=HEADING)
_limit = functools.partial(setting, heading=HEADING)


@dataclass(frozen=True, kw_only=True)
class GraphOptions:
    """The choices of `verify_graph`.

    Attributes:
        state: pairs `INPUT=OUTPUT` of carried states; those that are not given are guessed.
        input: values of other inputs, `NAME=VALUE`: a number, a file (.npz, .npy, .wav, a text of numbers), a range
            such as `-1..1`, or `count`, `total` or `length` for numbers that follow the stream.
        context: `NAME=N` for an input whose steps begin with the last N values of the step before.
        first: a file .npz with first states by the names of their inputs; None: zeros.
        length: size of the free axis of the stream in a step; None: the smallest power of two that the graph takes.
        steps: number of steps of the long walk.
        trust: whether the code of a module may run.
        seed: of random inputs.
        memory: bytes of address space of the process that runs the graph.
        seconds: time after which it ends.

    Raises:
        OptionError: a value is not of its form, or given twice.
    """

    state: tuple[str, ...] = _graph((), "A carried state. Repeatable.  [default: guessed]", metavar="IN=OUT")
    input: tuple[str, ...] = _graph((), "Number, FILE, -1..1, count, total, length. Repeatable.", metavar="NAME=VALUE")
    context: tuple[str, ...] = _graph((), "Values of the step before to begin with.", metavar="NAME=N")
    first: Path | None = setting(
        None, "First states (.npz).  [default: zeros]", common=True, heading=HEADING, metavar="FILE"
    )
    length: int | None = _graph(None, "Size of a free axis.  [default: the least]", minimum=1)
    steps: int = _graph(10_000, "Steps of the long walk.", minimum=1)
    trust: bool = setting(False, option=False)
    seed: int = _limit(0, "Of random inputs.", minimum=0)
    memory: int = _limit(8 << 30, "Bytes that the graph's process may reserve.", minimum=1 << 29)
    seconds: float = _limit(300.0, "Seconds after which the graph's process ends.", minimum=1.0)

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in ("length", "steps", "seed", "memory", "seconds")}
        if problems := limit_problems(GraphOptions, {name: one for name, one in values.items() if one is not None}):
            raise OptionError(f"{'; '.join(problems)}.", hint="Give another number.")
        for option in ("state", "input", "context"):
            parts_of(option, getattr(self, option))
        for name, value in parts_of("context", self.context).items():
            if not (value.isdecimal() and int(value)):
                raise OptionError(f"--context {name}={value}: expected NAME=N.", hint="N is at least 1.")


def parts_of(option: str, values: tuple[str, ...]) -> dict[str, str]:
    """Return the values of an option `NAME=VALUE` by name.

    Raises:
        OptionError: one has no `=`, or two have one name.
    """
    parts: dict[str, str] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            form = {"state": "INPUT=OUTPUT", "context": "NAME=N"}.get(option, "NAME=VALUE")
            raise OptionError(f"--{option} {shown(text)}: expected {form}.", hint="Write both sides of the sign =.")
        if name in parts:
            what = f"--{option}: two values for {shown(name)}: {named(parts[name])} and {named(value)}."
            raise OptionError(what, hint="Give one of them.")
        parts[name] = value
    return parts
