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

const std::set<std::string> kComputed = {"log_probs", "entropy", "top_log_probs", "totals"};
const std::set<std::string> kOptional = {"graphs", "unknown_tokens"};
constexpr std::size_t kShown = 100;  // characters of a value in a message

std::string canonical(const Value& value) { return dump(value, xlruntime::json::Order::sorted); }

std::string shown(const Value& value) {
  const std::string text = dump(value);
  return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

std::string shown(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

std::optional<double> number(const Value& value) {
  if (const auto* integer = value.as<std::int64_t>()) return static_cast<double>(*integer);
  if (const auto* real = value.as<double>()) return *real;
  return std::nullopt;
}

// Return whether values are alike but for their numbers, and raise `most` to the largest difference of these.
bool alike(const Value& expected, const Value& found, bool are_totals, double& most) {
  if (const auto* list = expected.as<Array>()) {
    const auto* given = found.as<Array>();
    const auto both = [&](const Value& a, const Value& b) { return alike(a, b, are_totals, most); };
    return given != nullptr && std::equal(list->begin(), list->end(), given->begin(), given->end(), both);
  }
  if (const auto* object = expected.as<Object>()) {
    const auto* given = found.as<Object>();
    return given != nullptr && std::all_of(object->begin(), object->end(), [&](const auto& member) {
             const Value* value = given->find(member.first);
             return value != nullptr && alike(member.second, *value, are_totals, most);
           });
  }
  const auto a = number(expected), b = number(found);
  if (!a || !b) return canonical(expected) == canonical(found);
  // Expected numbers in nats are the shortest decimals of float32.
  const double difference = are_totals ? std::abs(*a - *b) / std::max(1.0, std::abs(*a))
                                       : std::abs(static_cast<double>(static_cast<float>(*a)) - static_cast<float>(*b));
  most = std::isnan(difference) ? INFINITY : std::max(most, difference);
  return true;
}

// Return whether a place has the expected ids. Equally likely ones, up to rounding, may be in another order.
bool likeliest(const Array& wanted, const Array& found, const Array& log_probs, double nats) {
  if (wanted.size() != found.size()) return false;
  for (std::size_t rank = 0; rank < wanted.size(); ++rank) {
    const auto near = [&](std::size_t other) {
      return std::abs(*number(log_probs.at(other)) - *number(log_probs.at(rank))) <= 2 * nats;
    };
    bool fits = canonical(wanted[rank]) == canonical(found[rank]) || near(wanted.size() - 1);  // the next is not listed
    for (std::size_t other = 0; !fits && other < wanted.size(); ++other) {
      fits = near(other) && canonical(wanted[other]) == canonical(found[rank]);
    }
    if (!fits) return false;
  }
  return true;
}

bool likeliest(const Object& expected, const Value& found, double nats) {
  const auto rows = [](const Value& value) { return *value.as<Array>(); };
  const Array wanted = rows(*expected.find("top_ids")), log_probs = rows(*expected.find("top_log_probs"));
  const Array given = rows(found);
  bool fits = wanted.size() == given.size();
  for (std::size_t i = 0; fits && i < wanted.size(); ++i) {
    fits = likeliest(rows(wanted[i]), rows(given[i]), rows(log_probs[i]), nats);
  }
  return fits;
}

}  // namespace

void Comparison::add(const Object& expected, const Object& found, const std::string& where) {
  for (const auto& [name, wanted] : expected) {
    const Value* given = found.find(name);
    double most = 0;
    if (given == nullptr && kOptional.count(name) != 0) {
      not_given.insert(name);
    } else if (given == nullptr) {
      problems.push_back(where + ": " + name + " is missing");
    } else if (name == "counts") {
      add(*wanted.as<Object>(), *given->as<Object>(), where);
    } else if (kComputed.count(name) != 0 && alike(wanted, *given, name == "totals", most)) {
      const double allowed = name == "totals" ? totals : nats;
      if (name != "totals") largest = std::max(largest, most);
      if (most <= allowed) continue;
      problems.push_back(where + ": " + name + " differs by up to " + shown(most) + ", allowed " + shown(allowed));
    } else if (name == "top_ids" ? !likeliest(expected, *given, nats) : canonical(wanted) != canonical(*given)) {
      problems.push_back(where + ": " + name + " is " + shown(*given) + ", expected " + shown(wanted));
    }
  }
}

}  // namespace conformance
