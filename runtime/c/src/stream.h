// A stream: one document with its own memory, which takes pieces of any size and can be saved.
//
// It holds the end of a text, whose tokens depend on what follows.
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
#include "tokenizers/held_text.h"

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

  // Take the next bytes of a text, and return the scores of the tokens that are final now. Throws XLR_ERROR_TEXT,
  // XLR_ERROR_TOKEN and XLR_ERROR_TOO_LONG, after which the stream is unchanged.
  Scores feed(std::string_view text);

  // Take the tokens of the held text, as if it ended here, then the next tokens. Throws the same.
  Scores feed(const Ids& ids);

  // Take the tokens of the held text, as if it ended here. `preview` returns the scores, and changes nothing.
  Scores flush() { return feed_rest({}, true); }
  Scores preview() { return peek(after_rest({}).ids, 0); }

  // The scores of a text or of tokens after what is held, without changing the stream. A token that begins in the held
  // text and ends in the other one counts.
  Scores score_continuation(std::string_view text);
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
  std::int64_t unsettled_cuts() const { return text_.unsettled_cuts(); }
  const std::string& held() const { return text_.held(); }

 private:
  // Tokens, and the text after they were taken from it.
  struct Taken {
    HeldText text;
    Ids ids;
  };

  Stream(const Stream& other);

  Taken after_rest(const Ids& ids) const;
  Scores feed_rest(const Ids& ids, bool begun);
  Scores peek(const Ids& ids, std::int64_t context);  // without the scores of the first `context` tokens
  Scores score_and_rewind(const Ids& ids);
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
  HeldText text_;
  bool begun_ = false;  // text or drawn tokens came since the beginning or the last given ids
  std::optional<std::int64_t> pending_;  // the held token, which has no target yet
  std::int64_t position_ = 0;            // tokens of the document, the held one included
  std::int64_t resets_ = 0;              // memories refilled after scores that were not finite
};

}  // namespace xlruntime
