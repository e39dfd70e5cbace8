#pragma once

#include "chunk_work.h"
#include "kernel.h"

namespace xlexport {

// LSHChunkAttention: attention over a whole document as in Hugging Face's Reformer. See docs/custom_ops.md.
struct ChunkAttention {
  static constexpr const char* name = "LSHChunkAttention";
  static constexpr ort::ElementType inputs[] = {ort::kFloat, ort::kFloat, ort::kFloat,
                                                ort::kInt64, ort::kInt64, ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kFloat};

  int64_t chunk_length, chunks_before, multiple;
  float self_mask;

  OrtStatus* create(const Attributes& attributes);
  OrtStatus* compute(Context& run) const;
};

}  // namespace xlexport
