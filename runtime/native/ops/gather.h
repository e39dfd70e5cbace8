#pragma once

#include "kernel.h"

namespace xlexport {

// LSHGather: gathered[…, m, :] = rows[…, index[…, m], :]. See docs/custom_ops.md.
struct Gather {
  static constexpr const char* name = "LSHGather";
  static constexpr ort::ElementType inputs[] = {ort::kFloat, ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kFloat};

  OrtStatus* create(const Attributes&) { return nullptr; }
  OrtStatus* compute(Context& run) const;
};

}  // namespace xlexport
