#pragma once

#include "kernel.h"

namespace xlexport {

// LocalAttention: each chunk of a document sees itself and the chunks before it. See docs/custom_ops.md.
//
// Its last inputs come from LocalAttentionPlan; only the bodies need them.
struct LocalAttention {
  static constexpr const char* name = "LocalAttention";
  static constexpr ort::ElementType inputs[] = {ort::kFloat, ort::kFloat, ort::kFloat,
                                                ort::kInt64, ort::kFloat, ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kFloat};

  int64_t chunk_length, chunks_before;

  OrtStatus* create(const Attributes& attributes);
  OrtStatus* compute(Context& run) const;
};

// LocalFewAttention: the same for a few tokens; only its body differs.
struct LocalFewAttention : LocalAttention {
  static constexpr const char* name = "LocalFewAttention";
  static constexpr ort::ElementType inputs[] = {ort::kFloat, ort::kFloat, ort::kFloat, ort::kInt64, ort::kFloat};
};

// LocalAttentionPlan: what the bodies of all layers share, which is nothing here.
struct LocalAttentionPlan {
  static constexpr const char* name = "LocalAttentionPlan";
  static constexpr ort::ElementType inputs[] = {ort::kInt64, ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kFloat, ort::kInt64};

  OrtStatus* create(const Attributes&) { return nullptr; }
  OrtStatus* compute(Context& run) const;
};

}  // namespace xlexport
