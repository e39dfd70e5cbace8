// What the inner loops of RelativeAttention know of a run: sizes, arrays and the split into tasks. Plain data, because
// the files of all instruction sets include it.
#pragma once

#include <stdint.h>

#include "always_inline.h"

namespace xlexport {

constexpr int64_t kQueryUnit = 16;   // queries of a block come in units, so that they fill vectors
constexpr int64_t kQueryBlock = 80;  // queries of a block at most: 5 units
constexpr int64_t kFewQueries = 8;   // steps of at most this many tokens take the path of relative_attention_few.inc

struct AttentionStep {
  int64_t B, H, S, C, d;  // batch rows, heads, tokens of the step, slots of a ring, numbers of a row
  int64_t near;           // distances with a positional key: 0 … near - 1
  int64_t offset, window;
  int64_t parts;                // few queries only: the keys of a head are split into this many tasks
  const int64_t* memory_length;  // (B)
  const float* qkv;              // (B, S, 3, H, d)
  const float* content_bias;     // (H, d)
  const float* position_bias;    // (H, d)
  const float* key;              // (B, H, C, d), this step's rows included; null if rows are 8-bit numbers
  const float* value;            // (B, H, C, d), likewise
  const int8_t* key8;            // (B, H, C, d), or null
  const int8_t* value8;          // (B, H, C, d), or null
  const float* key_scale;        // (B, H, C), or null
  const float* value_scale;      // (B, H, C), or null
  const float* position_key;     // (H, d, 1 + near): a zero column, then distances near - 1 … 0
  float* attended;               // (B, S, H, d)
  float* partial;                // (B, H, parts, S, d + 2) if there are several parts: sums, then largest score and weight
};

// Blocks of queries that one head has.
XLEXPORT_INLINE int64_t attention_blocks(int64_t S) {
  const int64_t units = (S + kQueryUnit - 1) / kQueryUnit, most = kQueryBlock / kQueryUnit;
  return (units + most - 1) / most;
}

// The loops of one instruction set. A task needs scratch of so many numbers, aligned to 64 bytes.
struct AttentionLoops {
  int64_t (*block_scratch)(const AttentionStep& step);
  int64_t (*few_scratch)(const AttentionStep& step);
  void (*attend_block)(const AttentionStep& step, int64_t task, float* scratch);  // task: batch row, head, block
  void (*attend_few)(const AttentionStep& step, int64_t task, float* scratch);    // task: batch row, head, part
  void (*merge_parts)(const AttentionStep& step, int64_t head);                   // head: batch row, head
};

// Likewise for rings of 8-bit numbers.
struct Int8AttentionLoops {
  AttentionLoops loops;
  float (*round_row)(const float* row, int64_t d, int8_t* rounded);  // returns the row's scale
};

}  // namespace xlexport
