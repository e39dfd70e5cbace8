"""Refuse graphs that xlexport cannot have written, before ONNX Runtime sees any part of them.

ONNX Runtime runs each operator that a file names, follows each file name in it, and expands each function. So this
module first reads the file as protocol buffers, without the `onnx` package. A graph that passes can still take long or
need much memory.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .errors import BundleDamagedError, BundleGraphError
from .hub_cache import real_folders
from .limits import Limits, read_at_most
from .messages import listed, named
from .operator_domain import DOMAIN  # of the functions in a file; all other operators are standard ones
from .protobuf import fields

__all__ = ["EMITTED", "GRAPH_LIMITS", "OPERATORS", "FileRecord", "check_graph", "read_graph"]

GRAPH_LIMITS = Limits(operations=5_000_000)  # fields of all messages; the sample's largest graph has 11,000
MOST_NODES = 100_000  # once all functions are expanded; the sample's largest graph has 560
SHORT = 64  # bytes of an attribute that is compared with earlier ones before it is read
DEEPEST = 16  # graphs within nodes and functions within functions; xlexport writes 2
HINT = "Convert the checkpoint again; open untrusted bundles only in a sandbox."

# Operators that `convert` and `quantize` write. A test derives the list again from bundles.
EMITTED = frozenset(
    {
        *("Abs", "Add", "And", "ArgMax", "Cast", "CastLike", "Clip", "Concat", "Constant", "Conv", "Cos"),
        *("CumSum", "DequantizeLinear", "Div", "Equal", "Exp", "Expand", "Floor", "GRU", "Gather"),
        *("GatherElements", "Gelu", "Gemm", "Greater", "GreaterOrEqual", "Identity", "LSTM", "LayerNormalization"),
        *("Less", "LessOrEqual", "Log", "LogSoftmax", "Loop", "MatMul", "Max", "Min", "Mod", "Mul", "Neg"),
        *("NonZero", "Not", "Or", "Pad", "Pow", "QuantizeLinear", "Range", "Reciprocal", "ReduceMax"),
        *("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Relu", "Reshape", "Scan", "ScatterElements"),
        *("ScatterND", "Shape", "Sigmoid", "Sin", "Slice", "Softmax", "Softplus", "Split", "Sqrt", "Squeeze"),
        *("Sub", "Sum", "Tanh", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where"),
    }
)
# Standard operators for other architectures: no side effects, and work bounded by the sizes of their inputs.
OPERATORS = EMITTED | frozenset(
    {
        *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Attention", "AveragePool", "BatchNormalization"),
        *("BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Ceil", "Celu", "ConstantOfShape", "Cosh"),
        *("DepthToSpace", "Einsum", "Elu", "Erf", "EyeLike", "Flatten", "GatherND", "GlobalAveragePool"),
        *("GlobalMaxPool", "GroupNormalization", "HardSigmoid", "HardSwish", "Hardmax", "InstanceNormalization"),
        *("IsInf", "IsNaN", "LeakyRelu", "LpNormalization", "MaxPool", "Mean", "MeanVarianceNormalization", "Mish"),
        *("OneHot", "PRelu", "RMSNormalization", "RNN", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"),
        *("ReduceSumSquare", "RotaryEmbedding", "Round", "Selu", "Sign", "Sinh", "Size", "Softsign"),
        *("SpaceToDepth", "Swish", "Tan", "ThresholdedRelu", "Tile", "Xor"),
    }
)

# The relevant fields of each message, by field number: inner messages, and texts by name.
MODEL, GRAPH, NODE, ATTRIBUTE, TENSOR, SPARSE_TENSOR, FUNCTION, ENTRY, TRAINING = range(9)
MESSAGES: dict[int, tuple[dict[int, int], dict[int, str], frozenset[int]]] = {
    kind: (messages, texts, frozenset(messages | texts))
    for kind, messages, texts in [
        (MODEL, {7: GRAPH, 20: TRAINING, 25: FUNCTION}, {}),
        (GRAPH, {1: NODE, 5: TENSOR, 15: SPARSE_TENSOR}, {}),
        (NODE, {5: ATTRIBUTE}, {4: "name", 7: "domain", 8: "overload"}),
        (ATTRIBUTE, {5: TENSOR, 6: GRAPH, 10: TENSOR, 11: GRAPH, 22: SPARSE_TENSOR, 23: SPARSE_TENSOR}, {}),
        (TENSOR, {13: ENTRY}, {}),
        (SPARSE_TENSOR, {1: TENSOR, 2: TENSOR}, {}),
        (FUNCTION, {7: NODE, 11: ATTRIBUTE}, {1: "name", 10: "domain", 13: "overload"}),
        (ENTRY, {}, {1: "key", 2: "value"}),
    ]
}

_Name = tuple[str, str, str]  # domain, name, overload


@dataclass
class _Scope:
    """Counts of a function or of the main graph: nodes, and for each called function its calls and their depth."""

    nodes: int = 0
    depth: int = 0
    calls: Counter[_Name] = field(default_factory=Counter)
    deepest_call: dict[_Name, int] = field(default_factory=dict)


def read_graph(path: Path, data_files: Collection[str] = (), limits: Limits = GRAPH_LIMITS) -> bytes:
    """Return the content of an ONNX file that passes `check_graph`.

    Give ONNX Runtime this content, not the path: the file may be replaced in between.

    Raises:
        BundleDamagedError: the file is missing, or a file of weights is a link to another folder.
        BundleGraphError: the file is too large, or refused.
    """
    if not path.is_file():
        raise BundleDamagedError(f"{path}: no such file.", hint="Copy the bundle again.")
    budget = limits.budget(str(path), BundleGraphError)
    with path.open("rb") as file:
        if (size := os.fstat(file.fileno()).st_size) > limits.bytes:
            budget.charge(size)
        content = read_at_most(file, budget)
    folders = real_folders(path.parent)
    for name in check_graph(content, str(path), data_files, limits).locations:
        if (path.parent / name).resolve().parent not in folders:
            raise BundleDamagedError(
                f"{path.parent / name}: a link that leads out of the folder.", hint="Copy the bundle with its files."
            )
    return content


def check_graph(content: bytes, file: str, data_files: Collection[str], limits: Limits = GRAPH_LIMITS) -> FileRecord:
    """Refuse the content of an ONNX file that xlexport cannot have written, or return the record of its contents.

    Args:
        content: the whole file.
        file: its path, for messages.
        data_files: names of files in the same folder that may hold its tensors.
        limits: the most memory, operations and time of the record.

    Raises:
        BundleGraphError: the content is not a graph, names other operators, domains or files, has functions that call
            themselves, or exceeds the bounds.
    """
    try:
        record = FileRecord(content, file, data_files, limits)
    except ValueError as error:
        if isinstance(error, BundleGraphError):
            raise
        raise BundleGraphError(f"{file}: not an ONNX graph ({error}).", hint="Copy the bundle again.") from error
    if problems := list(record.problems()):
        raise BundleGraphError(f"{file}: {'; '.join(problems)}.", hint=HINT)
    return record


class FileRecord:
    """One pass over a file, which records its contents. A subclass may allow other operators, functions and files.

    Attributes:
        operators: names of the ONNX operators in it, in graphs within nodes and in functions, too.
        strange: domain, name and overload of all others, except functions of ours.
        locations: the data files that hold its tensors.
    """

    WRITTEN = "that xlexport does not write"  # operators that `is_operator` refuses
    FUNCTIONS = DOMAIN  # whose functions may be in the file, in words

    def __init__(self, content: bytes, file: str, data_files: Collection[str], limits: Limits = GRAPH_LIMITS) -> None:
        self.content, self.data_files = content, data_files
        self.budget = limits.budget(file, BundleGraphError)
        self.main = _Scope()
        self.functions: dict[_Name, _Scope] = {}
        self.operators: set[str] = set()
        self.strange: set[_Name] = set()
        self.locations: set[str] = set()
        self.flaws: dict[str, None] = {}  # problems, each once, in order
        self._sizes: dict[_Name, tuple[int, int]] = {}
        self._empty: set[bytes] = set()  # attributes without inner messages, which most nodes have: `axis` and the like
        # Messages not yet read: kind, begin, end, their scope, and the number of graphs around them in this scope.
        self.waiting: list[tuple[int, int, int, _Scope, int]] = [(MODEL, 0, len(content), self.main, 0)]
        while self.waiting:
            self._message(*self.waiting.pop())

    def _message(self, kind: int, begin: int, end: int, scope: _Scope, depth: int) -> None:
        """Read one message; its inner messages wait."""
        if kind in (GRAPH, FUNCTION, TRAINING):
            scope, depth = self._enter(kind, scope, depth)
            if depth > DEEPEST:
                return
        messages, texts, wanted = MESSAGES[kind]
        places = fields(self.content, begin, end, wanted, self.budget)
        if kind == ATTRIBUTE and not places and end - begin <= SHORT:
            self._empty.add(self.content[begin:end])
        attributes: dict[str, str] = {}
        for number, value_begin, value_end in places:
            if (inner := messages.get(number)) is not None:
                is_short = inner == ATTRIBUTE and value_end - value_begin <= SHORT
                if not is_short or self.content[value_begin:value_end] not in self._empty:
                    self.waiting.append((inner, value_begin, value_end, scope, depth))
            else:
                attributes[texts[number]] = self.content[value_begin:value_end].decode("utf-8", "backslashreplace")
        if kind == NODE:
            self._node(attributes, scope, depth)
        elif kind == FUNCTION:
            self._function(_name(attributes), scope)
        elif kind == ENTRY and attributes.get("key") == "location":
            self._location(attributes.get("value", ""))

    def _enter(self, kind: int, scope: _Scope, depth: int) -> tuple[_Scope, int]:
        """Return the scope of a function or graph, and the number of graphs around its nodes."""
        if kind == TRAINING:
            self.flaws["it holds a training graph"] = None
            return scope, DEEPEST + 1
        if kind == FUNCTION:
            return _Scope(), 0
        scope.depth = max(scope.depth, depth + 1)
        if depth == DEEPEST:
            self.flaws[f"graphs within nodes are more than {DEEPEST} deep"] = None
        return scope, depth + 1

    def _node(self, attributes: dict[str, str], scope: _Scope, depth: int) -> None:
        scope.nodes += 1
        if "domain" not in attributes and (operator := attributes.get("name")) in OPERATORS:  # most nodes
            self.operators.add(operator)
            return
        name = _name(attributes)
        if self.is_function(name[0]):
            scope.calls[name] += 1
            scope.deepest_call[name] = max(scope.deepest_call.get(name, 0), depth)
        elif self.is_operator(name[0], name[1]):
            self.operators.add(name[1])
        else:
            self.strange.add(name)

    def is_operator(self, domain: str, operator: str) -> bool:
        """Return whether the file may call an operator; an empty domain is that of ONNX."""
        return not domain and operator in OPERATORS

    def is_function(self, domain: str) -> bool:
        """Return whether a domain's operators are functions, which the file itself must hold."""
        return domain == DOMAIN

    def location_problem(self, location: str) -> str | None:
        """Return what is wrong with a file that holds tensors, or None."""
        return None if location in self.data_files else "which bundle.json does not list"

    def _function(self, name: _Name, scope: _Scope) -> None:
        if not self.is_function(name[0]):
            self.flaws[f"it holds the function {_shown(name)}, expected functions of {self.FUNCTIONS} only"] = None
        elif name in self.functions:
            self.flaws[f"it holds the function {_shown(name)} twice"] = None
        self.functions[name] = scope

    def _location(self, location: str) -> None:
        self.locations.add(location)
        if (problem := self.location_problem(location)) is not None:
            self.flaws[f"its weights lie in {named(location)}, {problem}"] = None

    def problems(self) -> Iterator[str]:
        """Yield the problems of the file."""
        if self.strange:
            yield f"it holds operators {self.WRITTEN} ({listed(sorted(map(_shown, self.strange)))})"
        problems = list(self.flaws)
        yield from problems[:5]
        if problems:
            return
        try:
            nodes = sum(scope.nodes for scope in self.functions.values())  # also of functions that nothing calls
            if max(nodes, self._size(self.main, ())[0]) > MOST_NODES:
                yield f"it has more than {MOST_NODES:,} nodes, its functions expanded"
        except _ProblemError as problem:
            yield str(problem)

    def _size(self, scope: _Scope, callers: tuple[_Name, ...]) -> tuple[int, int]:
        """Return the number of nodes and the depth of a scope after all its calls are expanded."""
        if len(callers) > DEEPEST:
            raise _ProblemError(f"functions within functions are more than {DEEPEST} deep")
        nodes, depth = scope.nodes, scope.depth
        for name, calls in scope.calls.items():
            if name not in self.functions:
                raise _ProblemError(f"it calls {_shown(name)}, which it does not hold")
            if name in callers:
                raise _ProblemError(f"the function {_shown(name)} calls itself")
            if name not in self._sizes:
                self._sizes[name] = self._size(self.functions[name], (*callers, name))
            inner_nodes, inner_depth = self._sizes[name]
            nodes += calls * inner_nodes
            depth = max(depth, scope.deepest_call[name] + 1 + inner_depth)
        if depth > DEEPEST:
            raise _ProblemError(f"graphs and functions within each other are more than {DEEPEST} deep")
        return nodes, depth


class _ProblemError(Exception):
    """The functions of a file are not acceptable."""


def _name(attributes: dict[str, str]) -> _Name:
    domain = attributes.get("domain", "")
    return "" if domain == "ai.onnx" else domain, attributes.get("name", ""), attributes.get("overload", "")


def _shown(name: _Name) -> str:
    domain, operator, overload = name
    return named(".".join(filter(None, (domain, operator, overload))))
