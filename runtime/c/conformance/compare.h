// Compare what an action gave with what the kit expects.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "../src/json.h"

namespace conformance {

// Differences between expected and found values, and the largest difference of numbers.
struct Comparison {
  double nats;    // allowed difference of log-probabilities and entropies
  double totals;  // and of totals, relative to expected values above 1
  double largest = 0;
  bool low_precision = false;  // whether the case states its own bounds
  std::vector<std::string> problems{};
  std::set<std::string> not_given{};  // what the C interface does not have

  // Compare all fields that are expected; further ones may be found.
  void add(const xlruntime::json::Object& expected, const xlruntime::json::Object& found, const std::string& where);
};

}  // namespace conformance
