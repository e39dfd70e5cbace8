#pragma once

#include "band_work.h"
#include "kernel.h"

namespace xlexport {

// LSHBandAttention: attention of the newest rows to earlier keys of their bucket. See docs/custom_ops.md.
struct BandAttention {
  static constexpr const char* name = "LSHBandAttention";
  static constexpr ort::ElementType inputs[] = {ort::kFloat, ort::kFloat, ort::kFloat, ort::kInt64, ort::kInt64,
                                                ort::kInt64, ort::kInt64, ort::kInt64, ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kFloat, ort::kFloat};

  int64_t chunk_length;

  OrtStatus* create(const Attributes& attributes);
  OrtStatus* compute(Context& run) const;
};

}  // namespace xlexport
