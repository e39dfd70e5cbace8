#include <string.h>

#include "inputs.h"
#include "operators.h"
#include "rounds.h"

namespace xlexport {
namespace {

constexpr int64_t kMost = 1 << 22;  // rows: places above are those of padding, as in the body

constexpr Input kInputs[] = {{0, "LSHChunkAttention: query", "BHTd"}, {1, "LSHChunkAttention: key", "BHTd"},
                             {2, "LSHChunkAttention: value", "BHTd"}, {3, "LSHChunkAttention: order", "BHRT"},
                             {4, "LSHChunkAttention: rank", "BHRT"},  {5, "LSHChunkAttention: full", "1"}};

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
  Sizes sizes;
  XLEXPORT_TRY(read_inputs(run, kInputs, 6, given, &sizes));
  ChunkWork work = {};
  work.H = sizes['H'], work.R = sizes['R'], work.T = sizes['T'], work.d = sizes['d'];
  const int64_t heads = sizes['B'] * work.H, T = work.T, R = work.R;
  if (R < 1) return failure(run.api, "LSHChunkAttention: order has no round, expected at least 1");
  const long long all = T, most = kMost;
  if (all >= most) return failure(run.api, "LSHChunkAttention: %lld rows, expected less than %lld", all, most);
  const bool full = *given[5].as<int64_t>() > 0;
  work.W = chunk_length, work.self_mask = self_mask;
  work.before = full ? 0 : chunks_before;
  work.rounds = full ? 1 : work.R;
  work.chunks = (work.T + multiple - 1) / multiple * (multiple / chunk_length);
  work.query = given[0].as<float>(), work.key = given[1].as<float>(), work.value = given[2].as<float>();
  work.order = given[3].as<int64_t>();
  const int64_t* const rank = given[4].as<int64_t>();
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

  const ChunkLoops& loops = level().chunk;
  const int64_t used = (T + work.W - 1) / work.W;  // chunks with rows
  const int64_t of_task = work.W < kQueriesOfTask ? kQueriesOfTask / work.W : 1, blocks = (used + of_task - 1) / of_task;
  const auto attend = [&](char* scratch, int64_t head, int64_t round, int64_t block) {
    const int64_t begin = block * of_task, end = begin + of_task < used ? begin + of_task : used;
    loops.attend(work, scratch, head, round, begin, end);
  };
  return attend_rounds(run, name, heads, work.rounds, blocks, loops.scratch(work), attend);
}

}  // namespace xlexport
