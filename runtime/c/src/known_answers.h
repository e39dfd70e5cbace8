// The known answers of a bundle: tokens with the trained model's own scores, which this machine must reproduce.
#pragma once

#include <limits>
#include <optional>
#include <string>

#include "model.h"

namespace xlruntime {

struct Check {
  std::int64_t tokens = 0;             // whose scores were compared
  double largest = 0;                  // difference, divided by its bound
  std::optional<std::string> problem;  // the first difference: place, found, expected and bound
  bool certain = true;                 // whether a difference is an error; if not, rounding may choose another bucket
};

bool has_known_answers(const Model& model);

// Compare the scores of an open bundle with its known answers; nothing if it has none. No step begins after `seconds`,
// but the first.
//
// Throws XLR_ERROR_BUNDLE_FORMAT: the file breaks a rule of docs/bundle_format.md.
std::optional<Check> check_known_answers(Model& model,
                                         double seconds = std::numeric_limits<double>::infinity());

}  // namespace xlruntime
