#include "scorer.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "errors.h"

namespace xlruntime {
namespace {

constexpr std::size_t kPiece = 1 << 14;  // bytes: small compared to the memories, so that process memory stays flat

constexpr double kLargestMean = 700;  // nats; e to a larger power overflows

double ratio(double amount, std::int64_t count) {
  return count > 0 ? amount / static_cast<double>(count) : std::nan("");
}

Error file_error(const std::filesystem::path& path, int reason) {
  return Error(XLR_ERROR_FILE, path.string() + ": " + std::strerror(reason) + ".");
}

}  // namespace

TokenSource::TokenSource(const Model& model, const Document& document) : model_(model), document_(document) {
  if (document.text || document.file) {
    model.tokenizer().require_text(document.name);
    text_.emplace(model.tokenizer(), document.name, HeldText::Unsettled::refuse);
  }
  if (!document.file) return;
  std::error_code unused;
  if (std::filesystem::is_directory(*document.file, unused)) throw file_error(*document.file, EISDIR);
  file_.reset(std::fopen(document.file->string().c_str(), "rb"));
  if (file_ == nullptr) throw file_error(*document.file, errno);
  piece_.resize(kPiece);
}

bool TokenSource::has(std::int64_t n) {
  while (static_cast<std::int64_t>(waiting_.ids.size() - first_) < n) {
    if (ended_) return false;
    const TokenPiece piece = next();
    check_ids(piece.ids.data(), piece.ids.size(), model_.bundle().vocab_size, document_.name, read_);
    read_ += static_cast<std::int64_t>(piece.ids.size());
    if (const auto unknown = model_.tokenizer().unk_id()) {
      unknown_ += std::count(piece.ids.begin(), piece.ids.end(), *unknown);
    }
    for (auto* part : {&waiting_.ids, &waiting_.starts, &waiting_.ends}) {
      part->erase(part->begin(), part->begin() + static_cast<std::ptrdiff_t>(first_));
    }
    first_ = 0;
    waiting_.append(piece);
  }
  return true;
}

TokenPiece TokenSource::take(std::int64_t n) {
  has(n);
  const std::size_t end = std::min(waiting_.ids.size(), first_ + static_cast<std::size_t>(n));
  const auto part = [&](const Ids& all) {
    return Ids(all.begin() + static_cast<std::ptrdiff_t>(first_), all.begin() + static_cast<std::ptrdiff_t>(end));
  };
  TokenPiece taken{part(waiting_.ids), part(waiting_.starts), part(waiting_.ends)};
  first_ = end;
  return taken;
}

TokenPiece TokenSource::next() {
  TokenPiece piece;
  if (text_) {
    std::string_view raw = next_bytes();
    const bool is_first = used_ == 0 && file_ != nullptr;
    used_ += raw.size();
    ended_ = raw.empty();
    if (is_first && !model_.tokenizer().skips_mark() && raw.substr(0, kByteOrderMark.size()) == kByteOrderMark) {
      text_->drop_mark();
      raw.remove_prefix(kByteOrderMark.size());
    }
    return ended_ ? text_->rest(true) : text_->take(raw);
  }
  ended_ = true;
  for (std::size_t i = 0; i < document_.count; ++i) {
    piece.add(document_.ids[i], static_cast<std::int64_t>(i), static_cast<std::int64_t>(i) + 1);
  }
  return piece;
}

std::string_view TokenSource::next_bytes() {
  if (file_ == nullptr) {
    return document_.text->substr(used_, kPiece);
  }
  const std::size_t n = std::fread(piece_.data(), 1, kPiece, file_.get());
  if (n == 0 && std::ferror(file_.get()) != 0) throw file_error(*document_.file, errno);
  return std::string_view(piece_).substr(0, n);
}

Scorer::Scorer(Model& model, const EvaluationSettings& evaluation, const Document& document,
               const ScoreOptions& options)
    : model_(model),
      evaluation_(evaluation),
      document_(document),
      options_(options),
      purpose_(options.top ? "detail" : "score"),
      longest_step_(model.longest_step(purpose_, evaluation.segment_len())),
      source_(model, document) {
  if (options.top) listed_ = model.check_top(*options.top);
  const std::int64_t vocab_size = model.bundle().vocab_size;
  if (options.bos && (*options.bos < 0 || *options.bos >= vocab_size)) {
    throw Error(XLR_ERROR_OPTION,
                "bos is " + std::to_string(*options.bos) + ", expected 0 to " + std::to_string(vocab_size - 1) + ".");
  }
}

std::optional<xlr_document_score> Scorer::run(const std::function<bool(const DocumentScores&)>& take) {
  const auto longest = evaluation_.longest_document();
  if (longest && !evaluation_.document().restart && source_.has(*longest + (options_.bos ? 0 : 1))) {
    evaluation_.check_length(*longest + 1, document_.name);
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

DocumentScores Scorer::step() {
  if (memory_->room() == 0) memory_->begin();
  const std::int64_t longest = std::min({longest_step_, memory_->room(), memory_->max_segment()});
  TokenPiece piece = source_.take(longest);
  const auto n = static_cast<std::int64_t>(piece.ids.size());
  // A bidirectional model also reads the document's last token; its prediction is dropped.
  const std::int64_t S = evaluation_.document().bidirectional && longest > n ? n + 1 : n;
  Ids tokens{held_};
  tokens.insert(tokens.end(), piece.ids.begin(), piece.ids.end());
  tokens.resize(static_cast<std::size_t>(S));
  Ids targets = piece.ids;
  targets.resize(static_cast<std::size_t>(S));
  DocumentScores scores;
  scores.context = memory_->context(S);
  scores.context.resize(piece.ids.size());
  const std::vector<Result> results = model_.step(purpose_, *memory_, tokens, targets);
  const float* const log_prob = result_of(results, "log_prob", "float32", S).data<float>();
  if (!all_finite(log_prob, static_cast<std::size_t>(S))) memory_->begin(true);
  scores.log_probs.assign(log_prob, log_prob + n);
  if (options_.top) add_detail(results, scores, n, S);
  for (std::int64_t i = 0; i < n; ++i) {
    scores.index.push_back(position_ + i);
    add(log_prob[i]);
  }
  held_ = piece.ids.back();
  position_ += n;
  scores.tokens = std::move(piece.ids);
  scores.starts = std::move(piece.starts);
  scores.ends = std::move(piece.ends);
  return scores;
}

void Scorer::add_detail(const std::vector<Result>& results, DocumentScores& scores, std::int64_t n,
                        std::int64_t S) const {
  const std::int64_t k = *options_.top;
  const auto* const rank = result_of(results, "rank", "int64", S).data<std::int64_t>();
  const auto* const entropy = result_of(results, "entropy", "float32", S).data<float>();
  const auto* const top_ids = result_of(results, "top_ids", "int64", S * listed_).data<std::int64_t>();
  const auto* const top_log_probs = result_of(results, "top_log_probs", "float32", S * listed_).data<float>();
  scores.rank.assign(rank, rank + n);
  scores.entropy.assign(entropy, entropy + n);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto* const ids = top_ids + i * listed_;
    const auto* const log_probs = top_log_probs + i * listed_;
    scores.top_ids.insert(scores.top_ids.end(), ids, ids + k);
    scores.top_log_probs.insert(scores.top_log_probs.end(), log_probs, log_probs + k);
  }
}

// Neumaier's sum: `correction_` collects what additions round off.
void Scorer::add(float log_prob) {
  const double number = log_prob, sum = sum_ + number;
  correction_ += std::abs(sum_) >= std::abs(number) ? (sum_ - sum) + number : (number - sum) + sum_;
  sum_ = sum;
}

xlr_document_score Scorer::total() const {
  const TextCounts counts = source_.counts();
  const std::int64_t first_chars = unscored_ != 0 ? counts.first_token_chars : 0;
  const std::int64_t first_bytes = unscored_ != 0 ? counts.first_token_bytes : 0;
  xlr_document_score total = XLR_DOCUMENT_SCORE_INIT;
  total.tokens = position_;
  total.scored_tokens = std::max<std::int64_t>(position_ - unscored_, 0);
  total.unknown_tokens = source_.unknown_tokens();
  total.words = counts.words;
  total.chars = counts.chars;
  total.bytes = counts.bytes;
  total.dropped_chars = counts.dropped_chars;
  total.dropped_bytes = counts.dropped_bytes;
  total.scored_chars = std::max<std::int64_t>(counts.chars - first_chars - counts.dropped_chars, 0);
  total.scored_bytes = std::max<std::int64_t>(counts.bytes - first_bytes - counts.dropped_bytes, 0);
  total.nats = 0.0 - (std::isfinite(sum_) ? sum_ + correction_ : sum_);
  total.bits = total.nats / std::log(2.0);
  total.bits_per_byte = ratio(total.bits, total.scored_bytes);
  total.bits_per_char = ratio(total.bits, total.scored_chars);
  total.bits_per_token = ratio(total.bits, total.scored_tokens);
  const double mean = ratio(total.nats, total.scored_tokens);
  total.perplexity = mean > kLargestMean ? HUGE_VAL : std::exp(mean);
  return total;
}

void generate_full_document(Model& model, const EvaluationSettings& evaluation, const Ids& prompt, std::size_t most,
                            const Sampling& sampling, const std::function<bool(std::int64_t)>& take) {
  check_ids(prompt.data(), prompt.size(), model.bundle().vocab_size, "the prompt");
  if (prompt.empty()) throw Error(XLR_ERROR_TEXT, "nothing to continue: the prompt is empty.", "Give a prompt.");
  const auto more = static_cast<std::int64_t>(std::min(most, static_cast<std::size_t>(kLargestLength)));
  evaluation.check_length(static_cast<std::int64_t>(prompt.size()) + more,
                          "the prompt and " + std::to_string(more) + " tokens after it");
  const auto longest = static_cast<std::size_t>(*evaluation.longest_part());
  const auto memory = model.new_memory(evaluation, evaluation.capacity());
  Ids read = prompt;
  const auto next_logits = [&] {
    const Ids part(read.begin() + static_cast<std::ptrdiff_t>((read.size() - 1) / longest * longest), read.end());
    memory->begin();
    const std::vector<Result> results = model.step("generate", *memory, part, part);  // it ignores the targets
    const std::int64_t vocab_size = model.bundle().vocab_size;
    const float* const logits = result_of(results, "logits", "float32", vocab_size).data<float>();
    return std::vector<float>(logits, logits + vocab_size);
  };
  const auto add = [&](std::int64_t token) { read.push_back(token); };
  draw_tokens({next_logits, add, take, model.drawable(), "Give another prompt."}, prompt, most, sampling);
}

}  // namespace xlruntime
