#include "compare.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

namespace conformance {

using xlruntime::json::Array;
using xlruntime::json::Object;
using xlruntime::json::Value;

namespace {

const std::set<std::string> kComputed = {"log_probs", "entropy", "top_log_probs", "totals", "outputs"};
const std::set<std::string> kOptional = {"graphs", "unknown_tokens"};
constexpr std::size_t kShown = 100;  // bytes of a value in a message

std::optional<double> number(const Value& value) {
  if (const auto* integer = value.as<std::int64_t>()) return static_cast<double>(*integer);
  if (const auto* real = value.as<double>()) return *real;
  return std::nullopt;
}

std::string text_of(const Value& value) {
  std::string text;
  if (const auto* list = value.as<Array>()) {
    for (const Value& each : *list) text += (text.empty() ? "" : ", ") + text_of(each);
    return "[" + text + "]";
  }
  if (const auto* object = value.as<Object>()) {
    for (const auto& [name, each] : *object) text += (text.empty() ? "" : ", ") + name + ": " + text_of(each);
    return "{" + text + "}";
  }
  if (const auto* string = value.as<std::string>()) return "\"" + *string + "\"";
  if (const auto* flag = value.as<bool>()) return *flag ? "true" : "false";
  if (value.is_null()) return "null";
  char digits[32];
  std::snprintf(digits, sizeof digits, "%.9g", *number(value));
  return digits;
}

std::string shown(const Value& value) { return text_of(value).substr(0, kShown); }

// Return the largest difference of numbers; without a value if the values differ otherwise.
std::optional<double> difference(const Value& expected, const Value& found, bool are_relative) {
  double most = 0;
  if (const auto* list = expected.as<Array>()) {
    const auto* other = found.as<Array>();
    if (other == nullptr || other->size() != list->size()) return std::nullopt;
    for (std::size_t i = 0; i < list->size(); ++i) {
      const auto each = difference((*list)[i], (*other)[i], are_relative);
      if (!each) return std::nullopt;
      most = std::max(most, *each);
    }
    return most;
  }
  if (const auto* object = expected.as<Object>()) {
    const auto* other = found.as<Object>();
    for (const auto& [name, value] : *object) {
      const Value* twin = other == nullptr ? nullptr : other->find(name);
      const auto each = twin == nullptr ? std::nullopt : difference(value, *twin, are_relative);
      if (!each) return std::nullopt;
      most = std::max(most, *each);
    }
    return most;
  }
  const auto a = number(expected), b = number(found);
  if (!a || !b) return text_of(expected) == text_of(found) ? std::optional(0.0) : std::nullopt;
  const auto *whole = expected.as<std::int64_t>(), *other = found.as<std::int64_t>();
  if (are_relative && whole && other) return *whole == *other ? 0 : INFINITY;
  // Expected numbers in nats are the shortest decimals of float32.
  most = are_relative ? std::abs(*a - *b) / std::max(1.0, std::abs(*a))
                    : std::abs(static_cast<double>(static_cast<float>(*a)) - static_cast<float>(*b));
  return std::isnan(most) ? INFINITY : most;
}

bool are_equal(const Value& expected, const Value& found) { return difference(expected, found, true) == 0.0; }

// Whether a place has the expected ids. Equally likely ones, up to rounding, may be in another order.
bool are_likeliest(const Array& wanted, const Array& found, const Array& log_probs, double nats) {
  if (wanted.size() != found.size()) return false;
  for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
    const auto near = [&](std::size_t other) {
      return std::abs(*number(log_probs.at(other)) - *number(log_probs.at(rank))) <= 2 * nats;
    };
    bool fits = are_equal(wanted[rank], found[rank]) || near(wanted.size() - 1);  // the next is not listed
    for (std::size_t other = 0; !fits && other < wanted.size(); ++other) {
      fits = near(other) && are_equal(wanted[other], found[rank]);
    }
    if (!fits) return false;
  }
  return true;
}

bool are_likeliest(const Object& expected, const Value& found, double nats) {
  const auto& wanted = *expected.find("top_ids")->as<Array>();
  const auto& log_probs = *expected.find("top_log_probs")->as<Array>();
  const auto& rows = *found.as<Array>();
  bool fit = wanted.size() == rows.size();
  for (std::size_t i = 0; fit && i < wanted.size(); ++i) {
    fit = are_likeliest(*wanted[i].as<Array>(), *rows[i].as<Array>(), *log_probs[i].as<Array>(), nats);
  }
  return fit;
}

}  // namespace

void Comparison::add(const Object& expected, const Object& found, const std::string& where) {
  for (const auto& [name, wanted] : expected) {
    const Value* value = found.find(name);
    if (value == nullptr && kOptional.count(name) != 0) {
      not_given.insert(name);
    } else if (value == nullptr) {
      problems.push_back(where + ": " + name + " is missing");
    } else if (name == "counts") {
      add(*wanted.as<Object>(), *value->as<Object>(), where);
    } else if (kComputed.count(name) != 0) {
      const double allowed = name == "totals" ? totals : nats;
      const double most = difference(wanted, *value, name == "totals" || name == "outputs").value_or(INFINITY);
      if (name != "totals") largest = std::max(largest, most);
      if (most <= allowed) continue;
      problems.push_back(where + ": " + name + " differs by up to " + shown(most) + ", allowed " + shown(allowed));
    } else if (name == "top_ids" ? !are_likeliest(expected, *value, nats) : !are_equal(wanted, *value)) {
      problems.push_back(where + ": " + name + " is " + shown(*value) + ", expected " + shown(wanted));
    }
  }
}

}  // namespace conformance
