// ONNX Runtime, loaded when the first bundle opens, and the tensors that it reads and writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../ort/runtime_api.h"

namespace xlruntime {

// What ONNX Runtime says of a call that failed, in one line.
class OrtFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Value;

// A library of ONNX Runtime. It stays loaded until the process ends. Safe to share between threads.
class Onnxruntime {
 public:
  // Load the library `file`; empty: the one that XLRUNTIME_ONNXRUNTIME names, else the one that the system finds.
  //
  // Throws XLR_ERROR_PROVIDER: it cannot be loaded, or is too old.
  static const Onnxruntime& load(const std::string& file);

  const std::string& version() const { return version_; }
  bool is_at_least(const std::string& oldest) const;  // such as "1.24.1"
  const OrtApiBase* base() const { return base_; }
  const OrtEnv* env() const { return env_; }
  OrtAllocator* allocator() const { return allocator_; }

  // Call a function of the table that returns a status. Throws OrtFailure.
  template <class Function, class... Arguments>
  void call(Arguments... arguments) const {
    check(Function::call(api_, arguments...));
  }

  // Call a function of the table that cannot fail.
  template <class Function, class... Arguments>
  void release(Arguments... arguments) const {
    Function::call(api_, arguments...);
  }

  void check(OrtStatus* status) const;

  // A tensor over `data`, which must outlive it. `dtype` is a numpy name.
  Value tensor(void* data, std::size_t nbytes, const std::vector<std::int64_t>& shape, std::string_view dtype) const;

 private:
  Onnxruntime(const OrtApiBase* base, const std::string& file);

  const OrtApiBase* base_;
  const OrtApi* api_ = nullptr;
  OrtEnv* env_ = nullptr;
  OrtMemoryInfo* cpu_ = nullptr;
  OrtAllocator* allocator_ = nullptr;
  std::string version_;
};

// Releases an object of ONNX Runtime in the end.
template <class Function>
struct Release {
  const Onnxruntime* ort;

  template <class Object>
  void operator()(Object* object) const {
    ort->release<Function>(object);
  }
};

// A tensor of ONNX Runtime, or nothing.
class Value {
 public:
  Value(const Onnxruntime& ort, OrtValue* value) : value_(value, {&ort}) {}

  OrtValue* get() const { return value_.get(); }
  bool is_tensor() const;
  // The type is a numpy name, empty if no bundle can have it.
  std::pair<std::string, std::vector<std::int64_t>> dtype_and_shape() const;
  void* data() const;

 private:
  std::unique_ptr<OrtValue, Release<ort::ReleaseValue>> value_;
};

// A tensor in memory of our own, which sessions may read and write in place.
class Buffer {
 public:
  Buffer(const Onnxruntime& ort, std::string dtype, std::vector<std::int64_t> shape);  // not yet written

  void* data() const { return data_.get(); }
  std::size_t nbytes() const { return nbytes_; }
  const std::string& dtype() const { return dtype_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  OrtValue* value() const { return value_.get(); }

  Buffer copy(const Onnxruntime& ort) const;

 private:
  struct Free {
    std::size_t nbytes;
    void operator()(void* memory) const;
  };

  std::string dtype_;
  std::vector<std::int64_t> shape_;
  std::size_t nbytes_;
  std::unique_ptr<void, Free> data_;
  Value value_;
};

// The number of elements; 1 for a scalar.
std::int64_t elements(const std::vector<std::int64_t>& shape);

}  // namespace xlruntime
