#pragma once

#include "kernel.h"

namespace xlexport {

// LSHAttention: rule `band` for the newest rows of rings. See docs/custom_ops.md.
struct LSHAttention {
  static constexpr const char* name = "LSHAttention";
  static constexpr ort::ElementType inputs[] = {ort::kFloat, ort::kFloat, ort::kInt32, ort::kFloat, ort::kFloat,
                                                ort::kInt64, ort::kInt64, ort::kInt64, ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kFloat, ort::kInt64};

  int64_t chunk_length;

  OrtStatus* create(const Attributes& attributes);
  OrtStatus* compute(Context& run) const;
};

// LSHFewAttention: the same for a few queries, which are given.
//
// Its last input comes from LSHFewAttentionPlan; only the body needs it, and `own` and `own_value`, which the rings hold.
struct LSHFewAttention {
  static constexpr const char* name = "LSHFewAttention";
  static constexpr ort::ElementType inputs[] = {ort::kFloat, ort::kFloat, ort::kInt32, ort::kFloat,
                                                ort::kInt32, ort::kFloat, ort::kInt64, ort::kInt64,
                                                ort::kInt64, ort::kInt64, ort::kInt32};
  static constexpr ort::ElementType outputs[] = {ort::kFloat, ort::kInt64};

  int64_t chunk_length;

  OrtStatus* create(const Attributes& attributes);
  OrtStatus* compute(Context& run) const;
};

// LSHFewAttentionPlan: what the bodies of all layers share, which is nothing here.
struct LSHFewAttentionPlan {
  static constexpr const char* name = "LSHFewAttentionPlan";
  static constexpr ort::ElementType inputs[] = {ort::kInt64, ort::kInt32, ort::kInt64, ort::kInt64, ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kInt32};

  OrtStatus* create(const Attributes&) { return nullptr; }
  OrtStatus* compute(Context& run) const;
};

}  // namespace xlexport
