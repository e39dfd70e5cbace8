/** The standard operators that a graph may hold. A test compares them with those of Python's `xlruntime`. */

// Operators that `convert` and `quantize` write.
const EMITTED = `
  Abs Add And ArgMax Cast CastLike Clip Concat Constant Cos DequantizeLinear Div Equal Exp Expand Floor
  Gather GatherElements Gelu Gemm Greater GreaterOrEqual Identity LayerNormalization Less LessOrEqual Log
  LogSoftmax Loop MatMul Max Min Mod Mul Neg NonZero Not Or Pad Pow QuantizeLinear Range Reciprocal
  ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape ScatterElements ScatterND Shape Sin Slice
  Softmax Split Sqrt Squeeze Sub TopK Transpose Unsqueeze Where`;
// Operators for other architectures: no side effects, and work bounded by the sizes of their inputs.
const OTHERS = `
  Acos Asin Atan Attention AveragePool BatchNormalization BitShift BitwiseAnd BitwiseNot BitwiseOr
  BitwiseXor Ceil Celu ConstantOfShape Conv Cosh CumSum DepthToSpace Einsum Elu Erf EyeLike Flatten GatherND
  GlobalAveragePool GlobalMaxPool GroupNormalization HardSigmoid HardSwish Hardmax InstanceNormalization
  IsInf IsNaN LeakyRelu LpNormalization MaxPool Mean MeanVarianceNormalization Mish OneHot PRelu
  RMSNormalization ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare RotaryEmbedding Round Selu
  Sigmoid Sign Sinh Size Softplus Softsign SpaceToDepth Sum Swish Tan Tanh ThresholdedRelu Tile Trilu Xor`;

export const OPERATORS: ReadonlySet<string> = new Set(`${EMITTED} ${OTHERS}`.trim().split(/\s+/));
