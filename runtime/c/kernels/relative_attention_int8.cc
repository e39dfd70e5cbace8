#include "relative_attention_int8.h"

#include <string.h>

#include "level.h"
#include "relative_attention_run.h"

namespace xlexport {
namespace {

constexpr int64_t kLongestRow = 65536;  // sums of more products may leave 32 bits

// A ring before and after a step.
struct Ring {
  const int8_t* before;
  const float* before_scale;
  int8_t* rows;
  float* scale;
};

// Write this step's rows of a ring; `part` is 1 for keys, 2 for values. Copy the ring first if it has a buffer of its own.
void write_ring(const AttentionStep& step, int part, int64_t head, const Ring& ring) {
  const int64_t C = step.C, d = step.d, b = head / step.H, h = head % step.H;
  int8_t* const rows = ring.rows + head * C * d;
  float* const scale = ring.scale + head * C;
  if (ring.before != ring.rows) memcpy(rows, ring.before + head * C * d, static_cast<size_t>(C * d));
  if (ring.before_scale != ring.scale) {
    memcpy(scale, ring.before_scale + head * C, static_cast<size_t>(C) * sizeof(float));
  }
  for (int64_t i = 0; i < step.S; ++i) {
    const int64_t slot = (step.offset + i) % C;
    const float* const row = step.qkv + (((b * step.S + i) * 3 + part) * step.H + h) * d;
    scale[slot] = level().int8_attention.round_row(row, d, rows + slot * d);
  }
}

// Read the scales of a ring of this shape.
OrtStatus* read_scale(const Context& run, size_t index, const char* name, const Tensor& ring, Tensor* scale) {
  XLEXPORT_TRY(run.input(index, scale));
  XLEXPORT_TRY(run.require_rank(name, *scale, 3));
  for (int axis = 0; axis < 3; ++axis) XLEXPORT_TRY(run.require_axis(name, *scale, axis, ring.shape[axis]));
  return nullptr;
}

}  // namespace

OrtStatus* RelativeAttentionInt8::compute(Context& run) const {
  AttentionStep step = {};
  Tensor key, value, key_scale, value_scale;
  XLEXPORT_TRY(read_attention(run, {0, 1, 2, 3, 5, 7, 8, 9, 10}, &step, &key, &value));
  XLEXPORT_TRY(read_scale(run, 4, "memory_key_scale", key, &key_scale));
  XLEXPORT_TRY(read_scale(run, 6, "memory_value_scale", value, &value_scale));
  if (step.d > kLongestRow) {
    return failure(run.api, "axis 3 of memory_key is %lld, expected at most %lld", static_cast<long long>(step.d),
                   static_cast<long long>(kLongestRow));
  }
  const int64_t attended[] = {step.B, step.S, step.H * step.d};
  Ring keys = {key.as<int8_t>(), key_scale.as<float>(), nullptr, nullptr};
  Ring values = {value.as<int8_t>(), value_scale.as<float>(), nullptr, nullptr};
  XLEXPORT_TRY(run.output(0, attended, 3, &step.attended));
  XLEXPORT_TRY(run.output(1, key.shape, 4, &keys.rows));
  XLEXPORT_TRY(run.output(2, key_scale.shape, 3, &keys.scale));
  XLEXPORT_TRY(run.output(3, value.shape, 4, &values.rows));
  XLEXPORT_TRY(run.output(4, value_scale.shape, 3, &values.scale));
  const int64_t heads = step.B * step.H;
  if (heads * step.C == 0) return nullptr;

  auto write = [&](size_t head) {
    write_ring(step, 1, static_cast<int64_t>(head), keys);
    write_ring(step, 2, static_cast<int64_t>(head), values);
  };
  const bool in_place = keys.before == keys.rows && values.before == values.rows;
  if (in_place && heads * step.S * step.d < kWorthThreads / 4) {
    for (int64_t head = 0; head < heads; ++head) write(static_cast<size_t>(head));
  } else {
    XLEXPORT_TRY(run.parallel(static_cast<size_t>(heads), write));
  }
  if (step.d == 0) return nullptr;

  step.key8 = keys.rows;
  step.value8 = values.rows;
  step.key_scale = keys.scale;
  step.value_scale = values.scale;
  return attend(run, step, level().int8_attention.loops);
}

}  // namespace xlexport
