"""The inert records that stand for objects of a pickle, and the one table of names that it may refer to.

None of the names is ever imported or called. Calls of a few become plain values: a builder gets the machine, which
counts what is made, and the arguments. Its TypeError or ValueError says that they are damaged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xlruntime.limits import Budget

__all__ = ["BUILDERS", "BadFileError", "Name", "Record", "check_tree", "is_known", "known_as"]

DEEPEST = 100
LARGEST_TREE = 5_000_000  # the two tables and the counts of 800,000 words are half of it


class BadFileError(Exception):
    """A file is damaged or unsafe; the message continues a sentence that begins with the file's name."""

    def __init__(self, message: str, hint: str = "Copy or save it again.") -> None:
        super().__init__(f"{message}.")
        self.hint = hint


@dataclass(eq=False, slots=True, repr=False)
class Record:
    """An inert stand-in for an object, a function's result or a class, with only its description in the pickle.

    Attributes:
        name: its class or function, `mem_transformer.MemTransformerLM`.
        arguments: what it would have been made from.
        state: what it would have been given as state, usually its attributes by name; `{}` if none.
        items: its elements, if it is a list or dict of some kind.
    """

    name: str
    arguments: tuple[Any, ...] = ()
    state: Any = field(default_factory=dict)
    items: Any = None

    def get(self, attribute: str, default: Any = None) -> Any:
        """Return an attribute from its state."""
        return self.state.get(attribute, default) if isinstance(self.state, dict) else default

    def __repr__(self) -> str:
        """Return its name alone: shared contents, written out at every place, may be more than memory holds."""
        return f"<{self.name[:60]!a}>"


class Name(Record):
    """A class or function that a pickle refers to; as a value, a record without contents."""

    __slots__ = ()


CONTAINERS: Mapping[type[Any], Callable[[Any], Collection[Any]]] = {  # and what they contain
    list: lambda value: value,
    tuple: lambda value: value,
    dict: dict.values,
    Record: lambda value: (value.arguments, value.state, value.items),
}


def check_tree(root: Any, budget: Budget) -> None:
    """Refuse a tree that contains itself, is deep, or is huge with shared parts counted at every place.

    A reader may then follow it by simple recursion, and ends in time.
    """
    size, level = 0, [root]
    for _ in range(DEEPEST + 1):
        branches = [CONTAINERS[type(value)](value) for value in level if type(value) in CONTAINERS]
        if not branches:
            return
        step = len(branches) + sum(map(len, branches))
        budget.charge(operations=step)
        size += step
        if size > LARGEST_TREE:
            raise BadFileError("its pickle expands to far more than any checkpoint holds")
        level = [part for parts in branches for part in parts if type(part) in CONTAINERS]
    raise BadFileError("its pickle has an object that contains itself, or is nested more deeply than any checkpoint")


# Classes of model code that people copied and moved about: known by their own name in any module.
CLASSES = """
    MemTransformerLM AdaptiveEmbedding PositionalEmbedding PositionwiseFF ProjectedAdaptiveLogSoftmax
    DecoderLayer RelLearnableDecoderLayer RelPartialLearnableDecoderLayer BalancedDataParallel
    MultiHeadAttn RelMultiHeadAttn RelLearnableMultiHeadAttn RelPartialLearnableMultiHeadAttn
    Vocab OpenAIVocab GPT2Tokenizer Corpus LMCorpus TransfoXLCorpus TransfoXLTokenizer
    """.split()  # noqa: SIM905 -- a table

NAMES = {  # modules (several if it moved): the names in each, besides those of BUILDERS
    "builtins": "object complex int float str bool list tuple unicode long",
    "argparse": "Namespace",
    "pathlib": "Path PosixPath PurePosixPath WindowsPath PureWindowsPath",
    "re": "_compile RegexFlag",
    "_regex regex._regex": "compile",
    "numpy": "dtype ndarray",
    "numpy.core.multiarray": "_reconstruct",
    "numpy.core.numeric": "_frombuffer",
    "trax.history trax.supervised.history": "History",
    "torch": """
        Tensor device dtype FloatStorage HalfStorage BFloat16Storage DoubleStorage
        LongStorage IntStorage ShortStorage CharStorage ByteStorage BoolStorage
        float float16 float32 float64 half double bfloat16 int8 int16 int32 int64 short int long uint8 bool""",
    "torch.storage": "UntypedStorage TypedStorage _TypedStorage _UntypedStorage",
    "torch._tensor": "_rebuild_from_type_v2",
    "torch._utils": "_rebuild_tensor _rebuild_tensor_v2 _rebuild_parameter _rebuild_parameter_with_state",
    "torch.nn": """
        Parameter ParameterList ParameterDict ModuleList ModuleDict Sequential DataParallel
        Linear Identity Embedding LayerNorm Dropout ReLU GELU""",
    "apex.normalization.fused_layer_norm apex.normalization": "FusedLayerNorm",
    "sacremoses sacremoses.normalize": "MosesPunctNormalizer",
    "sacremoses sacremoses.tokenize": "MosesTokenizer MosesDetokenizer",
    "sacremoses.corpus": "Perluniprops NonbreakingPrefixes",
    "transformers.tokenization_utils transformers.tokenization_utils_base": "Trie AddedToken",
    "tokenizers tokenizers.tokenizers": "AddedToken",
    "apex.amp.scaler": "LossScaler",
    "apex.fp16_utils.loss_scaler": "LossScaler DynamicLossScaler",
}
MOVED = {"__builtin__": "builtins", "copy_reg": "copyreg", "numpy._core": "numpy.core"}  # beginnings of modules
TORCH_NN = re.compile(r"^torch\.nn\.(parameter|modules\.\w+|parallel(\.data_parallel)?)\.")  # parts of torch.nn
NUMPY_NUMBERS = "f8 f4 f2 i8 i4 i2 i1 u8 u4 u2 u1 b1".split()  # noqa: SIM905 -- a table


def _dict(machine: Any, items: Any = ()) -> Any:
    if type(items) is dict:
        return items
    return machine.new(dict, [part for key, value in items for part in (key, value)])


def _bytes(machine: Any, text: Any = b"", encoding: Any = "latin1") -> Any:
    """Make bytes as Python 3 writes them for Python 2; long ones stay a view of the file, in a record."""
    if type(text) is memoryview:
        return Record("_codecs.encode", (text, encoding))
    if type(text) not in (bytes, str) or encoding not in ("latin1", "latin-1"):
        raise ValueError("not how bytes are written")
    return machine.value(text.encode("latin-1") if type(text) is str else text)


def _reconstructed(_machine: Any, kind: Any, _base: Any, state: Any = None) -> Record:
    """Make the record of any object as protocols 0 and 1 write it."""
    if not isinstance(kind, Record):
        raise TypeError("not a class")
    return Record(kind.name, () if state is None else (state,))


def _numpy_number(_machine: Any, dtype: Any, data: Any) -> Any:
    kind = dtype.arguments[0] if isinstance(dtype, Record) and dtype.arguments else None
    if kind not in NUMPY_NUMBERS or type(data) is not bytes or len(data) != int(kind[1:]):
        return Record("numpy.core.multiarray.scalar", (dtype, data))
    return np.frombuffer(data, "<" + kind)[0].item()


BUILDERS: Mapping[str, Callable[..., Any]] = {
    "collections.OrderedDict": _dict,
    "collections.Counter": _dict,
    "collections.defaultdict": lambda machine, _factory=None, items=(): _dict(machine, items),
    "torch.Size": lambda machine, sizes=(): tuple(machine.new(list, sizes)),
    "builtins.dict": _dict,
    "builtins.set": lambda machine, items=(): machine.new(set, items),
    "builtins.frozenset": lambda machine, items=(): frozenset(machine.new(set, items)),
    "builtins.bytes": _bytes,
    "builtins.bytearray": _bytes,
    "_codecs.encode": _bytes,
    "copyreg._reconstructor": _reconstructed,
    "numpy.core.multiarray.scalar": _numpy_number,
}
ALLOWED = {
    *BUILDERS,
    *(f"{module}.{name}" for modules, names in NAMES.items() for module in modules.split() for name in names.split()),
}


def known_as(name: str) -> str:
    """Return a `module.name` as the table has it, if its module was called otherwise once or is called so now."""
    for other, module in MOVED.items():
        if name.startswith(f"{other}."):
            name = module + name.removeprefix(other)
    return TORCH_NN.sub("torch.nn.", name)


def is_known(name: str) -> bool:
    """Return whether a pickle may refer to `module.name`."""
    return known_as(name) in ALLOWED or name.rpartition(".")[2] in CLASSES
