#pragma once

#include "kernel.h"

namespace xlexport {

// RelativeAttentionPlan: what the bodies of all layers share. The kernel of RelativeAttention needs none of it.
struct RelativeAttentionPlan {
  static constexpr const char* name = "RelativeAttentionPlan";
  static constexpr ort::ElementType inputs[] = {ort::kInt64, ort::kFloat, ort::kFloat,
                                                ort::kInt64, ort::kInt64, ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kInt64, ort::kFloat, ort::kFloat, ort::kFloat, ort::kInt64};

  OrtStatus* create(const Attributes&) { return nullptr; }
  OrtStatus* compute(Context& run) const;
};

}  // namespace xlexport
