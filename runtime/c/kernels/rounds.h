// The rounds of a run, for the kernels that attend in the order of a sort.
#pragma once

#include "level.h"
#include "scratch.h"

namespace xlexport {

constexpr int64_t kQueriesOfHead = 256;      // up to which a task does all rounds of a head
constexpr int64_t kQueriesOfTask = 1024;  // otherwise, in sorted order
constexpr int64_t kTasksTogether = 32;    // for all threads

// Call `attend(scratch, head, round, block)` for all blocks of all rounds of `heads` heads. A round adds to the results of
// the one before. A few heads at a time stay in the cache for all rounds.
template <typename Attend>
OrtStatus* attend_rounds(const Context& run, const char* name, int64_t heads, int64_t rounds, int64_t blocks, size_t bytes,
                         Attend attend) {
  const int64_t together = blocks < kTasksTogether ? kTasksTogether / blocks : 1;
  for (int64_t from = 0; from < heads; from += together) {
    const int64_t count = from + together < heads ? together : heads - from;
    for (int64_t round = 0; round < rounds; ++round) {
      XLEXPORT_TRY(run_with_scratch(run, name, count * blocks, bytes, [&](char* scratch, int64_t task) {
        attend(scratch, from + task / blocks, round, task % blocks);
      }));
    }
  }
  return nullptr;
}

// Plan all rounds of `heads` heads, and attend. `plan(scratch, head, round)` has `for_plan` bytes of scratch, and returns
// whether it made a plan; without one, results are not set. `done(head, query)` is called once for each query that has its
// result.
template <typename Plan, typename Done>
OrtStatus* plan_and_attend(const Context& run, const char* name, const BandWork& work, int64_t heads, size_t for_plan,
                           Plan plan, Done done) {
  const BandLoops& loops = level().band;
  const size_t for_loops = loops.scratch(work);
  const int64_t S = work.S, blocks = (S + kQueriesOfTask - 1) / kQueriesOfTask;
  if (S <= kQueriesOfHead) {
    return run_with_scratch(run, name, heads, for_plan > for_loops ? for_plan : for_loops, [&](char* scratch, int64_t head) {
      for (int64_t round = 0; round < work.rounds; ++round) {
        if (!plan(scratch, head, round)) return;
      }
      for (int64_t round = 0; round < work.rounds; ++round) loops.attend(work, scratch, head, round, 0, S);
      for (int64_t query = 0; query < S; ++query) done(head, query);
    });
  }
  bool planned = true;
  XLEXPORT_TRY(run_with_scratch(run, name, heads * work.rounds, for_plan, [&](char* scratch, int64_t task) {
    if (!plan(scratch, task / work.rounds, task % work.rounds)) __atomic_store_n(&planned, false, __ATOMIC_RELAXED);
  }));
  if (!planned) return nullptr;
  const auto attend = [&](char* scratch, int64_t head, int64_t round, int64_t block) {
    const int64_t begin = block * kQueriesOfTask, end = begin + kQueriesOfTask < S ? begin + kQueriesOfTask : S;
    loops.attend(work, scratch, head, round, begin, end);
    if (round + 1 < work.rounds) return;
    const int32_t* const sorted = work.sorted + (head * work.R + round) * S;
    for (int64_t k = begin; k < end; ++k) done(head, sorted[k]);
  };
  return attend_rounds(run, name, heads, work.rounds, blocks, for_loops, attend);
}

}  // namespace xlexport
