#pragma once

#include "kernel.h"

namespace xlexport {

// LSHGather: gathered[…, m, :] = rows[…, index[…, m], :]. See docs/custom_ops.md.
struct Gather {
  static constexpr const char* name = "LSHGather";
  static constexpr ort::ElementType inputs[] = {ort::kAny, ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kAny};

  OrtStatus* create(const Attributes&) { return nullptr; }
  OrtStatus* compute(Context& run) const;
};

}  // namespace xlexport
