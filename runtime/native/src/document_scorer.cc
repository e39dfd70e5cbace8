#include "document_scorer.h"

#include <algorithm>

#include "error.h"
#include "messages.h"
#include "numpy_sum.h"

namespace xlruntime {
namespace {

// The walk through one document. The model reads the held token first; its successor is the next target.
class Walk {
 public:
  Walk(Model& model, const EvaluationSettings& evaluation, const Document& document, const ScoreOptions& options)
      : model_(model),
        evaluation_(evaluation),
        document_(document),
        options_(options),
        purpose_(options.detail ? "detail" : "score"),
        longest_step_(model.longest_step(purpose_, evaluation.segment_len())),
        source_(model, document) {}

  std::optional<DocumentTotal> run(const std::function<bool(const DocumentScores&)>& take) {
    const auto longest = evaluation_.longest_document();
    if (longest && !evaluation_.restart()) {
      const std::int64_t own = *longest - (options_.bos ? 1 : 0);
      if (source_.has(own + 1)) refuse_longer();
    }
    if (options_.bos) {
      held_ = *options_.bos;
      unscored_ = 0;
    } else if (const TokenPiece first = source_.take(1); !first.ids.empty()) {
      held_ = first.ids.front();
      position_ = 1;
    }
    if (source_.has(1)) memory_ = model_.new_memory(evaluation_, evaluation_.capacity());
    while (source_.has(1)) {
      if (!take(step())) return std::nullopt;
    }
    return total();
  }

 private:
  [[noreturn]] void refuse_longer() const {
    const std::int64_t longest = *evaluation_.longest_document();
    const std::string found =
        "more than " + with_commas(longest) + " tokens" + (options_.bos ? " with the one before it" : "");
    check_length(longest + 1, evaluation_, document_.name, found);
    throw Error(ErrorCode::text, document_.name + ": too long.");  // not reached: it may not restart
  }

  DocumentScores step() {
    if (memory_->room() == 0) {
      if (!evaluation_.restart()) refuse_longer();
      memory_->restart();
    }
    const std::int64_t longest = std::min(longest_step_, memory_->room());
    TokenPiece piece = source_.take(longest);
    const auto n = static_cast<std::int64_t>(piece.ids.size());
    if (evaluation_.reads_last() && n == longest) {
      if (!evaluation_.restart()) refuse_longer();  // the last of them could not be read
    }
    // With reads_last, the model also reads the document's last token; its prediction is dropped.
    const std::int64_t S = evaluation_.reads_last() && longest > n ? n + 1 : n;
    Ids tokens{held_};
    tokens.insert(tokens.end(), piece.ids.begin(), piece.ids.end());
    tokens.resize(static_cast<std::size_t>(S));
    Ids targets = piece.ids;
    targets.resize(static_cast<std::size_t>(S));
    DocumentScores scores;
    scores.context = memory_->context(S);
    scores.context.resize(piece.ids.size());
    const std::vector<Output> outputs = model_.step(purpose_, *memory_, tokens, targets);
    const float* const log_prob = output_of(outputs, "log_prob").data<float>();
    if (!all_finite(log_prob, static_cast<std::size_t>(S))) memory_->restart(true);
    scores.log_probs.assign(log_prob, log_prob + n);
    if (options_.detail) add_detail(outputs, scores, n);
    for (std::int64_t i = 0; i < n; ++i) scores.index.push_back(position_ + i);
    held_ = piece.ids.back();
    position_ += n;
    log_prob_sum_ += numpy_sum(scores.log_probs.data(), scores.log_probs.size());
    scores.tokens = std::move(piece.ids);
    scores.starts = std::move(piece.starts);
    scores.ends = std::move(piece.ends);
    return scores;
  }

  void add_detail(const std::vector<Output>& outputs, DocumentScores& scores, std::int64_t n) const {
    const Output& top_ids = output_of(outputs, "top_ids");
    const std::int64_t listed = top_ids.shape.back(), k = *options_.detail;
    const auto* const rank = output_of(outputs, "rank").data<std::int64_t>();
    const auto* const entropy = output_of(outputs, "entropy").data<float>();
    const auto* const top_log_probs = output_of(outputs, "top_log_probs").data<float>();
    scores.rank.assign(rank, rank + n);
    scores.entropy.assign(entropy, entropy + n);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto* const ids = top_ids.data<std::int64_t>() + i * listed;
      const auto* const log_probs = top_log_probs + i * listed;
      scores.top_ids.insert(scores.top_ids.end(), ids, ids + k);
      scores.top_log_probs.insert(scores.top_log_probs.end(), log_probs, log_probs + k);
    }
  }

  DocumentTotal total() const {
    DocumentTotal total;
    total.counts = source_.counts();
    total.tokens = position_;
    total.scored_tokens = std::max<std::int64_t>(position_ - unscored_, 0);
    total.unknown_tokens = source_.unknown_tokens();
    const TextCounts& counts = total.counts;
    const bool leaves_first = unscored_ != 0;
    total.scored_chars =
        std::max<std::int64_t>(counts.chars - (leaves_first ? counts.first_token_chars : 0) - counts.dropped_chars, 0);
    total.scored_bytes =
        std::max<std::int64_t>(counts.bytes - (leaves_first ? counts.first_token_bytes : 0) - counts.dropped_bytes, 0);
    total.nats = 0.0 - log_prob_sum_;
    return total;
  }

  Model& model_;
  const EvaluationSettings& evaluation_;
  const Document& document_;
  const ScoreOptions& options_;
  const std::string purpose_;
  const std::int64_t longest_step_;
  TokenSource source_;
  std::unique_ptr<StreamMemory> memory_;
  std::int64_t held_ = 0;
  std::int64_t position_ = 0;  // place of the next target among the document's own tokens
  std::int64_t unscored_ = 1;  // 0 if the first token has a context
  double log_prob_sum_ = 0;
};

}  // namespace

std::optional<DocumentTotal> score_document(Model& model, const EvaluationSettings& evaluation,
                                            const Document& document, const ScoreOptions& options,
                                            const std::function<bool(const DocumentScores&)>& take) {
  const std::int64_t vocab_size = model.bundle().vocab_size;
  if (options.detail) model.check_detail(*options.detail);
  if (options.bos && (*options.bos < 0 || *options.bos >= vocab_size)) {
    throw Error(ErrorCode::option,
                "bos is " + std::to_string(*options.bos) + ", expected 0 to " + std::to_string(vocab_size - 1) + ".");
  }
  return Walk(model, evaluation, document, options).run(take);
}

void generate_whole(Model& model, const EvaluationSettings& evaluation, const Ids& prompt, std::size_t most,
                    const Sampling& sampling, const std::function<bool(std::int64_t)>& take) {
  sampling.check();
  check_ids(prompt.data(), prompt.size(), model.bundle().vocab_size, "the prompt");
  if (prompt.empty()) throw Error(ErrorCode::text, "nothing to continue: the prompt is empty.", "Give a prompt.");
  const auto more = static_cast<std::int64_t>(std::min(most, static_cast<std::size_t>(kLargestLength)));
  check_length(static_cast<std::int64_t>(prompt.size()) + more, evaluation,
               "the prompt and " + with_commas(more) + " tokens after it");
  const auto longest = static_cast<std::size_t>(*evaluation.longest_part());
  const auto memory = model.new_memory(evaluation, evaluation.capacity());
  Ids read = prompt;
  const auto next_logits = [&] {
    const Ids part(read.begin() + static_cast<std::ptrdiff_t>((read.size() - 1) / longest * longest), read.end());
    memory->restart();
    const std::vector<Output> outputs = model.step("generate", *memory, part, part);  // it ignores the targets
    const Output& found = output_of(outputs, "logits");
    return std::vector<float>(found.data<float>(), found.data<float>() + found.shape.back());
  };
  const auto add = [&](std::int64_t token) {
    read.push_back(token);
    return take(token);
  };
  draw_tokens(next_logits, add, most, sampling, "Give another prompt.");
}

}  // namespace xlruntime
