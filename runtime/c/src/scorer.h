// Score a whole document in segments, at constant memory.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stream.h"

namespace xlruntime {

// A document: a text, a file or token ids. It holds no copy of a text or of ids.
struct Document {
  std::string name;
  std::optional<std::string_view> text;
  std::optional<std::filesystem::path> file;
  const std::int64_t* ids = nullptr;
  std::size_t count = 0;  // of ids
};

// Reads a document as token ids, in the amounts that a step needs.
class TokenSource {
 public:
  // Throws XLR_ERROR_FILE, XLR_ERROR_TEXT.
  TokenSource(const Model& model, const Document& document);

  // The next `n` tokens; fewer only at the end. Throws XLR_ERROR_TEXT, XLR_ERROR_TOKEN, XLR_ERROR_FILE.
  TokenPiece take(std::int64_t n);

  // Whether at least `n` tokens are left; reads ahead to find out.
  bool has(std::int64_t n);

  TextCounts counts() const { return text_ ? text_->counts() : TextCounts(); }
  std::int64_t unknown_tokens() const { return unknown_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  TokenPiece next();  // sets ended_
  std::string_view next_bytes();  // empty at the end

  const Model& model_;
  const Document& document_;
  std::optional<HeldText> text_;  // none for ids
  std::unique_ptr<std::FILE, Close> file_;
  std::string piece_;
  std::size_t used_ = 0;  // bytes of the text that were read
  bool ended_ = false;
  TokenPiece waiting_;  // tokens that were read ahead, from place `first_` on
  std::size_t first_ = 0;
  std::int64_t read_ = 0, unknown_ = 0;
};

// Scores of consecutive tokens, with their places in the document, and detail if it was asked for.
struct DocumentScores : Scores {
  Ids starts, ends;
  Ids rank;                     // of each token; 1 is the likeliest
  std::vector<double> entropy;  // of each prediction, in nats
  Ids top_ids;                  // (n, k) the likeliest tokens, best first
  std::vector<double> top_log_probs;
};

struct ScoreOptions {
  std::optional<std::int64_t> bos;  // token that the model reads before the document
  std::optional<std::int64_t> top;  // likeliest tokens to list
};

// One document. The model reads the held token first; its successor is the next target.
class Scorer {
 public:
  // Throws XLR_ERROR_OPTION, XLR_ERROR_FILE, XLR_ERROR_TEXT.
  Scorer(Model& model, const EvaluationSettings& evaluation, const Document& document, const ScoreOptions& options);

  // Score all of it. `take` gets the scores of each step, and returns whether to go on; without a total if it has
  // stopped. Throws XLR_ERROR_TEXT, XLR_ERROR_TOKEN, XLR_ERROR_TOO_LONG, XLR_ERROR_FILE, XLR_ERROR_BUNDLE_GRAPH.
  std::optional<xlr_document_score> run(const std::function<bool(const DocumentScores&)>& take);

 private:
  DocumentScores step();
  void add_detail(const std::vector<Result>& results, DocumentScores& scores, std::int64_t n, std::int64_t S) const;
  void add(float log_prob);
  xlr_document_score total() const;

  Model& model_;
  const EvaluationSettings& evaluation_;
  const Document& document_;
  const ScoreOptions options_;
  const std::string purpose_;
  const std::int64_t longest_step_;
  std::int64_t listed_ = 0;  // likeliest tokens of each place in results of graphs for detail
  TokenSource source_;
  std::unique_ptr<Memory> memory_;
  std::int64_t held_ = 0;
  std::int64_t position_ = 0;  // place of the next target among the document's own tokens
  std::int64_t unscored_ = 1;  // 0 if the first token has a context
  double sum_ = 0, correction_ = 0;  // of logarithms: a compensated sum
};

// Continue a prompt with a model that reads each document in one step.
void generate_full_document(Model& model, const EvaluationSettings& evaluation, const Ids& prompt, std::size_t most,
                            const Sampling& sampling, const std::function<bool(std::int64_t)>& take);

}  // namespace xlruntime
