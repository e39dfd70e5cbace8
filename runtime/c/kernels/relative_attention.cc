// RelativeAttention and RelativeAttentionInt8, which differ in the numbers of their rings.
#include <string.h>

#include "inputs.h"
#include "level.h"
#include "operators.h"
#include "scratch.h"

namespace xlexport {
namespace {

// The rings come first, because they say how many heads and slots there are.
constexpr Input kInputs[] = {{3, "memory_key", "BHCd"},   {4, "memory_value", "BHCd"},  {0, "qkv", "BSN"},
                             {1, "content_bias", "H1d"},  {2, "position_bias", "H1d"}, {5, "position_key", "HdP"},
                             {6, "offset", "1"},          {7, "memory_length", "B"},   {8, "window", "1"}};
constexpr Input kInt8Inputs[] = {{3, "memory_key", "BHCd"},      {5, "memory_value", "BHCd"},      {0, "qkv", "BSN"},
                                 {1, "content_bias", "H1d"},     {2, "position_bias", "H1d"},     {7, "position_key", "HdP"},
                                 {8, "offset", "1"},             {9, "memory_length", "B"},       {10, "window", "1"},
                                 {4, "memory_key_scale", "BHC"}, {6, "memory_value_scale", "BHC"}};
constexpr int64_t kWorthThreads = 65536;  // numbers to copy from which several threads pay
constexpr int64_t kTasks = 32;            // few queries: keys are split until there are so many tasks
constexpr int64_t kPart = 512;            // but a part has at least so many keys

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

// Read n inputs, and compare their shapes and numbers. The first nine are those of both operators.
OrtStatus* read_attention(const Context& run, const Input* inputs, int n, Tensor* given, AttentionStep* step) {
  Sizes sizes;
  XLEXPORT_TRY(read_inputs(run, inputs, n, given, &sizes));
  const int64_t B = sizes['B'], H = sizes['H'], S = sizes['S'], C = sizes['C'], d = sizes['d'], columns = sizes['P'];
  XLEXPORT_TRY(run.require_axis("qkv", given[2], 2, 3 * H * d));
  if (columns < 1) return failure(run.api, "axis 2 of position_key is 0, expected at least 1");
  if (S > C) {
    return failure(run.api, "a step of %lld tokens, expected at most the %lld slots of memory_key",
                   static_cast<long long>(S), static_cast<long long>(C));
  }
  if (C > INT32_MAX) {
    return failure(run.api, "memory_key has %lld slots, expected fewer than 2^31", static_cast<long long>(C));
  }
  step->B = B, step->H = H, step->S = S, step->C = C, step->d = d, step->near = columns - 1;
  step->qkv = given[2].as<float>();
  step->content_bias = given[3].as<float>();
  step->position_bias = given[4].as<float>();
  step->position_key = given[5].as<float>();
  step->offset = *given[6].as<int64_t>();
  step->memory_length = given[7].as<int64_t>();
  step->window = *given[8].as<int64_t>();
  XLEXPORT_TRY(require(run.api, "offset", step->offset, 0, C > 0 ? C - 1 : INT64_MAX));
  XLEXPORT_TRY(require(run.api, "window", step->window, 1));
  for (int64_t b = 0; b < B; ++b) XLEXPORT_TRY(require(run.api, "memory_length", step->memory_length[b], 0));
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

// Call `write(head)` for all heads, on several threads if it copies rings or so many numbers that they pay.
template <typename Write>
OrtStatus* write_rings(const Context& run, const AttentionStep& step, bool in_place, int64_t worth_threads, Write write) {
  const int64_t heads = step.B * step.H;
  if (!in_place || heads * step.S * step.d >= worth_threads) return run.parallel(static_cast<size_t>(heads), write);
  for (int64_t head = 0; head < heads; ++head) write(head);
  return nullptr;
}

}  // namespace

OrtStatus* RelativeAttention::compute(Context& run) const {
  AttentionStep step = {};
  Tensor given[9];
  XLEXPORT_TRY(read_attention(run, kInputs, 9, given, &step));
  const Tensor &key = given[0], &value = given[1];
  const int64_t attended[] = {step.B, step.S, step.H * step.d};
  float *new_key, *new_value;
  XLEXPORT_TRY(run.output(0, attended, 3, &step.attended));
  XLEXPORT_TRY(run.output(1, key.shape, 4, &new_key));
  XLEXPORT_TRY(run.output(2, value.shape, 4, &new_value));
  if (key.count() == 0) return nullptr;

  const bool in_place = key.data == new_key && value.data == new_value;
  XLEXPORT_TRY(write_rings(run, step, in_place, kWorthThreads, [&](int64_t head) {
    write_ring(step, 1, head, key.as<float>(), new_key);
    write_ring(step, 2, head, value.as<float>(), new_value);
  }));
  step.key = new_key;
  step.value = new_value;
  return attend(run, step, level().attention);
}

OrtStatus* RelativeAttentionInt8::compute(Context& run) const {
  AttentionStep step = {};
  Tensor given[11];
  XLEXPORT_TRY(read_attention(run, kInt8Inputs, 11, given, &step));
  const Tensor &key = given[0], &value = given[1], &key_scale = given[9], &value_scale = given[10];
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
  if (key_scale.count() == 0) return nullptr;

  const bool in_place = keys.before == keys.rows && values.before == values.rows;
  XLEXPORT_TRY(write_rings(run, step, in_place, kWorthThreads / 4, [&](int64_t head) {
    write_ring(step, 1, head, keys);
    write_ring(step, 2, head, values);
  }));
  if (step.d == 0) return nullptr;

  step.key8 = keys.rows;
  step.value8 = values.rows;
  step.key_scale = keys.scale;
  step.value_scale = values.scale;
  return attend(run, step, level().int8_attention.loops);
}

}  // namespace xlexport
