#include "stream.h"

#include <algorithm>

#include "error.h"
#include "messages.h"
#include "stream_state.h"

namespace xlruntime {
namespace {

constexpr const char* kName = "the stream";

}  // namespace

Stream::Stream(std::shared_ptr<Model> model, const EvaluationSettings& evaluation, std::int64_t capacity)
    : model_(std::move(model)) {
  if (evaluation.whole()) {
    throw Error(ErrorCode::option,
                model_->folder().string() +
                    ": this model reads each document in one step and carries no memory, so it cannot stream.",
                "Score or continue whole documents.");
  }
  memory_ = model_->new_memory(evaluation, capacity == 0 ? evaluation.capacity() : capacity);
  if (evaluation.segmentation_matters() && memory_->max_segment() < evaluation.segment_len()) {
    throw Error(ErrorCode::option,
                "a capacity of " + std::to_string(capacity) + " slots would cut segments of " +
                    std::to_string(evaluation.segment_len()) +
                    " tokens, on which the scores depend without same_length.",
                "Give at least " + std::to_string(evaluation.capacity()) + ".");
  }
}

Stream::Stream(const Stream& other)
    : model_(other.model_),
      memory_(std::make_unique<StreamMemory>(*other.memory_)),
      pending_(other.pending_),
      position_(other.position_),
      resets_(other.resets_) {}

std::unique_ptr<Stream> Stream::restore(std::shared_ptr<Model> model, const std::filesystem::path& file,
                                        std::int64_t capacity) {
  const ReadStream read = read_stream(file, model->bundle(), model->folder());
  auto stream =
      std::make_unique<Stream>(std::move(model), read.evaluation, capacity == 0 ? read.saved.capacity : capacity);
  stream->memory_->restore(read.saved, read.tensors);
  stream->pending_ = read.saved.pending;
  stream->position_ = read.saved.position;
  return stream;
}

Scores Stream::feed(const Ids& ids) {
  check_ids(ids.data(), ids.size(), model_->bundle().vocab_size, kName, position_);
  return score(ids, true);
}

Scores Stream::score_continuation(const Ids& ids) {
  check_ids(ids.data(), ids.size(), model_->bundle().vocab_size, kName, position_);
  if (static_cast<std::int64_t>(ids.size()) > std::min(memory_->max_segment(), memory_->room())) {
    return fork()->score(ids, true);
  }
  const auto pending = pending_;
  const auto position = position_;
  const Mark mark = memory_->mark();
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
  const bool finite = all_finite(scores.log_probs.data(), scores.log_probs.size());
  rewind(!finite);
  return finite ? scores : fork()->score(ids, true);
}

void Stream::generate(const Ids& prompt, std::size_t most, const Sampling& sampling,
                      const std::function<bool(std::int64_t)>& take_token) {
  sampling.check();
  check_ids(prompt.data(), prompt.size(), model_->bundle().vocab_size, kName, position_);
  if (!pending_ && prompt.empty()) {
    throw Error(ErrorCode::text, "nothing to continue: the prompt is empty and the stream has read nothing.",
                "Give a prompt.");
  }
  const auto more = static_cast<std::int64_t>(std::min(most, static_cast<std::size_t>(kLargestLength)));
  check_length(static_cast<std::int64_t>(prompt.size()) + more,
               "the document with " + with_commas(more) + " tokens more");
  for_each_segment(take(prompt, "the prompt"), [&](const Ids& segment) { run("score", segment); });
  const auto hold = [&](std::int64_t token) {
    pending_ = token;
    return take_token(token);
  };
  draw_tokens([&] { return next_logits(); }, hold, most, sampling, "Reset the stream.");
}

void Stream::reset() {
  memory_->restart();
  pending_.reset();
  position_ = 0;
}

void Stream::save(const std::filesystem::path& file) const {
  SavedStream saved;
  std::vector<TensorView> tensors;
  saved.fingerprint = model_->bundle().fingerprint();
  saved.evaluation = memory_->evaluation().to_json();
  memory_->save(saved, tensors);
  saved.pending = pending_;
  saved.position = position_;
  write_stream(file, saved, tensors);
}

void Stream::check_length(std::int64_t more, const std::string& name) const {
  xlruntime::check_length(memory_->position() + (pending_ ? 1 : 0) + more, memory_->evaluation(), name);
}

Ids Stream::take(const Ids& ids, const std::string& name) {
  check_length(static_cast<std::int64_t>(ids.size()), name);
  if (pending_ || ids.empty()) return ids;
  pending_ = ids.front();
  position_ = 1;
  return Ids(ids.begin() + 1, ids.end());
}

std::int64_t Stream::room() {
  if (memory_->room() == 0) {
    check_length(1, "the document");
    memory_->restart();
  }
  return memory_->room();
}

void Stream::for_each_segment(const Ids& targets, const std::function<void(const Ids&)>& run_one) {
  const std::int64_t longest =
      std::min(memory_->max_segment(), model_->longest_step("score", memory_->evaluation().segment_len()));
  for (auto rest = targets.begin(); rest != targets.end();) {
    const auto S = std::min({longest, room(), static_cast<std::int64_t>(targets.end() - rest)});
    run_one(Ids(rest, rest + S));
    rest += S;
  }
}

Scores Stream::score(const Ids& ids, bool refill) {
  Scores scores;
  scores.tokens = take(ids, "the document");
  const std::size_t n = scores.tokens.size();
  for (std::size_t i = 0; i < n; ++i) scores.index.push_back(position_ + static_cast<std::int64_t>(i));
  scores.log_probs.reserve(n);
  for_each_segment(scores.tokens, [&](const Ids& segment) {
    const Ids context = memory_->context(static_cast<std::int64_t>(segment.size()));
    const std::vector<Output> outputs = run("score", segment);
    const float* const log_prob = output_of(outputs, "log_prob").data<float>();
    scores.log_probs.insert(scores.log_probs.end(), log_prob, log_prob + segment.size());
    scores.context.insert(scores.context.end(), context.begin(), context.end());
    if (refill && !all_finite(log_prob, segment.size())) {
      memory_->restart(true);
      ++resets_;
    }
  });
  return scores;
}

std::vector<Output> Stream::run(const std::string& purpose, const Ids& targets) {
  Ids tokens{*pending_};
  tokens.insert(tokens.end(), targets.begin(), targets.end() - 1);
  std::vector<Output> outputs = model_->step(purpose, *memory_, tokens, targets);
  pending_ = targets.back();
  position_ += static_cast<std::int64_t>(targets.size());
  return outputs;
}

std::vector<float> Stream::next_logits() {
  room();
  const std::vector<Output> outputs = run("generate", {*pending_});  // it ignores the target
  const Output& found = output_of(outputs, "logits");
  std::vector<float> logits(found.data<float>(), found.data<float>() + found.shape.back());
  if (!all_finite(logits.data(), logits.size())) {
    memory_->restart(true);
    ++resets_;
  }
  return logits;
}

}  // namespace xlruntime
