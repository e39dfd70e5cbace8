#pragma once

#include "kernel.h"

namespace xlexport {

// LocalAttention: each chunk of a document sees itself and the chunks before it. See docs/custom_ops.md.
//
// Its last input repeats sizes; only the body needs it.
struct LocalAttention {
  static constexpr const char* name = "LocalAttention";
  static constexpr ort::ElementType inputs[] = {ort::kFloat, ort::kFloat, ort::kFloat, ort::kInt64, ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kFloat};

  int64_t chunk_length, chunks_before;

  OrtStatus* create(const Attributes& attributes);
  OrtStatus* compute(Context& run) const;
};

}  // namespace xlexport
