// The rounds of a long segment, for the kernels that attend in the order of a sort.
#pragma once

#include "level.h"
#include "scratch.h"

namespace xlexport {

constexpr int64_t kQueriesOfHead = 256;      // up to which a task does all rounds of a head
constexpr int64_t kQueriesOfTask = 1024;  // otherwise, in sorted order
constexpr int64_t kTasksTogether = 32;    // for all threads

// Attend all queries of `heads` heads, whose plans are made. `done(head, query)` is called once for each query that has
// its result.
template <typename Done>
OrtStatus* attend_rounds(const Context& run, const char* name, const BandWork& work, int64_t heads, Done done) {
  const BandLoops& loops = level().band;
  const int64_t S = work.S, blocks = (S + kQueriesOfTask - 1) / kQueriesOfTask;
  // A round adds to the results of the one before. A few heads at a time stay in the cache for all rounds.
  const int64_t together = blocks < kTasksTogether ? kTasksTogether / blocks : 1;
  for (int64_t from = 0; from < heads; from += together) {
    const int64_t count = from + together < heads ? together : heads - from;
    for (int64_t round = 0; round < work.rounds; ++round) {
      XLEXPORT_TRY(run_with_scratch(run, name, count * blocks, loops.scratch(work), [&](char* scratch, int64_t task) {
        const int64_t head = from + task / blocks, begin = task % blocks * kQueriesOfTask;
        const int64_t end = begin + kQueriesOfTask < S ? begin + kQueriesOfTask : S;
        loops.attend(work, scratch, head, round, begin, end);
        if (round + 1 < work.rounds) return;
        const int32_t* const sorted = work.sorted + (head * work.R + round) * S;
        for (int64_t k = begin; k < end; ++k) done(head, sorted[k]);
      }));
    }
  }
  return nullptr;
}

}  // namespace xlexport
