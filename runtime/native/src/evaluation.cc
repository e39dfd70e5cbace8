#include "evaluation.h"

#include <algorithm>
#include <cstdlib>

#include "error.h"
#include "messages.h"

namespace xlruntime {

namespace {

std::optional<std::int64_t> smaller(std::optional<std::int64_t> a, std::optional<std::int64_t> b) {
  return !a ? b : !b ? a : std::min(*a, *b);
}

std::string ring_problem(const EvaluationRules& rules, const std::string& symbol, const Ring& ring) {
  std::vector<std::string> problems;
  const Setting* rows = rules.settings.find(ring.rows);
  if (rows == nullptr || rows->type != Setting::Type::integer || !rows->minimum || *rows->minimum < 0 || rows->off) {
    problems.push_back("ring " + shown(symbol) + " keeps " + shown(ring.rows) +
                       " rows, which is not an integer setting of at least 0");
  }
  if (ring.same_length) {
    const Setting* limit = rules.settings.find(*ring.same_length);
    if (limit == nullptr || limit->type != Setting::Type::boolean) {
      problems.push_back("ring " + shown(symbol) + " is limited by " + shown(*ring.same_length) +
                         ", which is not a boolean setting");
    }
  }
  return joined(problems, "; ");
}

// The problems of the rules for cutting documents.
std::vector<std::string> walk_problems(const EvaluationRules& rules, std::int64_t segment_len, bool restart) {
  std::vector<std::string> problems;
  if (segment_len < 1 || segment_len > kLargestLength) {
    problems.push_back("segment_len is " + std::to_string(segment_len) + ", expected 1 to " +
                       std::to_string(kLargestLength));
  }
  if (rules.max_positions && *rules.max_positions < 1) {
    problems.push_back("max_positions is " + std::to_string(*rules.max_positions) + ", at least 1 is needed");
  }
  if (restart && !rules.longest_part(segment_len)) {
    problems.push_back("restart is chosen, but documents may be of any length, so nothing ever restarts");
  }
  return problems;
}

Error settings_error(const std::vector<std::string>& problems) {
  return Error(ErrorCode::option, "evaluation settings: " + joined(problems, "; ") + ".");
}

}  // namespace

std::string Setting::problem(const SettingValue& value) const {
  const std::string found = "is " + shown_value(value.as_json());
  if (type == Type::boolean) return value.is_boolean ? "" : found + ", expected true or false";
  if (value.is_boolean) return found + ", expected a whole number";
  const std::int64_t least = minimum.value_or(-kLargestLength), most = maximum.value_or(kLargestLength);
  if ((least <= value.number && value.number <= most) || (off && value.number == *off)) return "";
  std::string expected = std::to_string(least);
  if (least != most) expected += " to " + std::to_string(most);
  if (off) expected += ", or " + std::to_string(*off) + " for none";
  return "is " + std::to_string(value.number) + ", expected " + expected;
}

std::string EvaluationRules::problem() const {
  std::vector<std::string> problems;
  for (const char* own : {"segment_len", "restart"}) {
    if (settings.contains(own)) problems.push_back("the setting " + python_repr(own) + " is the runtime's own");
  }
  for (const auto& [symbol, ring] : rings) {
    if (std::string found = ring_problem(*this, symbol, ring); !found.empty()) problems.push_back(std::move(found));
  }
  if (whole && !rings.empty()) problems.push_back("a document is one step, so nothing is kept in rings");
  if (reads_last && !whole) problems.push_back("reads_last is true, but a document is not one step");
  for (std::string& found : walk_problems(*this, segment_len, restart)) problems.push_back(std::move(found));
  return problems.empty() ? "" : "evaluation settings: " + joined(problems, "; ");
}

std::optional<std::int64_t> EvaluationRules::longest_part(std::int64_t length) const {
  return smaller(max_positions, whole ? std::optional(length) : std::nullopt);
}

EvaluationSettings EvaluationRules::choose(const EvaluationChoice& choice) const {
  std::vector<std::string> strange, have{"segment_len"};
  for (const auto& [name, value] : choice.values) {
    if (!settings.contains(name)) strange.push_back(named(name));
  }
  if (!strange.empty()) {
    for (const auto& [name, setting] : settings) have.push_back(named(name));
    throw Error(ErrorCode::option,
                listed(strange) + ": not among the settings of this bundle (" + joined(have, ", ") + ").",
                "Leave it out.");
  }
  NamedList<SettingValue> values;
  for (const auto& [name, setting] : settings) {
    const SettingValue* given = choice.values.find(name);
    values.add(name, given == nullptr ? setting.default_value : *given);
  }
  std::int64_t length = choice.segment_len.value_or(segment_len);
  if (max_positions) length = std::min(length, *max_positions);
  return EvaluationSettings(*this, length, choice.restart.value_or(restart), std::move(values));
}

EvaluationSettings::EvaluationSettings(const EvaluationRules& rules, std::int64_t segment_len, bool restart,
                                       NamedList<SettingValue> values)
    : rules_(&rules), segment_len_(segment_len), restart_(restart), values_(std::move(values)) {
  std::vector<std::string> problems = walk_problems(rules, segment_len, restart);
  for (const auto& [name, setting] : rules.settings) {
    if (std::string found = setting.problem(*values_.find(name)); !found.empty()) {
      problems.push_back(named(name) + " " + found + " (" + one_line(setting.meaning) + ")");
    }
  }
  if (!problems.empty()) throw settings_error(problems);
  for (const auto& [symbol, ring] : rules.rings) {
    if (window(symbol) < 1) {
      problems.push_back(ring.rows + " is 0 and " + ring.same_length.value_or("None") +
                         " is true, so a token would see no key");
    }
  }
  if (!problems.empty()) throw settings_error(problems);
}

bool EvaluationSettings::whole() const { return rules_->whole; }

bool EvaluationSettings::reads_last() const { return rules_->reads_last; }

FirstMemory EvaluationSettings::first_memory() const { return rules_->first_memory; }

std::optional<std::int64_t> EvaluationSettings::max_positions() const { return rules_->max_positions; }

bool EvaluationSettings::is_equal(const Ring& ring) const {
  return !ring.same_length || values_.find(*ring.same_length)->number != 0;
}

bool EvaluationSettings::segmentation_matters() const {
  return std::any_of(rules_->rings.begin(), rules_->rings.end(),
                     [this](const auto& entry) { return !is_equal(entry.second); });
}

std::optional<std::int64_t> EvaluationSettings::longest_part() const { return rules_->longest_part(segment_len_); }

std::optional<std::int64_t> EvaluationSettings::longest_document() const {
  const auto longest = longest_part();
  return !longest || reads_last() ? longest : *longest + 1;
}

std::int64_t EvaluationSettings::most_rows() const {
  std::int64_t most = 0;
  for (const auto& [symbol, ring] : rules_->rings) most = std::max(most, rows(symbol));
  return most;
}

std::int64_t EvaluationSettings::rows(std::string_view symbol) const {
  return values_.find(rules_->rings.find(symbol)->rows)->number;
}

std::int64_t EvaluationSettings::window(std::string_view symbol) const {
  const Ring& ring = *rules_->rings.find(symbol);
  return is_equal(ring) ? rows(symbol) + ring.window_extra : kUnboundedWindow;
}

std::int64_t EvaluationSettings::widest_window() const {
  if (rules_->rings.empty()) return kUnboundedWindow;
  std::int64_t widest = 0;
  for (const auto& [symbol, ring] : rules_->rings) widest = std::max(widest, window(symbol));
  return widest;
}

std::int64_t EvaluationSettings::capacity() const { return most_rows() + segment_len_; }

std::int64_t EvaluationSettings::slots(std::string_view symbol, std::int64_t capacity) const {
  return rows(symbol) + max_segment(capacity);
}

std::int64_t EvaluationSettings::max_segment(std::int64_t capacity) const {
  return std::max<std::int64_t>(capacity, 0) - most_rows();  // a capacity may be any number of a caller or a file
}

NamedList<std::int64_t> EvaluationSettings::inputs() const {
  NamedList<std::int64_t> found;
  for (const auto& [name, setting] : rules_->settings) {
    if (!setting.input) continue;
    found.add(*setting.input, values_.find(name)->number);  // of two settings with one input, the last counts
  }
  return found;
}

json::Object EvaluationSettings::to_json() const {
  json::Object fields;
  fields.add("segment_len", segment_len_);
  fields.add("restart", restart_);
  for (const auto& [name, value] : values_) fields.add(name, value.as_json());
  return fields;
}

void check_length(std::int64_t tokens, const EvaluationSettings& evaluation, const std::string& name,
                  const std::string& found) {
  const auto longest = evaluation.longest_part(), most = evaluation.longest_document();
  if (!longest || tokens <= *most || evaluation.restart()) return;
  const bool can_grow = evaluation.whole() && longest != evaluation.max_positions();
  throw Error(ErrorCode::text,
              name + ": " + (found.empty() ? with_commas(tokens) + " tokens" : found) + ", but at most " +
                  with_commas(*most) + " are possible: the model reads " + with_commas(*longest) +
                  " tokens of a document" +
                  (evaluation.reads_last() ? "" : " and predicts one more") + ".",
              std::string("Make it shorter,") + (can_grow ? " or give a larger segment_len," : "") +
                  " or let it begin again every " + with_commas(*longest) + " tokens (restart=True, --restart).");
}

}  // namespace xlruntime
