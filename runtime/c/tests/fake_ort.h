// A stand-in for ONNX Runtime, so that test programs run kernels without it, for example under sanitizers.
//
// It has the functions of the table that kernels call during a run. Tasks run on threads of their own. A run fails if a task
// computes with subnormal numbers or changes how its thread computes.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../kernels/kernel.h"

struct OrtStatus {
  std::string text;
};
struct OrtValue {
  int type = ort::kAny;
  std::vector<int64_t> shape;
  void* data = nullptr;
  std::unique_ptr<char[]> own;
};
struct OrtTensorTypeAndShapeInfo {
  int type;
  std::vector<int64_t> shape;
};
struct OrtKernelContext {
  std::vector<OrtValue> inputs, outputs;
  std::vector<size_t> sizes;  // of an element of each output
  std::vector<void*> bound;   // the caller's buffer for each output, or null
  int threads = 1;
};

namespace fake {

// What a thread's processor notes of subnormal numbers from here on, in the register MXCSR; elsewhere than on x86-64 nothing.
class FloatingPoint {
 public:
#if defined(__x86_64__)
  FloatingPoint() { _mm_setcsr(control_); }
  // Return what is wrong, or null.
  const char* problem() const {
    const unsigned now = _mm_getcsr();
    if ((now & ~kFlags) != control_) return "the control bits of MXCSR have changed";
    if ((now & kDenormalOperand) != 0) return "an operand is subnormal";
    return (now & kUnderflow) != 0 ? "a result is subnormal" : nullptr;
  }

 private:
  static constexpr unsigned kFlags = 0x3F, kDenormalOperand = 0x02, kUnderflow = 0x10;
  const unsigned control_ = _mm_getcsr() & ~kFlags;
#else
  const char* problem() const { return nullptr; }
#endif
};

inline OrtStatus* create_status(int, const char* text) { return new OrtStatus{text}; }
inline void release_status(OrtStatus* status) { delete status; }
inline OrtStatus* get_input(const OrtKernelContext* run, size_t index, const OrtValue** value) {
  *value = &run->inputs.at(index);
  return nullptr;
}
inline OrtStatus* get_output(OrtKernelContext* run, size_t index, const int64_t* shape, size_t rank, OrtValue** value) {
  OrtValue& made = run->outputs.at(index);
  made.shape.assign(shape, shape + rank);
  size_t bytes = run->sizes.at(index);
  for (int64_t size : made.shape) bytes *= static_cast<size_t>(size);
  made.data = run->bound.at(index);
  if (made.data == nullptr) {
    made.own.reset(new char[bytes + 1]);
    memset(made.own.get(), 0xFF, bytes + 1);  // NaN: a number that a kernel forgets to write is seen
    made.data = made.own.get();
  }
  *value = &made;
  return nullptr;
}
inline OrtStatus* get_shape(const OrtValue* value, OrtTensorTypeAndShapeInfo** info) {
  *info = new OrtTensorTypeAndShapeInfo{value->type, value->shape};
  return nullptr;
}
inline void release_shape(OrtTensorTypeAndShapeInfo* info) { delete info; }
inline OrtStatus* get_type(const OrtTensorTypeAndShapeInfo* info, int* type) {
  *type = info->type;
  return nullptr;
}
inline OrtStatus* get_rank(const OrtTensorTypeAndShapeInfo* info, size_t* rank) {
  *rank = info->shape.size();
  return nullptr;
}
inline OrtStatus* get_sizes(const OrtTensorTypeAndShapeInfo* info, int64_t* sizes, size_t rank) {
  for (size_t axis = 0; axis < rank; ++axis) sizes[axis] = info->shape.at(axis);
  return nullptr;
}
inline OrtStatus* get_data(OrtValue* value, void** data) {
  *data = value->data;
  return nullptr;
}
inline OrtStatus* parallel(const OrtKernelContext* run, void (*task)(void*, size_t), size_t tasks, size_t, void* data) {
  std::atomic<size_t> next{0};
  std::atomic<const char*> problem{nullptr};
  auto work = [&] {
    const FloatingPoint numbers;
    for (size_t now = next++; now < tasks; now = next++) task(data, now);
    if (numbers.problem() != nullptr) problem = numbers.problem();
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < run->threads; ++thread) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  return problem == nullptr ? nullptr : create_status(0, problem);
}

template <typename Entry, typename Function>
void set(std::vector<void*>& table, Function* function) {
  table.at(Entry::index) = reinterpret_cast<void*>(function);
}

// Return the table of functions.
inline const OrtApi* api() {
  static const std::vector<void*> table = [] {
    std::vector<void*> made(300);
    set<ort::CreateStatus>(made, create_status);
    set<ort::ReleaseStatus>(made, release_status);
    set<ort::KernelContextGetInput>(made, get_input);
    set<ort::KernelContextGetOutput>(made, get_output);
    set<ort::GetTensorTypeAndShape>(made, get_shape);
    set<ort::ReleaseTensorTypeAndShapeInfo>(made, release_shape);
    set<ort::GetTensorElementType>(made, get_type);
    set<ort::GetDimensionsCount>(made, get_rank);
    set<ort::GetDimensions>(made, get_sizes);
    set<ort::GetTensorMutableData>(made, get_data);
    set<ort::KernelContextParallelFor>(made, parallel);
    return made;
  }();
  return reinterpret_cast<const OrtApi*>(table.data());
}

// One run of a kernel, with copies of the inputs in memory of exactly their size.
class Run {
 public:
  template <typename T>
  void input(std::vector<int64_t> shape, const std::vector<T>& numbers, int type = ort::kAny) {
    OrtValue value;
    value.type = type;
    value.shape = std::move(shape);
    const size_t bytes = numbers.size() * sizeof(T);
    value.own.reset(new char[bytes]);
    if (bytes > 0) memcpy(value.own.get(), numbers.data(), bytes);
    value.data = value.own.get();
    context_.inputs.push_back(std::move(value));
  }
  // Give an input another shape; its numbers stay.
  void reshape(size_t index, std::vector<int64_t> shape) { context_.inputs.at(index).shape = std::move(shape); }
  // Declare an output with elements of `size` bytes; `input` is the input whose buffer it shares, or -1.
  void output(size_t size, int input = -1) {
    context_.sizes.push_back(size);
    context_.bound.push_back(input < 0 ? nullptr : context_.inputs.at(static_cast<size_t>(input)).data);
    context_.outputs.emplace_back();
  }
  void threads(int count) { context_.threads = count; }

  // Return the text of the error, or an empty one.
  template <typename Kernel>
  std::string operator()(const Kernel& kernel) {
    xlexport::Context run{api(), &context_};
    const FloatingPoint numbers;
    const std::unique_ptr<OrtStatus> status(kernel.compute(run));
    if (status != nullptr) return status->text;
    return numbers.problem() == nullptr ? "" : numbers.problem();
  }
  template <typename T>
  const T* result(size_t index) const {
    return static_cast<const T*>(context_.outputs.at(index).data);
  }
  const std::vector<int64_t>& shape(size_t index) const { return context_.outputs.at(index).shape; }

 private:
  OrtKernelContext context_;
};

}  // namespace fake
