#include "evaluation.h"

#include <algorithm>

namespace xlruntime {
namespace {

Error out_of_range(const std::string& name, std::int64_t value, std::int64_t least, std::int64_t most) {
  return Error(XLR_ERROR_OPTION, name + " is " + std::to_string(value) + ", expected " + std::to_string(least) +
                                     " to " + std::to_string(most) + ".");
}

std::vector<std::int64_t> values_of(const Bundle& bundle, std::optional<std::int64_t> mem_len) {
  std::vector<std::int64_t> values;
  for (const Setting& setting : bundle.settings) {
    values.push_back(setting.name == "mem_len" ? mem_len.value_or(setting.value) : setting.value);
  }
  if (mem_len && bundle.mem_len() == nullptr) {
    throw Error(XLR_ERROR_OPTION, "mem_len is " + std::to_string(*mem_len) + ", but the bundle has no such setting.");
  }
  return values;
}

}  // namespace

EvaluationSettings::EvaluationSettings(const Bundle& bundle, std::optional<std::int64_t> segment_len,
                                       std::optional<std::int64_t> mem_len)
    : EvaluationSettings(bundle, segment_len.value_or(bundle.document.segment_len), values_of(bundle, mem_len)) {}

EvaluationSettings::EvaluationSettings(const Bundle& bundle, std::int64_t segment_len,
                                       std::vector<std::int64_t> values)
    : bundle_(&bundle), segment_len_(segment_len), values_(std::move(values)) {
  if (segment_len_ < 1 || segment_len_ > kLargestLength) {
    throw out_of_range("segment_len", segment_len_, 1, kLargestLength);
  }
  segment_len_ = std::min(segment_len_, document().max_positions.value_or(segment_len_));
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const Setting& setting = bundle.settings[i];
    const bool is_inside = setting.minimum <= values_[i] && values_[i] <= setting.maximum;
    if (!is_inside && setting.off != values_[i]) {
      throw out_of_range(setting.name, values_[i], setting.minimum, setting.maximum);
    }
    if (setting.name == "mem_len") mem_len_ = values_[i];
  }
  for (const Ring& ring : bundle.rings) {
    const std::int64_t slots = ring.slots.at(mem_len_, segment_len_);
    if (rows(ring) >= 0 && window(ring) >= 1 && slots > rows(ring) && slots <= kLargestSize) continue;
    throw Error(XLR_ERROR_OPTION, "mem_len and segment_len leave no room for a token in the ring " +
                                      shown(ring.symbol) + ".");
  }
}

std::int64_t EvaluationSettings::window(const Ring& ring) const {
  const bool is_limited = ring.window && (!ring.window_if || values_[*ring.window_if] != 0);
  return is_limited ? ring.window->at(mem_len_, segment_len_) : kUnlimited;
}

std::int64_t EvaluationSettings::slots(const Ring& ring, std::int64_t capacity) const {
  return ring.slots.at(mem_len_, segment_len_) + capacity - this->capacity();
}

std::int64_t EvaluationSettings::most_rows() const {
  std::int64_t most = 0;
  for (const Ring& ring : bundle_->rings) most = std::max(most, rows(ring));
  return most;
}

std::int64_t EvaluationSettings::capacity() const {
  std::int64_t most = bundle_->rings.empty() ? segment_len_ : 0;
  for (const Ring& ring : bundle_->rings) most = std::max(most, ring.slots.at(mem_len_, segment_len_));
  return most;
}

std::int64_t EvaluationSettings::max_segment(std::int64_t capacity) const {
  capacity = std::clamp<std::int64_t>(capacity, 0, kUnlimited);  // any number of a caller or a file
  std::int64_t longest = capacity;
  for (const Ring& ring : bundle_->rings) longest = std::min(longest, slots(ring, capacity) - rows(ring));
  return longest;
}

bool EvaluationSettings::segmentation_matters() const {
  return std::any_of(bundle_->rings.begin(), bundle_->rings.end(),
                     [this](const Ring& ring) { return window(ring) == kUnlimited; });
}

std::optional<std::int64_t> EvaluationSettings::longest_part() const {
  if (!document().full_document) return document().max_positions;
  return std::min(segment_len_, document().max_positions.value_or(segment_len_));
}

std::optional<std::int64_t> EvaluationSettings::longest_document() const {
  const auto longest = longest_part();
  return !longest || document().bidirectional ? longest : *longest + 1;
}

void EvaluationSettings::check_length(std::int64_t tokens, const std::string& name) const {
  const auto longest = longest_document();
  if (!longest || tokens <= *longest || document().restart) return;
  throw Error(XLR_ERROR_TOO_LONG,
              name + ": at least " + std::to_string(tokens) + " tokens, but the model reads at most " +
                  std::to_string(*longest_part()) + (document().bidirectional ? "" : " and predicts one more") + ".",
              document().full_document ? "Make it shorter, or choose a larger segment_len." : "Make it shorter.");
}

}  // namespace xlruntime
