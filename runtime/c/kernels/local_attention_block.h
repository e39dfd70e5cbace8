// What the inner loop of LocalAttention knows of its task. Plain data, because the files of all instruction sets
// include it.
#pragma once

#include <stdint.h>

namespace xlexport {

constexpr int64_t kLocalQueries = 80;  // queries of a block at most: 5 vectors of 16

// A block of queries of one chunk. They see the same oldest key; query q sees the keys 0 … own + q.
struct LocalBlock {
  int64_t queries, own, d;
  const float* query;  // (queries, d)
  const float* key;    // (own + queries, d), from the oldest that they see
  const float* value;  // likewise
  float* attended;     // (queries, d)
};

// The loop of one instruction set. A block needs scratch of so many numbers, aligned to 64 bytes.
struct LocalLoops {
  int64_t (*scratch)(int64_t keys, int64_t d);
  void (*attend)(const LocalBlock& block, float* scratch);
};

}  // namespace xlexport
