// The settings of one evaluation: what a caller chooses, and the numbers that follow from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bundle.h"

namespace xlruntime {

// It holds a reference to its bundle, which must outlive it.
class EvaluationSettings {
 public:
  // Without a number it is the bundle's own. Throws XLR_ERROR_OPTION.
  explicit EvaluationSettings(const Bundle& bundle, std::optional<std::int64_t> segment_len = std::nullopt,
                              std::optional<std::int64_t> mem_len = std::nullopt);

  // Those of a saved stream, with a value for each setting of the bundle. Throws XLR_ERROR_OPTION.
  EvaluationSettings(const Bundle& bundle, std::int64_t segment_len, std::vector<std::int64_t> values);

  const Bundle& bundle() const { return *bundle_; }
  const DocumentRules& document() const { return bundle_->document; }
  std::int64_t segment_len() const { return segment_len_; }
  std::int64_t value(std::size_t setting) const { return values_[setting]; }

  std::int64_t rows(const Ring& ring) const { return ring.rows.at(mem_len_, segment_len_); }
  std::int64_t window(const Ring& ring) const;  // most keys that a query sees, itself included
  std::int64_t slots(const Ring& ring, std::int64_t capacity) const;  // if the largest ring has `capacity`
  std::int64_t most_rows() const;                         // in the ring that keeps the most; 0 without rings
  std::int64_t capacity() const;                          // slots that the largest ring needs
  std::int64_t max_segment(std::int64_t capacity) const;  // longest step; longer ones would be silently wrong
  bool segmentation_matters() const;                      // whether scores depend on segment_len and ends of pieces
  std::optional<std::int64_t> longest_part() const;       // tokens read before a document is refused or begins again
  std::optional<std::int64_t> longest_document() const;   // tokens of a document that is scored without a restart

  // Throws XLR_ERROR_TOO_LONG: a document of so many tokens is longer than the model reads, and does not begin again.
  void check_length(std::int64_t tokens, const std::string& name) const;

 private:
  const Bundle* bundle_;
  std::int64_t segment_len_;
  std::vector<std::int64_t> values_;  // of the settings, in the order of the bundle
  std::int64_t mem_len_ = 0;
};

}  // namespace xlruntime
