#pragma once

#include "kernel.h"

namespace xlexport {

// RelativeAttention: write a step's rows into two rings and attend to what each query sees. See docs/custom_ops.md.
//
// Its last input repeats sizes; only the body needs it.
struct RelativeAttention {
  static constexpr const char* name = "RelativeAttention";
  static constexpr ort::ElementType inputs[] = {ort::kFloat, ort::kFloat, ort::kFloat, ort::kFloat, ort::kFloat,
                                                ort::kFloat, ort::kInt64, ort::kInt64, ort::kInt64, ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kFloat, ort::kFloat, ort::kFloat};

  OrtStatus* create(const Attributes&) { return nullptr; }
  OrtStatus* compute(Context& run) const;
};

}  // namespace xlexport
