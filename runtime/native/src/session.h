// A graph of a bundle, opened with ONNX Runtime.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "manifest.h"
#include "onnxruntime.h"

namespace xlruntime {

// How sessions of a model are opened.
struct SessionOptions {
  int threads = 0;      // of one step; 0: ONNX Runtime chooses
  bool kernels = true;  // whether our kernels compute our operators, not their bodies
};

// Named tensors that a graph reads, or that it writes in place. Names and values must outlive the run.
class Bindings {
 public:
  void add(const std::string& name, const OrtValue* value) {
    names.push_back(name.c_str());
    values.push_back(value);
  }

  std::vector<const char*> names;
  std::vector<const OrtValue*> values;
};

// An output that a graph returned in memory of its own. Type and shape are those of the bundle.
struct Output {
  const std::string* name;
  Value value;
  std::string dtype;
  std::vector<std::int64_t> shape;

  template <class T>
  const T* data() const {
    return static_cast<const T*>(value.data());
  }
};

// Safe to share between threads.
class Session {
 public:
  // Throws ErrorCode::bundle: xlexport cannot have written the graph, or ONNX Runtime cannot load it.
  Session(const Onnxruntime& ort, const std::filesystem::path& folder, const Bundle& bundle, const Graph& graph,
          const SessionOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The graph's own spec from the file's metadata.
  std::optional<std::string> metadata() const;

  bool takes(const std::string& name) const { return inputs_.count(name) != 0; }
  const std::string& file() const { return file_; }

  // Run the graph. `inputs` holds what it takes; `written` are its outputs that are memory. Returns all others, in
  // the order of the bundle, after their types and shapes were compared. Sizes of batch and segment of 0 are free.
  //
  // Throws ErrorCode::bundle: the graph cannot run, or an output is not as described; std::bad_alloc.
  std::vector<Output> run(const Bindings& inputs, const Bindings& written, std::int64_t batch,
                          std::int64_t segment) const;

 private:
  const Onnxruntime& ort_;
  std::string file_;  // for messages
  std::unordered_set<std::string> inputs_;
  std::vector<const Tensor*> returned_;  // outputs that are not memory
  OrtSession* session_ = nullptr;

  void require_outputs(const Graph& graph) const;
};

}  // namespace xlruntime
