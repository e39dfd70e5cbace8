// A stream: one document with its own memory, which takes pieces of any size and can be saved.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model.h"
#include "sampling.h"

namespace xlruntime {

using Ids = std::vector<std::int64_t>;

// Scores of consecutive tokens.
struct Scores {
  Ids index, tokens;
  std::vector<float> log_probs;
  Ids context;
};

// Only one thread at a time may use it. It keeps its model.
class Stream {
 public:
  // `capacity`: slots of the largest ring; 0 is just enough. Throws XLR_ERROR_OPTION.
  Stream(std::shared_ptr<Model> model, const EvaluationSettings& evaluation, std::int64_t capacity);

  // The stream that `save` wrote. Throws XLR_ERROR_STATE_DAMAGED, XLR_ERROR_STATE_MISMATCH, XLR_ERROR_FILE,
  // XLR_ERROR_OPTION.
  static std::unique_ptr<Stream> restore(std::shared_ptr<Model> model, const std::filesystem::path& file,
                                         std::int64_t capacity);

  // Ids of the next piece of the document. Throws XLR_ERROR_TEXT, XLR_ERROR_TOKEN.
  Ids ids_of(std::string_view text) const { return model_->tokenizer().encode_piece(text, pending_); }

  // Take the next tokens of the document, and return their scores. Throws XLR_ERROR_TOKEN and XLR_ERROR_TOO_LONG, after
  // which the stream is unchanged.
  Scores feed(const Ids& ids);

  // The scores that `feed` would return, without changing the stream.
  Scores score_continuation(const Ids& ids);

  std::unique_ptr<Stream> fork() const { return std::unique_ptr<Stream>(new Stream(*this)); }

  // Continue the document, after a prompt; `take` returns whether to go on. Throws XLR_ERROR_TEXT, XLR_ERROR_TOKEN,
  // XLR_ERROR_TOO_LONG.
  void generate(const Ids& prompt, std::size_t most, const Sampling& sampling,
                const std::function<bool(std::int64_t)>& take);

  void reset();
  void save(const std::filesystem::path& file) const;

  std::int64_t position() const { return position_; }
  std::optional<std::int64_t> pending() const { return pending_; }
  std::size_t nbytes() const { return memory_->nbytes(); }
  std::int64_t resets() const { return resets_; }

 private:
  Stream(const Stream& other);

  void check(const Ids& ids, std::int64_t more, const std::string& name) const;
  Ids take(const Ids& ids);  // hold the first token of a document; return the targets
  Scores score(const Ids& ids, bool refill);
  std::vector<Result> run(const std::string& purpose, const Ids& targets);
  std::vector<float> next_logits();
  void refill();  // after numbers that are not finite

  // Cut targets into segments that fit a step, and call `run_one` with each.
  void for_each_segment(const Ids& targets, const std::function<void(const Ids&)>& run_one);

  std::shared_ptr<Model> model_;
  std::unique_ptr<Memory> memory_;
  std::optional<std::int64_t> pending_;  // the held token, which has no target yet
  std::int64_t position_ = 0;            // tokens of the document, the held one included
  std::int64_t resets_ = 0;              // memories refilled after scores that were not finite
};

}  // namespace xlruntime
