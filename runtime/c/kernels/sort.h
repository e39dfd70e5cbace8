#pragma once

#include "kernel.h"

namespace xlexport {

// LSHSort: sort every row of bucket ids; equal ids stay in the order of their places. See docs/custom_ops.md.
struct Sort {
  static constexpr const char* name = "LSHSort";
  static constexpr ort::ElementType inputs[] = {ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kInt64, ort::kInt64};

  OrtStatus* create(const Attributes&) { return nullptr; }
  OrtStatus* compute(Context& run) const;
};

}  // namespace xlexport
