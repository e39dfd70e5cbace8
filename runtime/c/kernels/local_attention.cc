#include "inputs.h"
#include "level.h"
#include "operators.h"
#include "scratch.h"

namespace xlexport {
namespace {

constexpr int64_t kLargest = INT64_C(1) << 31;  // chunk length, and chunks before: products stay in 63 bits

constexpr Input kInputs[] = {{0, "LocalAttention: query", "BHSd"},
                             {1, "LocalAttention: key", "BHKd"},  // K: kept + S
                             {2, "LocalAttention: value", "BHKd"},
                             {3, "LocalAttention: position", "B"}};

// The blocks of one batch row: the step's part of each chunk, in pieces.
struct Cut {
  int64_t position, S, c, before, kept;

  int64_t chunks() const { return S == 0 ? 0 : (position + S - 1) / c - position / c + 1; }
  int64_t pieces() const { return ((c < S ? c : S) + kLocalQueries - 1) / kLocalQueries; }
  int64_t blocks() const { return chunks() * pieces(); }

  // Set the queries [first, end) of a block, which may be none, and the oldest place that they see, counted from the
  // first query of the step.
  void block(int64_t number, int64_t* first, int64_t* end, int64_t* oldest) const {
    const int64_t chunk = position / c + number / pieces(), piece = number % pieces();
    const int64_t begin = chunk * c - position;  // of the chunk
    const int64_t own_begin = begin < 0 ? 0 : begin, own_end = begin + c < S ? begin + c : S;
    *first = own_begin + (own_end - own_begin) * piece / pieces();
    *end = own_begin + (own_end - own_begin) * (piece + 1) / pieces();
    const int64_t place = chunk < before ? -position : begin - before * c;
    *oldest = place < -kept ? -kept : place;
  }
};

}  // namespace

OrtStatus* LocalAttention::create(const Attributes& attributes) {
  XLEXPORT_TRY(attributes.read("chunk_length", &chunk_length));
  XLEXPORT_TRY(attributes.read("chunks_before", &chunks_before));
  XLEXPORT_TRY(require(attributes.api, "LocalAttention: chunk_length", chunk_length, 1, kLargest - 1));
  return require(attributes.api, "LocalAttention: chunks_before", chunks_before, 0, kLargest - 1);
}

OrtStatus* LocalAttention::compute(Context& run) const {
  Tensor given[4];
  Sizes sizes;
  XLEXPORT_TRY(read_inputs(run, kInputs, 4, given, &sizes));
  const auto& [query, key, value, position] = given;
  const int64_t B = sizes['B'], H = sizes['H'], S = sizes['S'], d = sizes['d'], K = sizes['K'];
  if (K < S) {
    return failure(run.api, "LocalAttention: key has %lld rows, expected at least the %lld of query",
                   static_cast<long long>(K), static_cast<long long>(S));
  }
  const int64_t* const places = position.as<int64_t>();
  int64_t most_blocks = 0;
  for (int64_t b = 0; b < B; ++b) {
    XLEXPORT_TRY(require(run.api, "LocalAttention: position", places[b], 0, INT64_MAX / 2));
    const int64_t blocks = Cut{places[b], S, chunk_length, chunks_before, K - S}.blocks();
    if (blocks > most_blocks) most_blocks = blocks;
  }
  float* attended;
  XLEXPORT_TRY(run.output(0, query.shape, 4, &attended));
  if (query.count() == 0) return nullptr;

  int64_t most_keys = (chunks_before + 1) * chunk_length;
  if (most_keys > K) most_keys = K;
  const LocalLoops& loops = level().local;
  const float *const queries = query.as<float>(), *const keys = key.as<float>(), *const values = value.as<float>();
  const size_t bytes = static_cast<size_t>(loops.scratch(most_keys, d)) * sizeof(float);
  return run_with_scratch(run, "LocalAttention", B * H * most_blocks, bytes, [&](char* scratch, int64_t task) {
    const int64_t head = task / most_blocks;  // of all batch rows
    const Cut cut = {places[head / H], S, chunk_length, chunks_before, K - S};
    int64_t first, end, oldest;
    if (task % most_blocks >= cut.blocks()) return;
    cut.block(task % most_blocks, &first, &end, &oldest);
    if (first >= end) return;
    const int64_t row = head * K + cut.kept + oldest;  // of the first key
    const LocalBlock block = {end - first,
                              first - oldest,
                              d,
                              queries + (head * S + first) * d,
                              keys + row * d,
                              values + row * d,
                              attended + (head * S + first) * d};
    loops.attend(block, reinterpret_cast<float*>(scratch));
  });
}

}  // namespace xlexport
