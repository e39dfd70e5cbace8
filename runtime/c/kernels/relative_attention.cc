// RelativeAttention and RelativeAttentionInt8, which differ in the numbers of their rings.
#include <string.h>

#include "level.h"
#include "operators.h"
#include "scratch.h"

namespace xlexport {
namespace {

constexpr int kAttentionInputs = 9;
constexpr int64_t kWorthThreads = 65536;  // numbers to copy from which several threads pay
constexpr int64_t kTasks = 32;            // few queries: keys are split until there are so many tasks
constexpr int64_t kPart = 512;            // but a part has at least so many keys

OrtStatus* require_values(const Context& run, const Tensor& offset, const Tensor& memory_length, const Tensor& window,
                          int64_t S, int64_t C) {
  if (S > C) {
    return failure(run.api, "a step of %lld tokens, expected at most the %lld slots of memory_key",
                   static_cast<long long>(S), static_cast<long long>(C));
  }
  if (C > INT32_MAX) {
    return failure(run.api, "memory_key has %lld slots, expected fewer than 2^31", static_cast<long long>(C));
  }
  XLEXPORT_TRY(require(run.api, "offset", *offset.as<int64_t>(), 0, C > 0 ? C - 1 : INT64_MAX));
  XLEXPORT_TRY(require(run.api, "window", *window.as<int64_t>(), 1));
  for (int64_t b = 0; b < memory_length.shape[0]; ++b) {
    XLEXPORT_TRY(require(run.api, "memory_length", memory_length.as<int64_t>()[b], 0));
  }
  return nullptr;
}

// Run the tasks of a step on the threads of the session, each thread with scratch of `numbers` numbers.
OrtStatus* run_tasks(const Context& run, const AttentionStep& step, int64_t tasks, int64_t numbers,
                     void (*attend)(const AttentionStep&, int64_t, float*)) {
  const size_t bytes = static_cast<size_t>(numbers) * sizeof(float);
  return run_with_scratch(run, "RelativeAttention", tasks, bytes, [&, attend](char* scratch, int64_t task) {
    attend(step, task, reinterpret_cast<float*>(scratch));
  });
}

OrtStatus* attend_few(const Context& run, AttentionStep step, const AttentionLoops& loops) {
  const int64_t heads = step.B * step.H, wanted = kTasks / heads, most = step.C / kPart;
  step.parts = wanted < most ? wanted : most;
  if (step.parts < 1) step.parts = 1;
  const int64_t partial = step.parts == 1 ? 0 : heads * step.parts * step.S * (step.d + 2);
  const Memory memory(static_cast<size_t>(partial) * sizeof(float));
  step.partial = reinterpret_cast<float*>(memory.data());
  if (step.partial == nullptr) return failure(run.api, "no memory for %lld numbers", static_cast<long long>(partial));
  XLEXPORT_TRY(run_tasks(run, step, heads * step.parts, loops.few_scratch(step), loops.attend_few));
  for (int64_t head = 0; head < heads && step.parts > 1; ++head) loops.merge_parts(step, head);
  return nullptr;
}

// Read the inputs and compare their shapes and numbers. `places` are the indices of qkv, content_bias, position_bias,
// memory_key, memory_value, position_key, offset, memory_length and window.
OrtStatus* read_attention(const Context& run, const int (&places)[kAttentionInputs], AttentionStep* step, Tensor* key,
                          Tensor* value) {
  Tensor qkv, content_bias, position_bias, position_key, offset, memory_length, window;
  Tensor* const all[] = {&qkv,          &content_bias, &position_bias, key,    value,
                         &position_key, &offset,       &memory_length, &window};
  const char* const names[] = {"qkv",          "content_bias", "position_bias", "memory_key", "memory_value",
                                      "position_key", "offset",       "memory_length", "window"};
  const int ranks[] = {3, 3, 3, 4, 4, 3, 1, 1, 1};
  for (int index = 0; index < kAttentionInputs; ++index) {
    XLEXPORT_TRY(run.input(static_cast<size_t>(places[index]), all[index]));
    XLEXPORT_TRY(run.require_rank(names[index], *all[index], ranks[index]));
  }
  const int64_t B = key->shape[0], H = key->shape[1], C = key->shape[2], d = key->shape[3], S = qkv.shape[1];
  for (int axis = 0; axis < 4; ++axis) XLEXPORT_TRY(run.require_axis("memory_value", *value, axis, key->shape[axis]));
  XLEXPORT_TRY(run.require_axis("qkv", qkv, 0, B));
  XLEXPORT_TRY(run.require_axis("qkv", qkv, 2, 3 * H * d));
  for (int bias = 1; bias <= 2; ++bias) {  // (H, 1, d)
    XLEXPORT_TRY(run.require_axis(names[bias], *all[bias], 0, H));
    XLEXPORT_TRY(run.require_axis(names[bias], *all[bias], 1, 1));
    XLEXPORT_TRY(run.require_axis(names[bias], *all[bias], 2, d));
  }
  XLEXPORT_TRY(run.require_axis("position_key", position_key, 0, H));
  XLEXPORT_TRY(run.require_axis("position_key", position_key, 1, d));
  if (position_key.shape[2] < 1) return failure(run.api, "axis 2 of position_key is 0, expected at least 1");
  XLEXPORT_TRY(run.require_axis("offset", offset, 0, 1));
  XLEXPORT_TRY(run.require_axis("memory_length", memory_length, 0, B));
  XLEXPORT_TRY(run.require_axis("window", window, 0, 1));
  XLEXPORT_TRY(require_values(run, offset, memory_length, window, S, C));
  step->B = B;
  step->H = H;
  step->S = S;
  step->C = C;
  step->d = d;
  step->near = position_key.shape[2] - 1;
  step->offset = *offset.as<int64_t>();
  step->window = *window.as<int64_t>();
  step->memory_length = memory_length.as<int64_t>();
  step->qkv = qkv.as<float>();
  step->content_bias = content_bias.as<float>();
  step->position_bias = position_bias.as<float>();
  step->position_key = position_key.as<float>();
  return nullptr;
}

// Attend with all queries of a step; its rows are in the rings already.
OrtStatus* attend(const Context& run, const AttentionStep& step, const AttentionLoops& loops) {
  if (step.S == 0) return nullptr;
  if (step.S <= kFewQueries) return attend_few(run, step, loops);
  const int64_t tasks = step.B * step.H * attention_blocks(step.S);
  return run_tasks(run, step, tasks, loops.block_scratch(step), loops.attend_block);
}

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
