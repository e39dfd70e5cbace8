// The known answers of a bundle: what the trained model computes of a few inputs, which this machine must reproduce.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "model.h"

namespace xlruntime {

struct Check {
  std::int64_t tokens = 0;             // whose scores were compared, or steps of a step model
  double largest = 0;                  // difference, divided by its bound
  std::optional<std::string> problem;  // the first difference: place, found, expected and bound
  bool certain = true;                 // whether a difference is an error; if not, rounding may choose another one
};

bool has_known_answers(const Model& model);

// Compare what an open bundle computes with its known answers; nothing if it has none. No step begins after `seconds`,
// but the first.
//
// Throws XLR_ERROR_BUNDLE_FORMAT: the file breaks a rule of docs/bundle_format.md.
std::optional<Check> check_known_answers(const std::shared_ptr<Model>& model,
                                         double seconds = std::numeric_limits<double>::infinity());

}  // namespace xlruntime
