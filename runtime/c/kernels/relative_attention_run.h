// What RelativeAttention has in common for rings of all types: reading inputs, and running the tasks of a step.
#pragma once

#include "kernel.h"
#include "relative_attention_step.h"

namespace xlexport {

constexpr int kAttentionInputs = 9;
constexpr int64_t kWorthThreads = 65536;  // numbers to copy from which several threads pay

// Read the inputs and compare their shapes and numbers. `places` are the indices of qkv, content_bias, position_bias,
// memory_key, memory_value, position_key, offset, memory_length and window.
OrtStatus* read_attention(const Context& run, const int (&places)[kAttentionInputs], AttentionStep* step, Tensor* key,
                          Tensor* value);

// Attend with all queries of a step; its rows are in the rings already.
OrtStatus* attend(const Context& run, const AttentionStep& step, const AttentionLoops& loops);

}  // namespace xlexport
