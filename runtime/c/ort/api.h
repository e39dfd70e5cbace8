// The parts of ONNX Runtime's C interface that this project uses, in our own declarations.
//
// `OrtApi` is a table of function pointers that only grows: an entry keeps its index in every later version. So each
// function here is an index and a signature. A test compares the indices with the official header if it finds one.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define ORT_VERSION_OF_TABLE 17  // of the newest entry used by kernels: ONNX Runtime 1.17

extern "C" {
struct OrtApi;
struct OrtCustomOpDomain;
struct OrtKernelContext;
struct OrtKernelInfo;
struct OrtSessionOptions;
struct OrtStatus;
struct OrtTensorTypeAndShapeInfo;
struct OrtValue;

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);  // null if this ONNX Runtime is older than the version
  const char* (*GetVersionString)();
};

// A custom operator as ONNX Runtime calls it. Fields after `version` are in the order of their introduction.
struct OrtCustomOp {
  uint32_t version;  // 16: KernelComputeV2 is the last field
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  int (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  int (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  int (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
};
}

namespace ort {

// Element types of tensors, as ONNX numbers them. An input and outputs declared as kAny are of one type.
enum ElementType : int {
  kAny = 0,
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kInt32 = 6,
  kInt64 = 7,
  kBool = 9,
  kFloat16 = 10,
  kDouble = 11,
  kBfloat16 = 16,
};

enum ErrorCode : int { kFail = 1, kInvalidArgument = 2 };

template <size_t Index, typename Signature>
struct Entry;

// One function of the table.
template <size_t Index, typename Result, typename... Arguments>
struct Entry<Index, Result(Arguments...)> {
  static constexpr size_t index = Index;
  static Result call(const OrtApi* api, Arguments... arguments) {
    auto function = reinterpret_cast<Result (*)(Arguments...)>(reinterpret_cast<void* const*>(api)[Index]);
    return function(arguments...);
  }
};

using CreateStatus = Entry<0, OrtStatus*(int, const char*)>;
using CreateCustomOpDomain = Entry<26, OrtStatus*(const char*, OrtCustomOpDomain**)>;
using CustomOpDomainAdd = Entry<27, OrtStatus*(OrtCustomOpDomain*, const OrtCustomOp*)>;
using AddCustomOpDomain = Entry<28, OrtStatus*(OrtSessionOptions*, OrtCustomOpDomain*)>;
using GetTensorMutableData = Entry<51, OrtStatus*(OrtValue*, void**)>;
using GetTensorElementType = Entry<60, OrtStatus*(const OrtTensorTypeAndShapeInfo*, int*)>;
using GetDimensionsCount = Entry<61, OrtStatus*(const OrtTensorTypeAndShapeInfo*, size_t*)>;
using GetDimensions = Entry<62, OrtStatus*(const OrtTensorTypeAndShapeInfo*, int64_t*, size_t)>;
using GetTensorTypeAndShape = Entry<65, OrtStatus*(const OrtValue*, OrtTensorTypeAndShapeInfo**)>;
using KernelInfoGetAttributeFloat = Entry<85, OrtStatus*(const OrtKernelInfo*, const char*, float*)>;
using KernelInfoGetAttributeInt64 = Entry<86, OrtStatus*(const OrtKernelInfo*, const char*, int64_t*)>;
using KernelContextGetInput = Entry<90, OrtStatus*(const OrtKernelContext*, size_t, const OrtValue**)>;
using KernelContextGetOutput = Entry<91, OrtStatus*(OrtKernelContext*, size_t, const int64_t*, size_t, OrtValue**)>;
using ReleaseStatus = Entry<93, void(OrtStatus*)>;
using ReleaseTensorTypeAndShapeInfo = Entry<99, void(OrtTensorTypeAndShapeInfo*)>;
using KernelContextParallelFor = Entry<274, OrtStatus*(const OrtKernelContext*, void (*)(void*, size_t), size_t, size_t, void*)>;

}  // namespace ort
