#include "relative_attention.h"

#include <string.h>

#include "level.h"
#include "scratch.h"

namespace xlexport {
namespace {

constexpr int64_t kTasks = 32;            // few queries: keys are split until there are so many tasks
constexpr int64_t kPart = 512;            // but a part has at least so many keys
constexpr int64_t kWorthThreads = 65536;  // numbers to copy from which several threads pay

OrtStatus* require_values(const Context& run, const Tensor& offset, const Tensor& memory_length, const Tensor& window,
                          int64_t S, int64_t C) {
  if (S > C) {
    return failure(run.api, "a step of %lld tokens, expected at most the %lld slots of memory_key",
                   static_cast<long long>(S), static_cast<long long>(C));
  }
  if (C > INT32_MAX) {
    return failure(run.api, "memory_key has %lld slots, expected fewer than 2^31", static_cast<long long>(C));
  }
  const int64_t first = *offset.as<int64_t>(), widest = *window.as<int64_t>();
  if (first < 0 || (first >= C && C > 0)) {
    return failure(run.api, "offset is %lld, expected 0 to %lld", static_cast<long long>(first),
                   static_cast<long long>(C - 1));
  }
  if (widest < 1) return failure(run.api, "window is %lld, expected at least 1", static_cast<long long>(widest));
  for (int64_t b = 0; b < memory_length.shape[0]; ++b) {
    const int64_t length = memory_length.as<int64_t>()[b];
    if (length < 0) {
      return failure(run.api, "memory_length[%lld] is %lld, expected at least 0", static_cast<long long>(b),
                     static_cast<long long>(length));
    }
  }
  return nullptr;
}

// Read the inputs and compare their shapes and numbers.
OrtStatus* read(const Context& run, AttentionStep* step, Tensor* key, Tensor* value) {
  Tensor qkv, content_bias, position_bias, position_key, offset, memory_length, window;
  Tensor* const all[] = {&qkv,          &content_bias, &position_bias, key,    value,
                         &position_key, &offset,       &memory_length, &window};
  static const char* const names[] = {"qkv",          "content_bias", "position_bias", "memory_key", "memory_value",
                                      "position_key", "offset",       "memory_length", "window"};
  static const int ranks[] = {3, 3, 3, 4, 4, 3, 1, 1, 1};
  for (size_t index = 0; index < sizeof ranks / sizeof ranks[0]; ++index) {
    XLEXPORT_TRY(run.input(index, all[index]));
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

// Run the tasks of a step on the threads of the session, each thread with scratch of `numbers` numbers.
OrtStatus* run_tasks(const Context& run, const AttentionStep& step, int64_t tasks, int64_t numbers,
                     void (*attend)(const AttentionStep&, int64_t, float*)) {
  const size_t bytes = static_cast<size_t>(numbers) * sizeof(float);
  return run_with_scratch(run, RelativeAttention::name, tasks, bytes, [&, attend](char* scratch, int64_t task) {
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

}  // namespace

OrtStatus* RelativeAttention::compute(Context& run) const {
  AttentionStep step = {};
  Tensor key, value;
  XLEXPORT_TRY(read(run, &step, &key, &value));
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
  if (step.S == 0) return nullptr;

  step.key = new_key;
  step.value = new_value;
  const AttentionLoops& loops = level().attention;
  if (step.S <= kFewQueries) return attend_few(run, step, loops);
  return run_tasks(run, step, heads * attention_blocks(step.S), loops.block_scratch(step), loops.attend_block);
}

}  // namespace xlexport
