// An open bundle: it runs steps, and makes the memory that they carry.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "bundle.h"
#include "memory.h"
#include "onnxruntime.h"
#include "sampling.h"
#include "session.h"
#include "tokenizers/tokenizer.h"

namespace xlruntime {

// Safe to share between threads. Streams hold a reference to it, so it stays at its place.
class Model {
 public:
  // `digest` is that of Bundle::read. Throws what reading and checking a bundle throws, and XLR_ERROR_PROVIDER.
  Model(const std::filesystem::path& folder, const Onnxruntime& ort, const SessionOptions& options,
        const char* digest, bool check_files);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  const Bundle& bundle() const { return bundle_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const Onnxruntime& ort() const { return ort_; }
  Drawable drawable() const;
  const FirstValues& first_values() const { return first_values_; }
  void require_unchanged() { files_.require_unchanged(); }  // throws XLR_ERROR_BUNDLE_DAMAGED

  // Fresh memory. Throws XLR_ERROR_OPTION: no step fits into the capacity, or the graphs fix other sizes.
  std::unique_ptr<Memory> new_memory(const EvaluationSettings& evaluation, std::int64_t capacity);

  // Run one segment of tokens on `memory`, and advance the memory by it. `targets` are the tokens after each of them;
  // `purpose` is score, generate or detail. Graphs of a fixed length run one after the other. The caller keeps to
  // longest_step and to the memory's own bounds. Throws XLR_ERROR_OPTION: no graph takes so many tokens.
  std::vector<Result> step(const std::string& purpose, Memory& memory, const std::vector<std::int64_t>& tokens,
                           const std::vector<std::int64_t>& targets);

  // `segment`, or the longest step of the graphs for `purpose` if that is shorter.
  std::int64_t longest_step(const std::string& purpose, std::int64_t segment) const;

  // The choices of graphs for a purpose, best first, and the best one. Throws XLR_ERROR_OPTION: there is none.
  const std::vector<Choice>& choices(const std::string& purpose) const;
  const Graph& best_graph(const std::string& purpose) const { return bundle_.graphs[choices(purpose).front().graph]; }

  // The open session of a graph.
  const Session& session(const Graph& graph);

  // The likeliest tokens that graphs list. Throws XLR_ERROR_OPTION: the bundle cannot list `top` of them.
  std::int64_t check_top(std::int64_t top) const;

 private:
  const Graph& graph_for(const std::string& purpose, const Memory& memory, std::int64_t S) const;
  std::unique_ptr<Session> open(const Graph& graph);
  std::shared_ptr<const Constants> constants(const EvaluationSettings& evaluation, std::int64_t capacity);

  const std::filesystem::path folder_;
  const Onnxruntime& ort_;
  const SessionOptions options_;
  const Bundle bundle_;
  BundleFiles files_;
  std::unique_ptr<Tokenizer> tokenizer_;
  FirstValues first_values_;
  std::mutex opening_;  // held while a graph opens, which may take seconds, and for constants_
  std::mutex lock_;     // of sessions_
  std::map<const Graph*, std::unique_ptr<Session>> sessions_;
  // By the numbers that they were computed from, the newest last.
  std::vector<std::pair<std::vector<std::int64_t>, std::shared_ptr<const Constants>>> constants_;
};

// The result of this name. Throws XLR_ERROR_BUNDLE_GRAPH: it is not `count` numbers of a type.
const Result& result_of(const std::vector<Result>& results, const char* name, const char* dtype, std::int64_t count);

}  // namespace xlruntime
