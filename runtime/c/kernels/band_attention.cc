#include "band_attention.h"

#include <string.h>

#include "band_plan.h"
#include "band_rounds.h"
#include "indices.h"

namespace xlexport {
namespace {

constexpr int64_t kMost = 1 << 30;  // rows, so that sorted positions are small integers

// Return an error unless all shapes agree; set the sizes of the run.
OrtStatus* check(const Context& run, const Tensor* given, BandWork* work, int64_t* B) {
  static const char* const names[] = {"key", "value", "length", "order", "rank", "place", "lowest", "slot", "rounds"};
  static const int ranks[] = {4, 4, 3, 4, 4, 4, 4, 1, 1};
  char named[48];
  const auto name = [&named](int k) {
    snprintf(named, sizeof named, "LSHBandAttention: %s", names[k]);
    return named;
  };
  for (int k = 0; k < 9; ++k) XLEXPORT_TRY(run.require_rank(name(k), given[k], ranks[k]));
  const Tensor &key = given[0], &length = given[2], &order = given[3];
  *B = key.shape[0], work->H = key.shape[1], work->C = key.shape[2], work->d = key.shape[3];
  work->S = length.shape[2], work->R = order.shape[2];
  const int64_t of_rows[] = {*B, work->H, work->C, work->d}, of_rounds[] = {*B, work->H, work->R, work->C};
  for (int axis = 0; axis < 4; ++axis) {
    XLEXPORT_TRY(run.require_axis(name(1), given[1], axis, of_rows[axis]));
    for (int k = 3; k < 7; ++k) XLEXPORT_TRY(run.require_axis(name(k), given[k], axis, of_rounds[axis]));
  }
  for (int axis = 0; axis < 2; ++axis) XLEXPORT_TRY(run.require_axis(name(2), length, axis, of_rows[axis]));
  XLEXPORT_TRY(run.require_axis(name(7), given[7], 0, work->C));
  XLEXPORT_TRY(run.require_axis(name(8), given[8], 0, 1));
  work->rounds = given[8].as<int64_t>()[0];
  const long long S = work->S, C = work->C, R = work->R, rounds = work->rounds;
  if (S > C) return failure(run.api, "LSHBandAttention: %lld queries, expected at most the %lld keys", S, C);
  if (C > kMost) return failure(run.api, "LSHBandAttention: %lld keys, expected at most %lld", C, (long long)kMost);
  if (rounds < 0 || rounds > R) return failure(run.api, "LSHBandAttention: rounds is %lld, expected 0 to %lld", rounds, R);
  if (!all_below(given[7].as<int64_t>(), C, C)) {
    return failure(run.api, "LSHBandAttention: slot has an index out of range, expected 0 to %lld", C - 1);
  }
  return nullptr;
}

OrtStatus* refusal(const Context& run, Plan plan, const BandWork& work) {
  const char* const input = plan == Plan::kOrder ? "order" : "rank";
  const long long last = work.C - 1;
  if (plan == Plan::kNotInverse) {
    return failure(run.api, "LSHBandAttention: rank is not the inverse of order for all queries");
  }
  return failure(run.api, "LSHBandAttention: %s has an index out of range, expected 0 to %lld", input, last);
}

}  // namespace

OrtStatus* BandAttention::create(const Attributes& attributes) {
  XLEXPORT_TRY(attributes.read("chunk_length", &chunk_length));
  if (chunk_length >= 1) return nullptr;
  return failure(attributes.api, "LSHBandAttention: chunk_length is %lld, expected at least 1",
                 static_cast<long long>(chunk_length));
}

OrtStatus* BandAttention::compute(Context& run) const {
  Tensor given[9];
  for (size_t k = 0; k < 9; ++k) XLEXPORT_TRY(run.input(k, &given[k]));
  BandWork work = {};
  int64_t B;
  XLEXPORT_TRY(check(run, given, &work, &B));
  work.W = chunk_length < work.C ? chunk_length : work.C;  // one chunk has all rows
  work.key = given[0].as<float>(), work.value = given[1].as<float>(), work.length = given[2].as<float>();
  work.order = given[3].as<int64_t>(), work.rank = given[4].as<int64_t>(), work.place = given[5].as<int64_t>();
  work.lowest = given[6].as<int64_t>(), work.slot = given[7].as<int64_t>();
  const int64_t heads = B * work.H, S = work.S, shape[] = {B, work.H, S, work.d};
  XLEXPORT_TRY(run.output(0, shape, 4, &work.attended));
  XLEXPORT_TRY(run.output(1, shape, 3, &work.highest));
  if (heads * S == 0) return nullptr;
  if (work.rounds == 0) {
    for (int64_t k = 0; k < heads * S; ++k) work.highest[k] = -1e30f;
    memset(work.attended, 0, static_cast<size_t>(heads * S * work.d) * sizeof(float));
    return nullptr;
  }

  const auto lay_out = [&](Parts parts) {
    const int64_t plans = heads * work.R * S;
    work.total = parts.take<float>(heads * S);
    work.sorted = parts.take<int32_t>(plans), work.position = parts.take<int32_t>(plans);
    work.first = parts.take<int32_t>(plans), work.end = parts.take<int32_t>(plans);
    return parts.bytes();
  };
  const Memory shared(lay_out(Parts(nullptr)));
  if (shared.data() == nullptr) return failure(run.api, "LSHBandAttention: no memory for the plan of %lld queries", (long long)S);
  lay_out(Parts(shared.data()));

  const BandLoops& loops = level().band;
  const size_t for_plan = static_cast<size_t>(work.C) * sizeof(int64_t), for_loops = loops.scratch(work);
  int refused = static_cast<int>(Plan::kMade);
  const auto plan = [&](char* scratch, int64_t head, int64_t round) {
    const Plan made = plan_band(work, reinterpret_cast<int32_t*>(scratch), head, round);
    if (made != Plan::kMade) __atomic_store_n(&refused, static_cast<int>(made), __ATOMIC_RELAXED);
    return made == Plan::kMade;
  };
  if (S <= kQueriesOfHead) {  // a task does all rounds of a head
    XLEXPORT_TRY(run_with_scratch(run, name, heads, for_plan > for_loops ? for_plan : for_loops, [&](char* scratch, int64_t head) {
      for (int64_t round = 0; round < work.rounds; ++round) {
        if (!plan(scratch, head, round)) return;
      }
      for (int64_t round = 0; round < work.rounds; ++round) loops.attend(work, scratch, head, round, 0, S);
    }));
    return refused == static_cast<int>(Plan::kMade) ? nullptr : refusal(run, static_cast<Plan>(refused), work);
  }
  XLEXPORT_TRY(run_with_scratch(run, name, heads * work.rounds, for_plan, [&](char* scratch, int64_t task) {
    plan(scratch, task / work.rounds, task % work.rounds);
  }));
  if (refused != static_cast<int>(Plan::kMade)) return refusal(run, static_cast<Plan>(refused), work);
  return attend_rounds(run, name, work, heads, [](int64_t, int64_t) {});
}

}  // namespace xlexport
