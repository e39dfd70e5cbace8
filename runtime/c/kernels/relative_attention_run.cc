#include "relative_attention_run.h"

#include "scratch.h"

namespace xlexport {
namespace {

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

}  // namespace

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

OrtStatus* attend(const Context& run, const AttentionStep& step, const AttentionLoops& loops) {
  if (step.S == 0) return nullptr;
  if (step.S <= kFewQueries) return attend_few(run, step, loops);
  const int64_t tasks = step.B * step.H * attention_blocks(step.S);
  return run_tasks(run, step, tasks, loops.block_scratch(step), loops.attend_block);
}

}  // namespace xlexport
