// Evaluation settings: a bundle declares them, a caller chooses values, and graphs take them as inputs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "json.h"
#include "named_list.h"

namespace xlruntime {

inline constexpr std::int64_t kLargestLength = std::int64_t{1} << 30;    // of any number
inline constexpr std::int64_t kUnboundedWindow = std::int64_t{1} << 62;  // "no window"; safe to add to

struct SettingValue {
  bool is_boolean = false;
  std::int64_t number = 0;  // 0 or 1 if it is a boolean

  static SettingValue boolean(bool value) { return {true, value ? 1 : 0}; }
  static SettingValue integer(std::int64_t value) { return {false, value}; }
  json::Value as_json() const { return is_boolean ? json::Value(number != 0) : json::Value(number); }
  bool operator==(const SettingValue& other) const {
    return is_boolean == other.is_boolean && number == other.number;
  }
};

// One evaluation setting of a bundle.
struct Setting {
  enum class Type { integer, boolean };

  Type type = Type::integer;
  SettingValue default_value;
  std::string meaning;               // one line for people, unit included
  std::optional<std::string> input;  // graph input that takes the value, int64 (1); none: only the runtime uses it
  std::optional<std::int64_t> minimum, maximum;
  std::optional<std::int64_t> off;  // integer outside the range that switches the setting off

  // The problem of a value, or empty if it can be chosen.
  std::string problem(const SettingValue& value) const;
};

// The rings of one capacity: which rows they keep, and which graph inputs describe them.
struct Ring {
  std::string rows;                        // setting with the number of kept rows of earlier segments
  std::optional<std::string> same_length;  // boolean setting that limits every query; none: the limit always holds
  std::int64_t window_extra = 0;
  std::string offset = "offset";                          // int64 (1): slot that takes the step's first row
  std::optional<std::string> length = "memory_length";    // int64 (B): kept rows that each batch row may see
  std::optional<std::string> window = "window";           // int64 (1): most keys that a query sees
};

enum class FirstMemory { empty, zeros };

struct EvaluationRules;

// The settings of one walk. It holds a reference to the rules, which must outlive it: they belong to the bundle.
class EvaluationSettings {
 public:
  // Throws ErrorCode::option: values are out of range; lists all of them.
  EvaluationSettings(const EvaluationRules& rules, std::int64_t segment_len, bool restart,
                     NamedList<SettingValue> values);

  const EvaluationRules& rules() const { return *rules_; }
  std::int64_t segment_len() const { return segment_len_; }
  bool restart() const { return restart_; }
  const NamedList<SettingValue>& values() const { return values_; }

  bool whole() const;
  bool reads_last() const;
  FirstMemory first_memory() const;
  std::optional<std::int64_t> max_positions() const;

  bool segmentation_matters() const;                      // whether scores depend on segment_len and ends of feeds
  std::optional<std::int64_t> longest_part() const;       // tokens read before a document is refused or restarts
  std::optional<std::int64_t> longest_document() const;   // tokens of a document that is scored without a restart
  std::int64_t most_rows() const;                         // in the ring that keeps the most; 0 without rings
  std::int64_t rows(std::string_view symbol) const;       // of earlier segments, in rings of this capacity
  std::int64_t window(std::string_view symbol) const;     // most keys that a query sees, itself included
  std::int64_t widest_window() const;
  std::int64_t capacity() const;                          // slots that the largest ring needs
  std::int64_t slots(std::string_view symbol, std::int64_t capacity) const;  // if the largest ring has `capacity`
  std::int64_t max_segment(std::int64_t capacity) const;  // longest step; longer ones would be silently wrong
  NamedList<std::int64_t> inputs() const;                 // what graphs take, by the names of their inputs
  json::Object to_json() const;                           // all values by name, as a saved stream has them

 private:
  bool is_equal(const Ring& ring) const;  // whether every query sees equally many keys

  const EvaluationRules* rules_;
  std::int64_t segment_len_;
  bool restart_;
  NamedList<SettingValue> values_;
};

// What a caller chooses; what is left out keeps the bundle's default.
struct EvaluationChoice {
  std::optional<std::int64_t> segment_len;
  std::optional<bool> restart;
  NamedList<SettingValue> values;
};

// The rules for walking a bundle's documents, and the settings that a caller may choose.
struct EvaluationRules {
  std::int64_t segment_len = 0;
  NamedList<Setting> settings;
  NamedList<Ring> rings;  // by the symbol of the capacity in the shapes of memories
  FirstMemory first_memory = FirstMemory::empty;
  std::optional<std::int64_t> max_positions;
  bool restart = false;
  bool whole = false;
  bool reads_last = false;

  // The problems of the declarations together, as one text; empty if there are none.
  std::string problem() const;

  std::optional<std::int64_t> longest_part(std::int64_t segment_len) const;

  // Throws ErrorCode::option: the bundle has no such setting, or a value is out of range; lists all of them.
  EvaluationSettings choose(const EvaluationChoice& choice = {}) const;
};

// Throws ErrorCode::text: a document of `tokens` is longer than the model can read, and may not restart. `found` is the
// length as the message shows it; empty: `tokens`.
void check_length(std::int64_t tokens, const EvaluationSettings& evaluation, const std::string& name,
                  const std::string& found = "");

}  // namespace xlruntime
