"""The one table of names that a checkpoint's pickle may refer to. None of them is ever imported or called."""

from __future__ import annotations

import re

__all__ = ["is_known", "known_as"]

# Classes of model code that people copied and moved about: known by their own name in any module.
CLASSES = """
    MemTransformerLM AdaptiveEmbedding PositionalEmbedding PositionwiseFF ProjectedAdaptiveLogSoftmax
    DecoderLayer RelLearnableDecoderLayer RelPartialLearnableDecoderLayer BalancedDataParallel
    MultiHeadAttn RelMultiHeadAttn RelLearnableMultiHeadAttn RelPartialLearnableMultiHeadAttn
    Vocab OpenAIVocab GPT2Tokenizer Corpus LMCorpus TransfoXLCorpus TransfoXLTokenizer
    """.split()  # noqa: SIM905 -- a table

NAMES = {  # modules (several if it moved): the names in each
    "builtins": """
        object set frozenset bytearray complex int float str bool bytes list dict tuple unicode long""",
    "copyreg": "_reconstructor",
    "_codecs": "encode",
    "collections": "OrderedDict Counter defaultdict",
    "argparse": "Namespace",
    "pathlib": "Path PosixPath PurePosixPath WindowsPath PureWindowsPath",
    "re": "_compile RegexFlag",
    "_regex regex._regex": "compile",
    "numpy": "dtype ndarray",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy.core.numeric": "_frombuffer",
    "torch": """
        Size Tensor device dtype FloatStorage HalfStorage BFloat16Storage DoubleStorage
        LongStorage IntStorage ShortStorage CharStorage ByteStorage BoolStorage
        float float16 float32 float64 half double bfloat16 int8 int16 int32 int64 short int long uint8 bool""",
    "torch.storage": "UntypedStorage TypedStorage _TypedStorage _UntypedStorage",
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
ALLOWED = {f"{module}.{name}" for modules in NAMES for module in modules.split() for name in NAMES[modules].split()}


def known_as(name: str) -> str:
    """Return a `module.name` as the table has it, if its module was called otherwise once or is called so now."""
    for other, module in MOVED.items():
        if name.startswith(f"{other}."):
            name = module + name.removeprefix(other)
    return TORCH_NN.sub("torch.nn.", name)


def is_known(name: str) -> bool:
    """Return whether a pickle may refer to `module.name`."""
    return known_as(name) in ALLOWED or name.rpartition(".")[2] in CLASSES
