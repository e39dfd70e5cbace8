#include "stream.h"

#include <algorithm>

#include "errors.h"
#include "state.h"

namespace xlruntime {

Stream::Stream(std::shared_ptr<Model> model, const EvaluationSettings& evaluation, std::int64_t capacity)
    : model_(std::move(model)), text_(model_->tokenizer(), "the text", HeldText::Unsettled::cut) {
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
      text_(other.text_),
      begun_(other.begun_),
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
  stream->begun_ = state.begun;
  if (state.pending) stream->text_.follow(*state.pending);
  if (!stream->text_.hold(state.held)) {
    throw Error(XLR_ERROR_STATE_DAMAGED, file.string() + ": its held text is none that the tokenizer reads.",
                "Save the stream again.");
  }
  return stream;
}

Scores Stream::feed(std::string_view text) {
  HeldText after = text_;
  const Ids ids = after.take(text).ids;
  check(ids, 0, "the document");
  Scores scores = score(ids, true);
  begun_ = begun_ || after.held().size() < text_.held().size() + text.size();  // some of it has its tokens
  text_ = std::move(after);
  return scores;
}

Scores Stream::feed(const Ids& ids) { return feed_rest(ids, false); }

Scores Stream::score_continuation(std::string_view text) {
  HeldText after = text_;
  TokenPiece piece = after.take(text);
  piece.append(after.rest(false));
  // Places count from the last token that was taken.
  const std::int64_t taken = text_.taken_places(), held = taken + text_.held_places();
  std::int64_t context = 0;
  for (std::size_t i = 0; i < piece.ids.size(); ++i) context += piece.ends[i] <= held && piece.starts[i] < held ? 1 : 0;
  return peek(piece.ids, context);
}

Scores Stream::score_continuation(const Ids& ids) {
  const Taken taken = after_rest(ids);
  return peek(taken.ids, static_cast<std::int64_t>(taken.ids.size() - ids.size()));
}

Stream::Taken Stream::after_rest(const Ids& ids) const {
  Taken taken{text_, {}};
  taken.ids = taken.text.rest(false).ids;
  taken.ids.insert(taken.ids.end(), ids.begin(), ids.end());
  if (!ids.empty()) taken.text.follow(ids.back());
  return taken;
}

Scores Stream::feed_rest(const Ids& ids, bool begun) {
  Taken taken = after_rest(ids);
  check(taken.ids, 0, "the document");
  Scores scores = score(taken.ids, true);
  if (!ids.empty() || !text_.held().empty()) begun_ = begun;
  text_ = std::move(taken.text);
  return scores;
}

Scores Stream::peek(const Ids& ids, std::int64_t context) {
  const std::int64_t first = position_ + context;
  Scores scores = score_and_rewind(ids);
  const auto all = static_cast<std::int64_t>(scores.index.size());
  const auto n = scores.index.empty() ? 0 : std::clamp<std::int64_t>(first - scores.index.front(), 0, all);
  const auto drop = [n](auto& numbers) { numbers.erase(numbers.begin(), numbers.begin() + n); };
  drop(scores.index);
  drop(scores.tokens);
  drop(scores.log_probs);
  drop(scores.context);
  return scores;
}

Scores Stream::score_and_rewind(const Ids& ids) {
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
  const Drawable drawable = model_->drawable();
  Taken taken = after_rest(prompt);
  if (!pending_ && taken.ids.empty()) {
    throw Error(XLR_ERROR_TEXT, "nothing to continue: the prompt is empty and the stream has read nothing.",
                "Give a prompt.");
  }
  check(taken.ids, more, "the document and " + std::to_string(more) + " tokens after it");
  Ids before = taken.ids;
  if (pending_) before.insert(before.begin(), *pending_);
  for_each_segment(take(taken.ids), [&](const Ids& segment) { run("score", segment); });
  text_ = std::move(taken.text);
  begun_ = true;
  const auto hold = [&](std::int64_t token) {
    pending_ = token;
    text_.follow(token);
  };
  draw_tokens({[&] { return next_logits(); }, hold, take_token, drawable, "Reset the stream."}, before, most, sampling);
}

void Stream::reset() {
  memory_->begin(true);  // a restored stream may have any numbers
  pending_.reset();
  position_ = 0;
  text_ = HeldText(model_->tokenizer(), "the text", HeldText::Unsettled::cut);
  begun_ = false;
}

void Stream::save(const std::filesystem::path& file) const {
  State::write(file, memory_->evaluation(), *memory_, {pending_, position_, text_.held(), begun_});
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
    const float* const log_prob =
        result_of(results, "log_prob", "float32", static_cast<std::int64_t>(segment.size())).data<float>();
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
  const std::int64_t vocab_size = model_->bundle().vocab_size;
  const float* const first = result_of(results, "logits", "float32", vocab_size).data<float>();
  std::vector<float> logits(first, first + vocab_size);
  if (!all_finite(logits.data(), logits.size())) refill();
  return logits;
}

void Stream::refill() {
  memory_->begin(true);
  ++resets_;
}

}  // namespace xlruntime
