// A graph of a bundle, opened with ONNX Runtime.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "bundle.h"
#include "onnxruntime.h"

namespace xlruntime {

// How sessions of a model are opened.
struct SessionOptions {
  int threads = 0;      // of one step; 0: ONNX Runtime chooses
  bool kernels = true;  // whether our kernels compute our operators, not their functions of standard operators
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

// What a graph returned in memory of its own. Type and shape are those of the bundle.
struct Result {
  const Tensor* output;
  Value value;
  std::vector<std::int64_t> shape;
  std::optional<Buffer> joined;  // in place of `value`: the results of several graphs, one after the other

  template <class T>
  const T* data() const {
    return static_cast<const T*>(joined ? joined->data() : value.data());
  }
};

// Safe to share between threads.
class Session {
 public:
  // Throws XLR_ERROR_BUNDLE_GRAPH: ONNX Runtime cannot load the graph, it reads other files than those of the bundle,
  // or its inputs or outputs are not those of bundle.json.
  Session(const Onnxruntime& ort, const std::filesystem::path& folder, const Bundle& bundle, const Graph& graph,
          const SessionOptions& options);

  const Graph& graph() const { return graph_; }

  // Run the graph, which writes all outputs in place: tensors for each of them. Throws as the other.
  void run(const Bindings& inputs, const Bindings& outputs) const;

  // Run the graph. `inputs` holds what it takes; `written` are its outputs that are memory. Returns all others, in the
  // order of the bundle. Sizes of batch and segment of 0 are free.
  //
  // Throws XLR_ERROR_BUNDLE_GRAPH: the graph cannot run, or a result is not as described; std::bad_alloc.
  std::vector<Result> run(const Bindings& inputs, const Bindings& written, std::int64_t batch,
                          std::int64_t segment) const;

 private:
  void call(const Bindings& inputs, const std::vector<const char*>& names, OrtValue** values) const;
  void require_names() const;
  void require_described(Result& result, std::int64_t batch, std::int64_t segment) const;
  template <class Count, class Name>
  std::set<std::string> names() const;

  const Onnxruntime& ort_;
  const Bundle& bundle_;
  const Graph& graph_;
  const std::string file_;  // for messages
  std::unique_ptr<OrtSession, Release<ort::ReleaseSession>> session_{nullptr, {&ort_}};
};

}  // namespace xlruntime
