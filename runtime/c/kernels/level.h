// The inner loops of kernels, compiled once for each instruction set; the best one that the processor has runs.
//
// What loops see of a run is plain data, because the files of all instruction sets include it. Functions here are always
// inlined: if a linker kept one copy for all sets, it might be one that this processor cannot run.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define XLEXPORT_INLINE inline __attribute__((always_inline))

namespace xlexport {

// One run of LSHBandAttention, as its inner loops see it.
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

// One run of LSHAttention, as the inner loops see it.
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

// One run of LSHChunkAttention, as its inner loops see it.
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

constexpr int64_t kQueryUnit = 16;   // queries of a block come in units, so that they fill vectors
constexpr int64_t kQueryBlock = 80;  // queries of a block at most: 5 units
constexpr int64_t kFewQueries = 8;   // steps of at most this many tokens take the path of relative_attention_few.inc

// What the inner loops of RelativeAttention know of a run: sizes, arrays and the split into tasks.
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

// The inner loops of one instruction set. Add a function pointer for each `.inc` file.
struct Level {
  const char* name;
  AttentionLoops attention;
  Int8AttentionLoops int8_attention;
  BandLoops band;
  ChunkLoops chunk;
  FewLoops few;
  LocalLoops local;
  float (*quantize_row)(const float* row, int64_t K, uint8_t* integers);  // returns the largest absolute number
};

extern const Level level_base;  // what every processor of this architecture has: SSE2 or NEON
#if defined(__x86_64__)
extern const Level level_avx2;
extern const Level level_avx512;
extern const Int8AttentionLoops vnni_int8_attention;  // for processors with AVX-512 that also have its dot products
#endif

// Return the level for this processor. XLEXPORT_OPS_INSTRUCTION_SET (`base`, `avx2`, `avx512`, `avx512vnni`) can only lower it.
const Level& level();

}  // namespace xlexport
