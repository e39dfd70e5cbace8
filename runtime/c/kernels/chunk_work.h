// One run of LSHChunkAttention, as its inner loops see it.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "always_inline.h"

namespace xlexport {

struct ChunkWork {
  int64_t H, R, T, d, W;
  int64_t before;                      // chunks that a query sees before its own; 0 for a full document
  int64_t chunks;                      // of a round, with those of padding
  int64_t rounds;                      // that count
  float self_mask;
  const float *query, *key, *value;    // (B, H, T, d)
  const int64_t* order;                // (B, H, R, T)
  float* attended;                     // (B, H, T, d): the result
  float *highest, *total;              // (B, H, T): of the normalisers of earlier rounds, and the sum of their weights

  XLEXPORT_INLINE int64_t row_length() const { return (d + 15) / 16 * 16; }  // of rows in scratch memory, a multiple of all vectors

  // Return which chunk of the ring of all rounds lies `distance` before a chunk. A ring with fewer chunks than that
  // shows the chunk itself once more.
  XLEXPORT_INLINE int64_t chunk_before(int64_t chunk, int64_t distance) const {
    const int64_t count = R * chunks;
    return distance > count ? chunk : (chunk - distance + count) % count;
  }
};

// Functions of one instruction set.
struct ChunkLoops {
  size_t (*scratch)(const ChunkWork& work);  // bytes
  // Attend the queries of chunks [begin, end) of one round, and join the results to those of earlier rounds. `head` is
  // b · H + h.
  void (*attend)(const ChunkWork& work, char* memory, int64_t head, int64_t round, int64_t begin, int64_t end);
};

}  // namespace xlexport
