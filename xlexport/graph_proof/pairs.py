"""Find which output of a graph carries which input to the next step: as the user says, by names, or by shapes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from xlexport.errors import GraphError
from xlexport.graph_proof.graph_file import GraphFile, Port
from xlexport.graph_proof.report import Pair
from xlruntime.messages import listed, named

__all__ = ["find_pairs"]

# Words that tell the state before a step from the one after it, and nothing about which state it is.
BEFORE_AFTER = frozenset(
    {
        *("in", "input", "out", "output", "past", "present", "prev", "previous", "next", "new", "old"),
        *("updated", "update", "init", "initial"),
    }
)
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
SHORT_LAST = re.compile(r"([a-z])n")  # `hn` and `cn` are h and c after n steps
STATE = re.compile(r"state|hidden|cell|cache|mem|past|buf|rnn|lstm|gru|conv|key|value|carry|hist|\b[hckv]\d*(\b|_)")
CACHE = ("key", "values")  # of `past_key_values.0.key`, whose output is `present.0.key`


def find_pairs(graph: GraphFile, given: Mapping[str, str], fed: Collection[str]) -> tuple[Pair, ...]:
    """Return the carried states of a graph.

    Args:
        given: outputs by the inputs that they feed, as the user says.
        fed: inputs whose values the user gives, which are no states.

    Raises:
        GraphError: a given name is not there, an input could have several outputs, or the shapes of a pair cannot
            carry.
    """
    inputs, outputs = ({port.name: port for port in ports} for ports in (graph.inputs, graph.outputs))
    _check_given(graph, given, inputs, outputs)
    pairs = [Pair(before, after, "given") for before, after in given.items()]
    free = [port for name, port in inputs.items() if name not in given and name not in fed]
    left = [port for name, port in outputs.items() if name not in given.values()]
    pairs += _states(list(_by_name(graph, free, left)), graph.inputs)
    if not pairs:
        pairs += _by_shape(graph, free, left)
    for pair in pairs:
        before, after = inputs[pair.input], outputs[pair.output]
        if problem := _carry_problem(before, after):
            hint = f"Give the right output with --state {named(before.name)}=OUTPUT, or export the graph again."
            raise GraphError(f"{graph.path}: {after} cannot carry {before}: {problem}.", hint=hint)
    order = list(inputs)
    return tuple(sorted(pairs, key=lambda pair: order.index(pair.input)))


def _check_given(
    graph: GraphFile, given: Mapping[str, str], inputs: Mapping[str, Port], outputs: Mapping[str, Port]
) -> None:
    for kind, names, ports in (("input", given.keys(), inputs), ("output", given.values(), outputs)):
        if wrong := [named(name) for name in names if name not in ports]:
            hint = f"Its {kind}s are {listed(map(named, ports))}."
            raise GraphError(f"{graph.path}: no {kind} {listed(wrong)}, which --state names.", hint=hint)
    for output in given.values():
        if len(of := [before for before, after in given.items() if after == output]) > 1:
            what = f"{graph.path}: --state gives the output {named(output)} to {listed(map(named, of))}."
            raise GraphError(what, hint="Give each state an output of its own.")


def _carry_problem(before: Port, after: Port) -> str:
    """Return why an output cannot be the input of the next step, or an empty text."""
    if before.dtype != after.dtype:
        return f"{after.dtype} is not {before.dtype}"
    if before.shape is None or after.shape is None:
        return ""
    if len(before.shape) != len(after.shape):
        return f"{len(after.shape)} axes are not {len(before.shape)}"
    for at, (old, new) in enumerate(zip(before.shape, after.shape, strict=True)):
        if isinstance(old, int) and isinstance(new, int) and old != new:
            return f"axis {at} is {new}, not {old}"
    return ""


def _words(name: str) -> tuple[str, ...]:
    """Return the words of a name that say which state it is."""
    words = [word.lower() for word in WORD.findall(name)]
    if words[:3] == ["past", *CACHE]:
        words[1:3] = []
    words = [word for word in words if word not in BEFORE_AFTER]
    if len(words) > 1 and words[-1] == "n":  # stateN
        words.pop()
    if words and (match := SHORT_LAST.fullmatch(words[-1])):
        words[-1] = match[1]
    return tuple(words)


def _by_name(graph: GraphFile, inputs: Sequence[Port], outputs: Sequence[Port]) -> Iterator[Pair]:
    """Yield pairs whose names differ by nothing but words for before and after; `h0` is also the input of `hn`."""
    after = defaultdict[tuple[str, ...], list[Port]](list)
    for port in outputs:
        after[_words(port.name)].append(port)
        if "." in port.name:  # `cache.layers.0.keys`, whose input is `past_key_values.layers.0.keys`
            after[("", *_words(port.name.partition(".")[2]))].append(port)
    for port in inputs:
        words = _words(port.name)
        begun = words[:-1] if words[-1:] == ("0",) else words
        tail = ("", *_words(port.name.partition(".")[2]))
        found = after.get(words) or after.get(begun) or (after.get(tail) if len(tail) > 1 else None) or []
        found = [one for one in found if words and (one.name != port.name or len(found) == 1)]
        if len(found) > 1:
            hint = f"Choose one: --state {named(port.name)}=OUTPUT."
            names = listed(named(one.name) for one in found)
            raise GraphError(f"{graph.path}: {len(found)} outputs could carry {named(port.name)}: {names}.", hint=hint)
        if found:
            yield Pair(port.name, found[0].name, "by their names")


def _states(pairs: Sequence[Pair], inputs: Sequence[Port]) -> Sequence[Pair]:
    """Return the pairs that are states; if they left nothing to read, `audio_in` and `audio_out` are the stream."""
    carried = {pair.input for pair in pairs}
    if len(pairs) < 2 or any(port.shape and port.name not in carried for port in inputs):
        return pairs
    return [pair for pair in pairs if STATE.search(pair.input.lower())] or pairs[1:]


def _by_shape(graph: GraphFile, inputs: Sequence[Port], outputs: Sequence[Port]) -> Iterator[Pair]:
    """Yield pairs of one type and shape, in order; the first input is what the graph reads if all find an output."""
    groups: list[tuple[list[Port], list[Port]]] = []
    for port in inputs:
        if not port.shape:  # a scalar is a setting, and of an unknown shape nothing can be said
            continue
        group = next((group for group in groups if _same(group[0][0], port)), None)
        if group is None:
            groups.append(([port], [one for one in outputs if _same(port, one)]))
        else:
            group[0].append(port)
    carried = [(before, after) for before, after in groups if after]
    reads_first = sum(len(before) for before, _ in carried) == len(graph.inputs)
    for group in carried:
        skipped = (inputs[0], outputs[0]) if reads_first and group[0][0] is inputs[0] else ()
        before, after = ([port for port in ports if not any(port is one for one in skipped)] for ports in group)
        if not before:
            continue
        if len(before) != len(after):
            names = listed(named(port.name) for port in before)
            others = listed(named(port.name) for port in after) or "no output"
            hint = "Say which output carries which input: --state INPUT=OUTPUT."
            raise GraphError(
                f"{graph.path}: by their shapes, {others} could carry {names}, and names do not decide.", hint=hint
            )
        single = len(before) == 1 and not reads_first
        for old, new in zip(before, after, strict=True):
            yield Pair(old.name, new.name, "by shape" if single else "by shape and position")


def _same(before: Port, after: Port) -> bool:
    """Return whether two ports have one type and shapes that carry, with a fixed axis of more than one in both."""
    if before.shape is None or after.shape is None or _carry_problem(before, after):
        return False
    fixed = [old for old, new in zip(before.shape, after.shape, strict=True) if old == new and isinstance(old, int)]
    return any(size != 1 for size in fixed)
