#include <string.h>

#include "level.h"
#include "operators.h"
#include "scratch.h"

namespace xlexport {
namespace {

constexpr int64_t kMost = 1 << 22;       // rows: places above are those of padding, as in the body
constexpr int64_t kQueriesOfTask = 1024;  // about, in sorted order
constexpr int64_t kTasks = 32;            // at a time, for all threads

// Return an error unless all shapes agree; set the sizes of the run.
OrtStatus* check(const Context& run, const Tensor* given, ChunkWork* work, int64_t* B, bool* full) {
  static const char* const names[] = {"query", "key", "value", "order", "rank", "full"};
  char named[48];
  const auto name = [&named](int k) {
    snprintf(named, sizeof named, "LSHChunkAttention: %s", names[k]);
    return named;
  };
  for (int k = 0; k < 6; ++k) XLEXPORT_TRY(run.require_rank(name(k), given[k], k < 5 ? 4 : 1));
  const Tensor &query = given[0], &order = given[3];
  *B = query.shape[0], work->H = query.shape[1], work->T = query.shape[2], work->d = query.shape[3];
  work->R = order.shape[2];
  const int64_t of_rows[] = {*B, work->H, work->T, work->d}, of_rounds[] = {*B, work->H, work->R, work->T};
  for (int axis = 0; axis < 4; ++axis) {
    for (int k = 1; k < 3; ++k) XLEXPORT_TRY(run.require_axis(name(k), given[k], axis, of_rows[axis]));
    for (int k = 3; k < 5; ++k) XLEXPORT_TRY(run.require_axis(name(k), given[k], axis, of_rounds[axis]));
  }
  XLEXPORT_TRY(run.require_axis(name(5), given[5], 0, 1));
  *full = given[5].as<int64_t>()[0] > 0;
  if (work->R < 1) return failure(run.api, "LSHChunkAttention: order has no round, expected at least 1");
  const long long T = work->T, most = kMost;
  if (T >= most) return failure(run.api, "LSHChunkAttention: %lld rows, expected less than %lld", T, most);
  return nullptr;
}

// Return whether `order` has all places and `rank` is its inverse.
bool inverse(const int64_t* order, const int64_t* rank, int64_t T) {
  for (int64_t place = 0; place < T; ++place) {
    if (order[rank[place]] != place) return false;
  }
  return true;
}

}  // namespace

OrtStatus* ChunkAttention::create(const Attributes& attributes) {
  XLEXPORT_TRY(attributes.read("chunk_length", &chunk_length));
  XLEXPORT_TRY(attributes.read("chunks_before", &chunks_before));
  XLEXPORT_TRY(attributes.read("multiple", &multiple));
  XLEXPORT_TRY(attributes.read("self_mask", &self_mask));
  XLEXPORT_TRY(require(attributes.api, "LSHChunkAttention: chunk_length", chunk_length, 1, kMost));
  XLEXPORT_TRY(require(attributes.api, "LSHChunkAttention: chunks_before", chunks_before, 0, kMost));
  const long long W = chunk_length, step = multiple;
  if (step >= W && step <= kMost && step % W == 0) return nullptr;
  return failure(attributes.api, "LSHChunkAttention: multiple is %lld, expected a multiple of %lld", step, W);
}

OrtStatus* ChunkAttention::compute(Context& run) const {
  Tensor given[6];
  for (size_t k = 0; k < 6; ++k) XLEXPORT_TRY(run.input(k, &given[k]));
  ChunkWork work = {};
  int64_t B;
  bool full;
  XLEXPORT_TRY(check(run, given, &work, &B, &full));
  work.W = chunk_length, work.self_mask = self_mask;
  work.before = full ? 0 : chunks_before;
  work.rounds = full ? 1 : work.R;
  work.chunks = (work.T + multiple - 1) / multiple * (multiple / chunk_length);
  work.query = given[0].as<float>(), work.key = given[1].as<float>(), work.value = given[2].as<float>();
  work.order = given[3].as<int64_t>();
  const int64_t* const rank = given[4].as<int64_t>();
  const int64_t heads = B * work.H, T = work.T, R = work.R;
  XLEXPORT_TRY(run.output(0, given[0].shape, 4, &work.attended));
  if (heads * T == 0) return nullptr;

  bool in_range = true, inverses = true;
  XLEXPORT_TRY(run.parallel(static_cast<size_t>(heads * R), [&](size_t row) {
    const int64_t begin = static_cast<int64_t>(row) * T;
    if (!all_below(work.order + begin, T, T) || !all_below(rank + begin, T, T)) {
      __atomic_store_n(&in_range, false, __ATOMIC_RELAXED);
    } else if (!inverse(work.order + begin, rank + begin, T)) {
      __atomic_store_n(&inverses, false, __ATOMIC_RELAXED);
    }
  }));
  const long long last = T - 1;
  if (!in_range) {
    return failure(run.api, "LSHChunkAttention: order or rank has an index out of range, expected 0 to %lld", last);
  }
  if (!inverses) return failure(run.api, "LSHChunkAttention: rank is not the inverse of order");

  const auto lay_out = [&](Parts parts) {
    work.highest = parts.take<float>(heads * T), work.total = parts.take<float>(heads * T);
    return parts.bytes();
  };
  const Memory shared(lay_out(Parts(nullptr)));
  if (shared.data() == nullptr) return failure(run.api, "LSHChunkAttention: no memory for %lld rows", (long long)T);
  lay_out(Parts(shared.data()));

  // A round adds to the results of the one before. A few heads at a time stay in the cache for all rounds.
  const ChunkLoops& loops = level().chunk;
  const size_t bytes = loops.scratch(work);
  const int64_t used = (T + work.W - 1) / work.W;  // chunks with rows
  const int64_t of_task = work.W < kQueriesOfTask ? kQueriesOfTask / work.W : 1, blocks = (used + of_task - 1) / of_task;
  const int64_t together = blocks < kTasks ? kTasks / blocks : 1;
  for (int64_t head = 0; head < heads; head += together) {
    const int64_t count = head + together < heads ? together : heads - head;
    for (int64_t round = 0; round < work.rounds; ++round) {
      XLEXPORT_TRY(run_with_scratch(run, name, count * blocks, bytes, [&](char* memory, int64_t task) {
        const int64_t begin = task % blocks * of_task, end = begin + of_task < used ? begin + of_task : used;
        loops.attend(work, memory, head + task / blocks, round, begin, end);
      }));
    }
  }
  return nullptr;
}

}  // namespace xlexport
