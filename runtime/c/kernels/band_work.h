// One run of LSHBandAttention, as its inner loops see it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "always_inline.h"

namespace xlexport {

struct BandWork {
  int64_t H, R, C, S, d, W;
  int64_t rounds;                   // that count
  const float *key, *value;         // (B, H, C, d) by slot
  const float* length;              // (B, H, S)
  const int64_t *order, *rank;      // (B, H, R, C)
  const int64_t *place, *lowest;    // (B, H, R, C) by age
  const int64_t* slot;              // (C)
  float *attended, *highest;        // (B, H, S, d), (B, H, S): the results
  float* total;                     // (B, H, S): sums of exponentials
  // The plan of each round, (B, H, R, S): queries are numbered by age, from 0.
  int32_t *sorted, *position;  // the queries in sorted order, and the sorted positions of these
  int32_t *first, *end;  // of each query: the sorted positions that it covers, which lie in its chunk or the one before

  XLEXPORT_INLINE int64_t row_length() const { return (d + 15) / 16 * 16; }  // of rows in scratch memory, a multiple of all vectors
};

// Functions of one instruction set.
struct BandLoops {
  size_t (*scratch)(const BandWork& work);  // bytes
  // Attend the queries sorted[begin] … sorted[end - 1] of one round, and join the result to that of earlier rounds.
  // `head` is b · H + h.
  void (*attend)(const BandWork& work, char* memory, int64_t head, int64_t round, int64_t begin, int64_t end);
};

}  // namespace xlexport
