"""The one table of names that a checkpoint's pickle may refer to. None of them is ever imported or called."""

from __future__ import annotations

__all__ = ["is_known"]

# Classes of model code that people copied and moved about: known by their own name, whatever module they are in.
CLASSES = """
    MemTransformerLM AdaptiveEmbedding PositionalEmbedding PositionwiseFF ProjectedAdaptiveLogSoftmax
    DecoderLayer RelLearnableDecoderLayer RelPartialLearnableDecoderLayer
    MultiHeadAttn RelMultiHeadAttn RelLearnableMultiHeadAttn RelPartialLearnableMultiHeadAttn
    BalancedDataParallel
    Vocab OpenAIVocab GPT2Tokenizer Corpus LMCorpus TransfoXLCorpus TransfoXLTokenizer
    """.split()  # noqa: SIM905 -- a table

# module (several where it moved): its names.
NAMES = {
    "builtins __builtin__": """
        object set frozenset bytearray complex int float str bool bytes list dict tuple unicode long
        """,
    "copyreg copy_reg": "_reconstructor",
    "_codecs": "encode",
    "collections": "OrderedDict Counter defaultdict",
    "argparse": "Namespace",
    "pathlib": "Path PosixPath PurePosixPath WindowsPath PureWindowsPath",
    "re": "_compile RegexFlag",
    "_regex regex._regex": "compile",
    "numpy": "dtype ndarray",
    "numpy.core.multiarray numpy._core.multiarray": "_reconstruct scalar",
    "numpy.core.numeric numpy._core.numeric": "_frombuffer",
    "torch": """
        Size Tensor device dtype
        float float16 float32 float64 half double bfloat16 int8 int16 int32 int64 short int long uint8 bool
        FloatStorage HalfStorage BFloat16Storage DoubleStorage
        LongStorage IntStorage ShortStorage CharStorage ByteStorage BoolStorage
        """,
    "torch.storage": "UntypedStorage TypedStorage _TypedStorage _UntypedStorage",
    "torch._utils": "_rebuild_tensor _rebuild_tensor_v2 _rebuild_parameter _rebuild_parameter_with_state",
    "torch._tensor": "_rebuild_from_type_v2",
    "torch.nn.parameter torch.nn": "Parameter ParameterList",
    "torch.nn.modules.container torch.nn": "ModuleList ParameterList ParameterDict Sequential ModuleDict",
    "torch.nn.modules.linear torch.nn": "Linear Identity",
    "torch.nn.modules.sparse torch.nn": "Embedding",
    "torch.nn.modules.normalization torch.nn": "LayerNorm",
    "apex.normalization.fused_layer_norm apex.normalization": "FusedLayerNorm",
    "torch.nn.modules.dropout torch.nn": "Dropout",
    "torch.nn.modules.activation torch.nn": "ReLU GELU",
    "torch.nn.parallel.data_parallel torch.nn.parallel torch.nn": "DataParallel",
    "sacremoses sacremoses.normalize": "MosesPunctNormalizer",
    "sacremoses sacremoses.tokenize": "MosesTokenizer MosesDetokenizer",
    "sacremoses.corpus": "Perluniprops NonbreakingPrefixes",
    "transformers.tokenization_utils transformers.tokenization_utils_base": "Trie AddedToken",
    "tokenizers tokenizers.tokenizers": "AddedToken",
    "apex.amp.scaler": "LossScaler",
    "apex.fp16_utils.loss_scaler": "LossScaler DynamicLossScaler",
}

ALLOWED = {
    f"{module}.{name}" for modules, names in NAMES.items() for module in modules.split() for name in names.split()
}


def is_known(name: str) -> bool:
    """Whether a pickle may refer to `module.name`."""
    return name in ALLOWED or name.rpartition(".")[2] in CLASSES
