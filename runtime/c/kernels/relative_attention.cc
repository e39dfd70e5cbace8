#include "relative_attention.h"

#include <string.h>

#include "level.h"
#include "relative_attention_run.h"

namespace xlexport {
namespace {

// Write this step's rows of a ring; `part` is 1 for keys, 2 for values. Copy the ring first if it has a buffer of its own.
void write_ring(const AttentionStep& step, int part, int64_t head, const float* before, float* ring) {
  const int64_t d = step.d, b = head / step.H, h = head % step.H;
  const size_t row = static_cast<size_t>(d) * sizeof(float);
  float* const own = ring + head * step.C * d;
  if (before != ring) memcpy(own, before + head * step.C * d, static_cast<size_t>(step.C) * row);
  for (int64_t i = 0; i < step.S; ++i) {
    const int64_t slot = (step.offset + i) % step.C;
    memcpy(own + slot * d, step.qkv + (((b * step.S + i) * 3 + part) * step.H + h) * d, row);
  }
}

}  // namespace

OrtStatus* RelativeAttention::compute(Context& run) const {
  AttentionStep step = {};
  Tensor key, value;
  XLEXPORT_TRY(read_attention(run, {0, 1, 2, 3, 4, 5, 6, 7, 8}, &step, &key, &value));
  const int64_t attended[] = {step.B, step.S, step.H * step.d};
  float *new_key, *new_value;
  XLEXPORT_TRY(run.output(0, attended, 3, &step.attended));
  XLEXPORT_TRY(run.output(1, key.shape, 4, &new_key));
  XLEXPORT_TRY(run.output(2, value.shape, 4, &new_value));
  if (key.count() == 0) return nullptr;

  const int64_t heads = step.B * step.H;
  auto write = [&](size_t head) {
    write_ring(step, 1, static_cast<int64_t>(head), key.as<float>(), new_key);
    write_ring(step, 2, static_cast<int64_t>(head), value.as<float>(), new_value);
  };
  const bool in_place = key.data == new_key && value.data == new_value;
  if (in_place && heads * step.S * step.d < kWorthThreads) {
    for (int64_t head = 0; head < heads; ++head) write(static_cast<size_t>(head));
  } else {
    XLEXPORT_TRY(run.parallel(static_cast<size_t>(heads), write));
  }
  step.key = new_key;
  step.value = new_value;
  return attend(run, step, level().attention);
}

}  // namespace xlexport
