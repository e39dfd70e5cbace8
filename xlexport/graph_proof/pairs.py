"""Find which output of a graph carries which input to the next step: as the user says, by names, or by shapes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from xlexport.errors import GraphError
from xlexport.graph_proof.graph_file import UNNAMED, GraphFile, Port
from xlexport.graph_proof.layout import is_stream
from xlexport.graph_proof.report import Pair
from xlruntime.messages import counted, listed, named

__all__ = ["READ_ONLY", "find_pairs"]

Two = tuple[Port, Port]
# Words for before and after a step, which do not say which state it is. Those of CHANGE say that it is one.
CHANGE = frozenset(
    {
        *("past", "present", "prev", "previous", "next", "new", "old", "updated", "update"),
        *("init", "initial", "last", "final"),
    }
)
SIDES = CHANGE | {"in", "input", "out", "output", "i", "o", "n", "r"}
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
WRITTEN = (  # several ways to write one name
    (re.compile(r"(?i)(?<![a-z])(in|out|new|prev|next|old)(?=state|hidden|cache|mem|buf|[hc](?![a-z]))"), r"\1_"),
    (re.compile(r"(?i)(state|hidden|cache|memory|buffer|(?<![a-z])[hc])(?=(in|out)(?![a-z]))"), r"\1_"),
    (re.compile(r"(?i)(_|\.|(?<![a-z])([hcs]))t([-+_mp]|minus|plus)*[01]?$"), r"\2"),  # h_t, h_t1, ht_1
    (re.compile(r"key_values"), ""),  # past_key_values.0.key, whose output is present.0.key
)
ENDING = re.compile(r"(?<=^[chkmsv])[nxy]$|(?<=\w{3})s$")  # hn, hy: h after a step; states: state
STATE = re.compile(
    r"state|hidden|cache|mem|buf|(rnn|lstm|gru)(?!_input)|conv|key|value|carry|hist|count|context"
    r"|(?<![a-z])[hckv]\d*(?![a-z])"
)
DATA = re.compile(  # what graphs read, and their results
    r"audio|wav|sound|speech|signal|sample|frame|feat|noisy|image|video|token|observ|action|command|logit|prob|score"
    r"|pred|softmax|embed|enhanced|denoised|(?<![a-z])(ids|src|mic|mix|mel|spec|pcm|obs|cmd|text|enh|ref)(?![a-z])"
)
READ_ONLY = re.compile(r"(?<![a-z])(enc|cross|static|const|prefix|prompt)")  # names of what steps only read
OTHER = re.compile(r"mask|length")
PLAIN = re.compile(r"[xy][_\d]*|(in|out)(puts?)?|data|results?")


def find_pairs(graph: GraphFile, given: Mapping[str, str], fed: Collection[str]) -> tuple[Pair, ...]:
    """Return the carried states of a graph.

    Args:
        given: outputs by the inputs that they feed, as the user says.
        fed: inputs whose values the user gives, which are no states.

    Raises:
        GraphError: a given name is not there, names or shapes leave several choices, or the shapes of a pair cannot
            carry.
    """
    inputs = {port.name: port for port in (*graph.inputs, *graph.optional)}
    outputs = {port.name: port for port in graph.outputs}
    _check_given(graph, given, inputs, outputs)
    free, optional = (
        [port for port in ports if port.name not in {*given, *fed}] for ports in (graph.inputs, graph.optional)
    )
    left = _without(graph.outputs, given.values())
    alike = _by_name(graph, free, left)
    alike += _by_name(graph, optional, _without(left, (after.name for _, after in alike)))
    pairs = [Pair(before, after, "given") for before, after in given.items()]
    pairs += [Pair(before.name, after.name, "by their names") for before, after in _states(graph, alike, given)]
    free = _without(free, (before.name for before, _ in alike))
    left = _without(left, (after.name for _, after in alike))
    pairs += list(_by_shape(graph, free, left, pairs))
    for pair in pairs:
        before, after = inputs[pair.input], outputs[pair.output]
        if problem := _carry_problem(before, after):
            name = named(before.name)
            hint = f"Give its output, --state {name}=OUTPUT, or, if it is no state, --input {name}=VALUE."
            raise GraphError(f"{graph.path}: {after} cannot carry {before}: {problem}.", hint=hint)
    paired = {pair.input for pair in pairs}
    rest = [port for port in graph.inputs if port.name not in {*paired, *fed}]
    lost = [port for port in rest if port in free and _is_lost(port)]
    if lost and (fed or len(lost) < len(rest)):
        name = named(lost[0].name)
        hint = f"Give its output, --state {name}=OUTPUT, or what it reads, --input {name}=VALUE."
        raise GraphError(f"{graph.path}: no output carries {lost[0]}.", hint=hint)
    order = list(inputs)
    return tuple(sorted(pairs, key=lambda pair: order.index(pair.input)))


def _without(ports: Sequence[Port], names: Iterable[str]) -> list[Port]:
    left_out = set(names)
    return [port for port in ports if port.name not in left_out]


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


def _all_words(name: str) -> list[str]:
    for pattern, one in WRITTEN:
        name = pattern.sub(one, name)
    return [word.lower() for word in WORD.findall(name)]


def _words(name: str) -> tuple[str, ...]:
    """Return the words of a name that say which state it is; none for a name such as `past`."""
    words = _all_words(name)
    kept = [word for word in words if word not in SIDES]
    return tuple(ENDING.sub("", word) for word in (words if not kept and CHANGE.isdisjoint(words) else kept))


def _begun(name: str) -> tuple[str, ...]:
    """Return the words without the number of a first value, `h0`, or of PyTorch's second value of a name, `h.1`."""
    words = _words(name)
    return words[:-1] or words if words[-1:] == ("0",) or re.search(r"\.\d+$", name) else words


def _tail(name: str) -> tuple[str, ...]:
    """Return the words without the container: of `past_key_values.layers.0.keys` as of `cache.layers.0.keys`."""
    tail = _words(name.partition(".")[2])
    return tail if any(map(str.isalpha, tail)) else _words(name)


def _by_name(graph: GraphFile, inputs: Sequence[Port], outputs: Sequence[Port]) -> list[Two]:
    """Return inputs with the outputs whose names differ by nothing but words for before and after."""
    found: list[Two] = []
    for key in (_words, _begun, _tail):
        after, claims = defaultdict[tuple[str, ...], list[Port]](list), defaultdict[str, list[Two]](list)
        for port in _without(outputs, (two[1].name for two in found)):
            after[(_tail if key is _tail else _words)(port.name)].append(port)
        for port in _without(inputs, (two[0].name for two in found)):
            same = after.get(key(port.name), [])
            same = [one for one in same if one.name != port.name and not _carry_problem(port, one)] or same
            if len(same) > 1:
                raise _undecided(graph, [port], same)
            for one in same:
                claims[one.name].append((port, one))
        for twos in claims.values():
            clear = [two for two in twos if _is_state(two[0])] or twos
            if len(clear) > 1:
                raise _undecided(graph, [before for before, _ in clear], [clear[0][1]])
            found += clear
    return found


def _undecided(graph: GraphFile, inputs: Sequence[Port], outputs: Sequence[Port]) -> GraphError:
    names, others = (listed(named(port.name) for port in ports) for ports in (inputs, outputs))
    name = named(inputs[0].name)
    hint = f"Say which one does: --state {name}=OUTPUT. If {name} is no state, say what it reads: --input {name}=VALUE."
    what = f"{graph.path}: {counted(len(outputs), 'output')} could carry {names}: {others}."
    return GraphError(what, hint=hint)


def _is_state(port: Port) -> bool:
    """Return whether an input's name says that it is a state."""
    return bool(STATE.search(port.name.lower())) or not CHANGE.isdisjoint(_all_words(port.name))


def _is_lost(port: Port) -> bool:
    """Return whether an input that nothing carries has the name of a state, not of what steps only read."""
    is_free = any(map(is_stream, port.shape or ()))
    return _is_state(port) and port.dtype.kind == "f" and not is_free and not READ_ONLY.search(port.name.lower())


def _is_data(port: Port) -> bool:
    """Return whether all of an input's name says that it is no state; `audio_tail` may be one."""
    words = [word for word in _words(port.name) if not word.isdigit()]
    named_so = PLAIN.fullmatch(port.name.lower()) or OTHER.search(port.name.lower())
    return not _is_state(port) and bool(named_so or (words and all(map(DATA.search, words))))


def _is_result(port: Port) -> bool:
    """Return whether a part of an output's name says that it is no state."""
    name = port.name.lower()
    return not _is_state(port) and bool(PLAIN.fullmatch(name) or OTHER.search(name) or DATA.search(name))


def _is_through(before: Port, after: Port) -> bool:
    """Return whether two ports of one name are the stream as it comes and goes, such as `audio_in` and `audio_out`."""
    if any(old == new and is_stream(old) for old, new in zip(before.shape or (), after.shape or (), strict=False)):
        return True
    if CHANGE.isdisjoint(_all_words(after.name)):
        return _words(before.name) == ("x",) or bool(_carry_problem(before, after)) or _is_data(before)
    return _is_data(before) and not PLAIN.fullmatch(before.name.lower())


def _states(graph: GraphFile, alike: Sequence[Two], given: Mapping[str, str]) -> list[Two]:
    """Return the pairs of names that are states, so that something is left to read, and a result."""
    sure = [two for two in alike if _is_state(two[0])]
    maybe = [two for two in alike if two not in sure and not _is_through(*two)]
    states = [*sure, *maybe]
    carried, made = ({*names, *(two[at].name for two in states)} for at, names in enumerate((given, given.values())))
    reads = any(port.shape != () and port.name not in carried for port in graph.inputs)
    returns = len(states) == 1 or any(port.name not in made for port in graph.outputs)
    if not reads and (through := maybe or [two for two in sure if _is_through(*two)]):
        states.remove(through[0])
    elif maybe and not returns and CHANGE.isdisjoint(_all_words(maybe[0][1].name)):
        states.remove(maybe[0])
    return states


def _by_shape(
    graph: GraphFile, inputs: Sequence[Port], outputs: Sequence[Port], pairs: Sequence[Pair]
) -> Iterator[Pair]:
    """Yield pairs of one type and shape; the first input is what the graph reads if nothing else is.

    Args:
        pairs: those that were found before. Without any, position decides among several of one shape.
    """
    fits = {port.name: _fitting(graph, port, outputs) for port in inputs}
    found = [port for port in inputs if fits[port.name]]
    known = {*(port.name for port in found), *(pair.input for pair in pairs)}
    free, why = fits, "by shape"
    if found and not any(_is_read(port) and port.name not in known for port in graph.inputs):
        stream = next((port for port in found if port.shape and not _is_state(port)), found[0])
        found.remove(stream)
        result = fits[stream.name][0].name
        free = {name: _without(ports, [result]) for name, ports in fits.items()}
        why = "by shape and position"
    for port in found:
        after = free[port.name]
        rivals = [one for one in found if one is port or not {*after}.isdisjoint(free[one.name])]
        place = rivals.index(port) if len(rivals) > 1 else 0
        is_decided = len(rivals) == len(after) and (len(after) == 1 or not pairs)
        if not (is_decided and _is_sized(port, after[place]) and not _is_result(after[place])):
            raise _undecided(graph, rivals, after or fits[port.name])
        yield Pair(port.name, after[place].name, why if len(rivals) == 1 else "by shape and position")


def _is_read(port: Port) -> bool:
    """Return whether an input may be the stream: no single number, unless its name says so, and no mask."""
    is_one = port.shape is not None and all(axis == 1 for axis in port.shape)
    return not OTHER.search(port.name.lower()) and (not is_one or (port.shape != () and _is_data(port)))


def _fitting(graph: GraphFile, before: Port, outputs: Sequence[Port]) -> list[Port]:
    """Return the outputs of an input's type and shape: of exactly the same shape, or those that can carry it."""
    if before.shape is None or before.name in graph.vocabularies or _is_data(before):
        return []
    fits = [
        port
        for port in outputs
        if port.shape is not None
        and not _carry_problem(before, port)
        and (_is_sized(before, port) or (before.shape == port.shape and before.dtype.kind == "f"))
        and not any(map(is_stream, before.shape))
    ]
    fits = [port for port in fits if _plain(port) == _plain(before)] or fits
    return [port for port in fits if not _is_result(port)] or (fits if _is_state(before) else [])


def _plain(port: Port) -> list[int | str]:
    return ["" if UNNAMED in str(axis) else axis for axis in port.shape or ()]


def _is_sized(before: Port, after: Port) -> bool:
    """Return whether a fixed axis of more than one number is the same in both."""
    axes = zip(before.shape or (), after.shape or (), strict=True)
    return any(old == new and isinstance(old, int) and old != 1 for old, new in axes)
