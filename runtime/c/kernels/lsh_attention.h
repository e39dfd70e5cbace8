#pragma once

#include "kernel.h"

namespace xlexport {

// LSHAttention: rule `band` for the newest rows of rings. See docs/custom_ops.md.
//
// Its last input repeats sizes; only the bodies need it.
struct LSHAttention {
  static constexpr const char* name = "LSHAttention";
  static constexpr ort::ElementType inputs[] = {ort::kFloat, ort::kFloat, ort::kInt32, ort::kFloat, ort::kFloat,
                                                ort::kInt64, ort::kInt64, ort::kInt64, ort::kInt64, ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kFloat, ort::kInt64};

  int64_t chunk_length;

  OrtStatus* create(const Attributes& attributes);
  OrtStatus* compute(Context& run) const;
};

}  // namespace xlexport
