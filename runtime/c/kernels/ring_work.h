// One run of LSHAttention, as the inner loops see it. Plain data, because the files of all
// instruction sets include it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "always_inline.h"

namespace xlexport {

struct RingWork {
  int64_t B, H, R, C, S, d, W;
  int64_t rounds;            // that count
  int64_t offset, window;    // offset: slot of the first query, below C
  const int64_t* position;   // (B)
  const float *key, *value;  // (B, H, C, d) by slot
  const int32_t* buckets;    // (B, H, R, C) by slot
  const float* length;       // (B, H, S): a query is its key times this
  float* attended;           // (B, H, S, d)
  int64_t* overflow;         // (B, S)

  // Return how many slots before its own a query may see; `head` is b · H + h.
  XLEXPORT_INLINE int64_t reach(int64_t head, int64_t query) const {
    const int64_t earlier = position[head / H] + query, existing = C - S + query;
    const int64_t least = earlier < window - 1 ? earlier : window - 1;
    return least < existing ? least : existing;
  }
  // Return the slot of a query.
  XLEXPORT_INLINE int64_t slot(int64_t query) const { return (offset + query) % C; }
};

// Functions of one instruction set.
struct FewLoops {
  size_t (*scratch)(const RingWork& work);  // bytes
  // Attend one query; return the number of rounds in which it could see more than W keys.
  int64_t (*attend)(const RingWork& work, char* scratch, int64_t head, int64_t query);
};

}  // namespace xlexport
