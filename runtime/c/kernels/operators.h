// The kernels, one class for each operator; kernel.h says what a class needs. See docs/bundle_format.md.
#pragma once

#include "kernel.h"

namespace xlexport {

// LSHSort: sort every row of bucket ids; equal ids stay in the order of their places.
struct Sort {
  static constexpr const char* name = "LSHSort";
  static constexpr ort::ElementType inputs[] = {ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kInt64, ort::kInt64};

  OrtStatus* create(const Attributes&) { return nullptr; }
  OrtStatus* compute(Context& run) const;
};

// LSHGather: gathered[…, m, :] = rows[…, index[…, m], :].
struct Gather {
  static constexpr const char* name = "LSHGather";
  static constexpr ort::ElementType inputs[] = {ort::kAny, ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kAny};

  OrtStatus* create(const Attributes&) { return nullptr; }
  OrtStatus* compute(Context& run) const;
};

// LSHBandAttention: attention of the newest rows to earlier keys of their bucket.
struct BandAttention {
  static constexpr const char* name = "LSHBandAttention";
  static constexpr ort::ElementType inputs[] = {ort::kFloat, ort::kFloat, ort::kFloat, ort::kInt64, ort::kInt64,
                                                ort::kInt64, ort::kInt64, ort::kInt64, ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kFloat, ort::kFloat};

  int64_t chunk_length;

  OrtStatus* create(const Attributes& attributes);
  OrtStatus* compute(Context& run) const;
};

// LSHAttention: rule `band` for the newest rows of rings.
//
// Its last input repeats sizes; only the bodies need it.
struct LSHAttention {
  static constexpr const char* name = "LSHAttention";
  static constexpr ort::ElementType inputs[] = {ort::kFloat, ort::kFloat, ort::kInt32, ort::kFloat, ort::kFloat,
                                                ort::kInt64, ort::kInt64, ort::kInt64, ort::kInt64, ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kFloat, ort::kInt64};

  int64_t chunk_length;

  OrtStatus* create(const Attributes& attributes);
  OrtStatus* compute(Context& run) const;
};

// LSHFewAttention: LSHAttention under the name that graphs for a few tokens use. Their body needs no sort.
struct LSHFewAttention : LSHAttention {
  static constexpr const char* name = "LSHFewAttention";
};

// LSHChunkAttention: attention over a whole document as in Hugging Face's Reformer.
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

// LocalAttention: each chunk of a document sees itself and the chunks before it.
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

// RelativeAttention: write a step's rows into two rings and attend to what each query sees.
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

// RelativeAttentionInt8: RelativeAttention on rings of 8-bit numbers with a scale a row.
//
// Its last input repeats sizes; only the body needs it.
struct RelativeAttentionInt8 {
  static constexpr const char* name = "RelativeAttentionInt8";
  static constexpr ort::ElementType inputs[] = {ort::kFloat, ort::kFloat, ort::kFloat, ort::kInt8,  ort::kFloat, ort::kInt8,
                                                ort::kFloat, ort::kFloat, ort::kInt64, ort::kInt64, ort::kInt64, ort::kInt64};
  static constexpr ort::ElementType outputs[] = {ort::kFloat, ort::kInt8, ort::kFloat, ort::kInt8, ort::kFloat};

  OrtStatus* create(const Attributes&) { return nullptr; }
  OrtStatus* compute(Context& run) const;
};

// QuantizeRows: whole numbers for the rows of a product.
struct QuantizeRows {
  static constexpr const char* name = "QuantizeRows";
  static constexpr ort::ElementType inputs[] = {ort::kFloat};
  static constexpr ort::ElementType outputs[] = {ort::kUint8, ort::kFloat};

  OrtStatus* create(const Attributes&) { return nullptr; }
  OrtStatus* compute(Context& run) const;
};

}  // namespace xlexport
