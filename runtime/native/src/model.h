// An open bundle: it runs steps, and makes the memory that they carry.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bundle_files.h"
#include "manifest.h"
#include "memory.h"
#include "onnxruntime.h"
#include "safetensors.h"
#include "session.h"
#include "tokenizers/tokenizer.h"

namespace xlruntime {

// Safe to share between threads. Streams hold a reference to it, so it stays at its place.
class Model {
 public:
  // Throws what reading and checking a bundle throws, and ErrorCode::provider.
  Model(const std::filesystem::path& folder, const Onnxruntime& ort, const SessionOptions& options, bool check_files);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  const Bundle& bundle() const { return bundle_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const Onnxruntime& ort() const { return ort_; }

  // Throws ErrorCode::option: a value is out of range, or the bundle has no such setting.
  EvaluationSettings evaluation(const EvaluationChoice& choice) const;

  // Fresh memory. Throws ErrorCode::option.
  std::unique_ptr<StreamMemory> new_memory(const EvaluationSettings& evaluation, std::int64_t capacity);

  // Run one segment of tokens on `memory`, and advance the memory by it. `targets` are the tokens after each of them.
  // `purpose` is score, generate or detail; if the bundle has a graph for few tokens, that one runs for short segments.
  //
  // Returns the graph's outputs other than memory. Throws ErrorCode::option: the segment is too long;
  // ErrorCode::bundle.
  std::vector<Output> step(const std::string& purpose, StreamMemory& memory, const std::vector<std::int64_t>& tokens,
                           const std::vector<std::int64_t>& targets);

  // `segment`, or the longest step of the graphs for `purpose` if that is shorter.
  std::int64_t longest_step(const std::string& purpose, std::int64_t segment) const;

  // Throws ErrorCode::option: the bundle cannot list so many likeliest tokens.
  void check_detail(std::int64_t detail);

 private:
  // The graphs that compute `purpose`, the one for fewest tokens first.
  std::vector<const std::pair<std::string, Graph>*> graphs_for(const std::string& purpose) const;
  const std::string& graph_for(const std::string& purpose, std::int64_t segment) const;

  const Session& session(const std::string& name);
  const Session* opened_session(const std::string& name);
  std::unique_ptr<Session> open(const std::string& name);
  std::shared_ptr<const Constants> constants(const EvaluationSettings& evaluation, std::int64_t capacity);

  // The numbers that a set of constants was computed from.
  using ConstantsKey = std::vector<std::int64_t>;

  const std::filesystem::path folder_;
  const Onnxruntime& ort_;
  const SessionOptions options_;
  const Bundle bundle_;
  BundleFiles files_;
  std::unique_ptr<Tokenizer> tokenizer_;
  NamedList<HeldTensor> first_values_;
  std::mutex opening_;  // held while a graph opens, which may take seconds, and for constants_
  std::mutex lock_;     // of sessions_
  std::map<std::string, std::unique_ptr<Session>> sessions_;
  std::vector<std::pair<ConstantsKey, std::shared_ptr<const Constants>>> constants_;  // the newest last
};

// The output of this name. The manifest was checked, so every graph has the outputs of its purpose.
const Output& output_of(const std::vector<Output>& outputs, const char* name);

}  // namespace xlruntime
