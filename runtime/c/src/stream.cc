#include "stream.h"

#include <algorithm>

#include "errors.h"
#include "state.h"

namespace xlruntime {

Stream::Stream(std::shared_ptr<Model> model, const EvaluationSettings& evaluation, std::int64_t capacity)
    : model_(std::move(model)) {
  if (evaluation.document().full_document) {
    throw Error(XLR_ERROR_OPTION,
                model_->folder().string() + ": this model reads each document in one step, so it cannot stream.",
                "Score or continue full documents.");
  }
  memory_ = model_->new_memory(evaluation, capacity == 0 ? evaluation.capacity() : capacity);
  if (evaluation.segmentation_matters() && memory_->max_segment() < evaluation.segment_len()) {
    throw Error(XLR_ERROR_OPTION,
                "a capacity of " + std::to_string(capacity) + " slots would cut segments of " +
                    std::to_string(evaluation.segment_len()) + " tokens, on which the scores depend.",
                "Give at least " + std::to_string(evaluation.capacity()) + ".");
  }
}

Stream::Stream(const Stream& other)
    : model_(other.model_),
      memory_(std::make_unique<Memory>(*other.memory_)),
      pending_(other.pending_),
      position_(other.position_),
      resets_(other.resets_) {}

std::unique_ptr<Stream> Stream::restore(std::shared_ptr<Model> model, const std::filesystem::path& file,
                                        std::int64_t capacity) {
  const State state = State::read(file, model->bundle());
  auto stream = std::make_unique<Stream>(std::move(model), state.evaluation, capacity == 0 ? state.capacity : capacity);
  stream->memory_->restore(state.counters, state.capacity, state.data);
  stream->pending_ = state.pending;
  stream->position_ = state.position;
  return stream;
}

Scores Stream::feed(const Ids& ids) {
  check(ids, 0, "the document");
  return score(ids, true);
}

Scores Stream::score_continuation(const Ids& ids) {
  check(ids, 0, "the document");
  if (static_cast<std::int64_t>(ids.size()) > std::min(memory_->max_segment(), memory_->room())) {
    return fork()->score(ids, true);
  }
  const auto pending = pending_;
  const auto position = position_;
  const Memory::Mark mark = memory_->mark();
  const auto rewind = [&](bool wipe) {
    memory_->rewind(mark, wipe);
    pending_ = pending;
    position_ = position;
  };
  Scores scores;
  try {
    scores = score(ids, false);
  } catch (...) {
    rewind(true);
    throw;
  }
  const bool is_finite = all_finite(scores.log_probs.data(), scores.log_probs.size());
  rewind(!is_finite);
  return is_finite ? scores : fork()->score(ids, true);
}

void Stream::generate(const Ids& prompt, std::size_t most, const Sampling& sampling,
                      const std::function<bool(std::int64_t)>& take_token) {
  const auto more = static_cast<std::int64_t>(std::min(most, static_cast<std::size_t>(kLargestLength)));
  sampling.check();
  if (!pending_ && prompt.empty()) {
    throw Error(XLR_ERROR_TEXT, "nothing to continue: the prompt is empty and the stream has read nothing.",
                "Give a prompt.");
  }
  check(prompt, more, "the document and " + std::to_string(more) + " tokens after it");
  for_each_segment(take(prompt), [&](const Ids& segment) { run("score", segment); });
  const auto hold = [&](std::int64_t token) {
    pending_ = token;
    return take_token(token);
  };
  draw_tokens([&] { return next_logits(); }, hold, most, sampling, "Reset the stream.");
}

void Stream::reset() {
  memory_->begin(true);  // a restored stream may have any numbers
  pending_.reset();
  position_ = 0;
}

void Stream::save(const std::filesystem::path& file) const {
  State::write(file, memory_->evaluation(), *memory_, pending_, position_);
}

void Stream::check(const Ids& ids, std::int64_t more, const std::string& name) const {
  check_ids(ids.data(), ids.size(), model_->bundle().vocab_size, "the stream", position_);
  const std::int64_t read = memory_->counters().position + (pending_ ? 1 : 0);
  memory_->evaluation().check_length(read + static_cast<std::int64_t>(ids.size()) + more, name);
}

Ids Stream::take(const Ids& ids) {
  if (pending_ || ids.empty()) return ids;
  pending_ = ids.front();
  position_ = 1;
  return Ids(ids.begin() + 1, ids.end());
}

void Stream::for_each_segment(const Ids& targets, const std::function<void(const Ids&)>& run_one) {
  const std::int64_t longest =
      std::min(memory_->max_segment(), model_->longest_step("score", memory_->evaluation().segment_len()));
  for (auto rest = targets.begin(); rest != targets.end();) {
    if (memory_->room() == 0) memory_->begin(true);
    const auto S = std::min({longest, memory_->room(), static_cast<std::int64_t>(targets.end() - rest)});
    run_one(Ids(rest, rest + S));
    rest += S;
  }
}

Scores Stream::score(const Ids& ids, bool refills) {
  Scores scores;
  scores.tokens = take(ids);
  const std::size_t n = scores.tokens.size();
  for (std::size_t i = 0; i < n; ++i) scores.index.push_back(position_ + static_cast<std::int64_t>(i));
  scores.log_probs.reserve(n);
  for_each_segment(scores.tokens, [&](const Ids& segment) {
    const Ids context = memory_->context(static_cast<std::int64_t>(segment.size()));
    const std::vector<Result> results = run("score", segment);
    const float* const log_prob = result_of(results, "log_prob").data<float>();
    scores.log_probs.insert(scores.log_probs.end(), log_prob, log_prob + segment.size());
    scores.context.insert(scores.context.end(), context.begin(), context.end());
    if (refills && !all_finite(log_prob, segment.size())) refill();
  });
  return scores;
}

std::vector<Result> Stream::run(const std::string& purpose, const Ids& targets) {
  Ids tokens{*pending_};
  tokens.insert(tokens.end(), targets.begin(), targets.end() - 1);
  std::vector<Result> results = model_->step(purpose, *memory_, tokens, targets);
  pending_ = targets.back();
  position_ += static_cast<std::int64_t>(targets.size());
  return results;
}

std::vector<float> Stream::next_logits() {
  if (memory_->room() == 0) memory_->begin(true);
  const std::vector<Result> results = run("generate", {*pending_});  // it ignores the target
  const Result& result = result_of(results, "logits");
  std::vector<float> logits(result.data<float>(), result.data<float>() + result.shape.back());
  if (!all_finite(logits.data(), logits.size())) refill();
  return logits;
}

void Stream::refill() {
  memory_->begin(true);
  ++resets_;
}

}  // namespace xlruntime
