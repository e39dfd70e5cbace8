// The standard operators that a graph may hold: those of xlruntime/graph_gate.py, in order.
#pragma once

namespace xlruntime {

inline constexpr const char* kOperators[] = {
    "Abs", "Acos", "Add", "And", "ArgMax", "Asin", "Atan", "Attention", "AveragePool", "BatchNormalization",
    "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "CastLike", "Ceil", "Celu", "Clip",
    "Concat", "Constant", "ConstantOfShape", "Conv", "Cos", "Cosh", "CumSum", "DepthToSpace", "DequantizeLinear",
    "Div", "Einsum", "Elu", "Equal", "Erf", "Exp", "Expand", "EyeLike", "Flatten", "Floor", "Gather",
    "GatherElements", "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "Greater", "GreaterOrEqual",
    "GroupNormalization", "HardSigmoid", "HardSwish", "Hardmax", "Identity", "InstanceNormalization", "IsInf",
    "IsNaN", "LayerNormalization", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "Loop", "LpNormalization",
    "MatMul", "Max", "MaxPool", "Mean", "MeanVarianceNormalization", "Min", "Mish", "Mod", "Mul", "Neg", "NonZero",
    "Not", "OneHot", "Or", "PRelu", "Pad", "Pow", "QuantizeLinear", "RMSNormalization", "Range", "Reciprocal",
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "RotaryEmbedding", "Round", "ScatterElements", "ScatterND",
    "Selu", "Shape", "Sigmoid", "Sign", "Sin", "Sinh", "Size", "Slice", "Softmax", "Softplus", "Softsign",
    "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Tile",
    "TopK", "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
};

}  // namespace xlruntime
