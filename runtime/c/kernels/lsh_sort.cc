#include <string.h>

#include "operators.h"

namespace xlexport {
namespace {

constexpr int kMostBits = 11;  // of a digit: its counters stay in the first cache

// Sort one row by counting, digit by digit from the lowest; each pass is stable. Bucket ids are small, so there is
// mostly one pass. The inverse is the second buffer until it is written.
void sort_row(const int64_t* ids, int64_t N, int64_t* order, int64_t* inverse) {
  int64_t least = ids[0], most = ids[0];
  for (int64_t place = 1; place < N; ++place) {
    least = ids[place] < least ? ids[place] : least;
    most = ids[place] > most ? ids[place] : most;
  }
  const uint64_t lowest = static_cast<uint64_t>(least), range = static_cast<uint64_t>(most) - lowest;
  const int bits = range == 0 ? 1 : 64 - __builtin_clzll(range);
  const int passes = (bits + kMostBits - 1) / kMostBits, digit = (bits + passes - 1) / passes;
  const uint64_t mask = (uint64_t{1} << digit) - 1;
  int64_t* to = passes % 2 == 1 ? order : inverse;
  const int64_t* from = nullptr;  // the places as they lie
  for (int pass = 0; pass < passes; ++pass) {
    const int shift = pass * digit;
    const auto digit_of = [=](int64_t place) { return (static_cast<uint64_t>(ids[place]) - lowest) >> shift & mask; };
    int64_t next[1 << kMostBits];  // of each digit: where its next place goes
    memset(next, 0, static_cast<size_t>(mask + 1) * sizeof *next);
    for (int64_t place = 0; place < N; ++place) ++next[digit_of(place)];
    int64_t before = 0;
    for (uint64_t value = 0; value <= mask; ++value) {
      const int64_t count = next[value];
      next[value] = before;
      before += count;
    }
    if (from == nullptr) {
      for (int64_t place = 0; place < N; ++place) to[next[digit_of(place)]++] = place;
    } else {
      for (int64_t k = 0; k < N; ++k) to[next[digit_of(from[k])]++] = from[k];
    }
    from = to;
    to = to == order ? inverse : order;
  }
  for (int64_t k = 0; k < N; ++k) inverse[order[k]] = k;
}

}  // namespace

OrtStatus* Sort::compute(Context& run) const {
  Tensor buckets;  // (…, N)
  XLEXPORT_TRY(run.input(0, &buckets));
  if (buckets.rank < 1) return failure(run.api, "LSHSort: buckets has no axis, expected at least 1");
  const int64_t N = buckets.shape[buckets.rank - 1];
  int64_t *order, *inverse;
  XLEXPORT_TRY(run.output(0, buckets.shape, static_cast<size_t>(buckets.rank), &order));
  XLEXPORT_TRY(run.output(1, buckets.shape, static_cast<size_t>(buckets.rank), &inverse));
  const int64_t rows = N == 0 ? 0 : buckets.count() / N;
  const int64_t* const ids = buckets.as<int64_t>();
  return run.parallel(static_cast<size_t>(rows), [=](size_t row) {
    const int64_t begin = static_cast<int64_t>(row) * N;
    sort_row(ids + begin, N, order + begin, inverse + begin);
  });
}

}  // namespace xlexport
