// What a kernel sees of ONNX Runtime: attributes, tensors and threads, and how an operator is described to it.
//
// A kernel is a class with these members:
//   static constexpr const char* name, and arrays `inputs` and `outputs` of ort::ElementType;
//   OrtStatus* create(const Attributes&), which reads attributes, if it has any;
//   OrtStatus* compute(Context&) const, which returns null or an error.
// Kernels keep no state between runs, so any number of threads may run them.
#pragma once

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "../ort/api.h"

namespace xlexport {

constexpr int kMostAxes = 8;

// Return an error with a formatted text: what, expected, found.
__attribute__((format(printf, 2, 3))) inline OrtStatus* failure(const OrtApi* api, const char* format, ...) {
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return ort::CreateStatus::call(api, ort::kInvalidArgument, text);
}

// Return an error unless a number is in a range.
inline OrtStatus* require(const OrtApi* api, const char* what, int64_t number, int64_t least, int64_t most = INT64_MAX) {
  if (least <= number && number <= most) return nullptr;
  const long long found = number, first = least, last = most;
  if (most == INT64_MAX) return failure(api, "%s is %lld, expected at least %lld", what, found, first);
  return failure(api, "%s is %lld, expected %lld to %lld", what, found, first, last);
}

// A tensor of a run: its shape and its numbers, which lie row by row.
struct Tensor {
  const void* data = nullptr;
  int type = ort::kAny;
  int rank = 0;
  int64_t shape[kMostAxes] = {};

  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
  int64_t count() const {
    int64_t product = 1;
    for (int axis = 0; axis < rank; ++axis) product *= shape[axis];
    return product;
  }
};

// Return whether all numbers are at least 0 and below `limit`, which is below 2^63.
inline bool all_below(const int64_t* numbers, int64_t count, int64_t limit) {
  uint64_t signs = 0;  // the highest bit is set if a number is negative, or larger than limit - 1
  for (int64_t k = 0; k < count; ++k) {
    const uint64_t number = static_cast<uint64_t>(numbers[k]);
    signs |= number | (static_cast<uint64_t>(limit - 1) - number);
  }
  return signs >> 63 == 0;
}

// The attributes of a node.
struct Attributes {
  const OrtApi* api;
  const OrtKernelInfo* info;

  OrtStatus* read(const char* name, int64_t* value) const {
    return ort::KernelInfoGetAttributeInt64::call(api, info, name, value);
  }
  OrtStatus* read(const char* name, float* value) const {
    return ort::KernelInfoGetAttributeFloat::call(api, info, name, value);
  }
};

// One run of a kernel.
struct Context {
  const OrtApi* api;
  OrtKernelContext* context;

  // Read an input; it stays valid during the run.
  OrtStatus* input(size_t index, Tensor* tensor) const {
    const OrtValue* value = nullptr;
    if (OrtStatus* status = ort::KernelContextGetInput::call(api, context, index, &value)) return status;
    if (value == nullptr) return failure(api, "input %d is missing", static_cast<int>(index));
    OrtTensorTypeAndShapeInfo* info = nullptr;
    if (OrtStatus* status = ort::GetTensorTypeAndShape::call(api, value, &info)) return status;
    size_t rank = 0;
    OrtStatus* status = ort::GetDimensionsCount::call(api, info, &rank);
    if (status == nullptr && rank > kMostAxes) {
      const int axes = static_cast<int>(rank);
      status = failure(api, "input %d has %d axes, expected at most %d", static_cast<int>(index), axes, kMostAxes);
    }
    if (status == nullptr) status = ort::GetDimensions::call(api, info, tensor->shape, rank);
    if (status == nullptr) status = ort::GetTensorElementType::call(api, info, &tensor->type);
    ort::ReleaseTensorTypeAndShapeInfo::call(api, info);
    if (status != nullptr) return status;
    tensor->rank = static_cast<int>(rank);
    void* data = nullptr;
    status = ort::GetTensorMutableData::call(api, const_cast<OrtValue*>(value), &data);
    tensor->data = data;
    return status;
  }

  // Make an output of this shape; its numbers are not set. The buffer may be that of an input if the caller bound both.
  template <typename T>
  OrtStatus* output(size_t index, const int64_t* shape, size_t rank, T** data) const {
    OrtValue* value = nullptr;
    if (OrtStatus* status = ort::KernelContextGetOutput::call(api, context, index, shape, rank, &value)) return status;
    void* found = nullptr;
    OrtStatus* status = ort::GetTensorMutableData::call(api, value, &found);
    *data = static_cast<T*>(found);
    return status;
  }

  // Call `work(task)` for each task of 0 … tasks - 1 on the threads of the session.
  template <typename Work>
  OrtStatus* parallel(size_t tasks, Work work) const {
    auto call = [](void* given, size_t task) { (*static_cast<Work*>(given))(task); };
    if (tasks == 0) return nullptr;
    if (tasks == 1) {
      work(0);
      return nullptr;
    }
    return ort::KernelContextParallelFor::call(api, context, call, tasks, 0, &work);
  }

  // Return an error unless the input has this number of axes.
  OrtStatus* require_rank(const char* input, const Tensor& tensor, int rank) const {
    if (tensor.rank == rank) return nullptr;
    return failure(api, "%s has %d axes, expected %d", input, tensor.rank, rank);
  }

  // Return an error unless an axis of an input has this size.
  OrtStatus* require_axis(const char* input, const Tensor& tensor, int axis, int64_t size) const {
    if (tensor.shape[axis] == size) return nullptr;
    return failure(api, "axis %d of %s is %lld, expected %lld", axis, input, static_cast<long long>(tensor.shape[axis]),
                   static_cast<long long>(size));
  }
};

// Return from the calling function with the error that an expression gives, if it gives one.
#define XLEXPORT_TRY(expression) \
  do {                           \
    if (OrtStatus* status_ = (expression)) return status_; \
  } while (false)

// A kernel object, with the table of functions that its session gave it. Kernels are plain data: nothing is destroyed.
template <typename Kernel>
struct Instance {
  const OrtApi* api;
  Kernel kernel;
};

// Describe a kernel class to ONNX Runtime.
template <typename Kernel>
constexpr OrtCustomOp described() {
  OrtCustomOp made = {};
  made.version = 16;
  made.GetName = [](const OrtCustomOp*) { return Kernel::name; };
  made.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  made.GetInputType = [](const OrtCustomOp*, size_t index) { return static_cast<int>(Kernel::inputs[index]); };
  made.GetInputTypeCount = [](const OrtCustomOp*) { return sizeof(Kernel::inputs) / sizeof(Kernel::inputs[0]); };
  made.GetOutputType = [](const OrtCustomOp*, size_t index) { return static_cast<int>(Kernel::outputs[index]); };
  made.GetOutputTypeCount = [](const OrtCustomOp*) { return sizeof(Kernel::outputs) / sizeof(Kernel::outputs[0]); };
  made.GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return 0; };  // required
  made.GetOutputCharacteristic = [](const OrtCustomOp*, size_t) { return 0; };
  made.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return 0; };  // the provider's own
  made.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 0; };
  made.GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
  made.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 0; };
  made.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  made.CreateKernelV2 = [](const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** kernel) -> OrtStatus* {
    auto* instance = static_cast<Instance<Kernel>*>(malloc(sizeof(Instance<Kernel>)));
    if (instance == nullptr) return failure(api, "%s: no memory", Kernel::name);
    *instance = {api, Kernel{}};
    if (OrtStatus* status = instance->kernel.create(Attributes{api, info})) {
      free(instance);
      return status;
    }
    *kernel = instance;
    return nullptr;
  };
  made.KernelComputeV2 = [](void* kernel, OrtKernelContext* context) -> OrtStatus* {
    const auto* instance = static_cast<const Instance<Kernel>*>(kernel);
    Context run{instance->api, context};
    return instance->kernel.compute(run);
  };
  made.KernelDestroy = [](void* kernel) { free(kernel); };
  return made;
}

template <typename Kernel>
constexpr OrtCustomOp kDescribed = described<Kernel>();

template <typename Kernel>
constexpr const OrtCustomOp* custom_op() {
  return &kDescribed<Kernel>;
}

}  // namespace xlexport
