#pragma once

#include "kernel.h"

namespace xlexport {

// RelativeAttentionInt8: RelativeAttention on rings of 8-bit numbers with a scale a row. See docs/custom_ops.md.
//
// Its last input repeats sizes; only the body needs it.
struct RelativeAttentionInt8 {
  static constexpr const char* name = "RelativeAttentionInt8";
  static constexpr ort::ElementType inputs[] = {ort::kFloat, ort::kFloat, ort::kFloat, ort::kInt8,  ort::kFloat, ort::kInt8,
                                                ort::kFloat, ort::kFloat, ort::kInt64, ort::kInt64, ort::kInt64, ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kFloat, ort::kInt8, ort::kFloat, ort::kInt8, ort::kFloat};

  OrtStatus* create(const Attributes&) { return nullptr; }
  OrtStatus* compute(Context& run) const;
};

}  // namespace xlexport
