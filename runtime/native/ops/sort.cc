#include "sort.h"

#include <string.h>

namespace xlexport {
namespace {

// Merge sort of places by id, stable; `order` and `scratch` hold N places each.
void sort_row(const int64_t* ids, int64_t N, int64_t* order, int64_t* scratch) {
  for (int64_t place = 0; place < N; ++place) order[place] = place;
  int64_t* from = order;
  int64_t* to = scratch;
  for (int64_t width = 1; width < N; width *= 2) {
    for (int64_t begin = 0; begin < N; begin += 2 * width) {
      const int64_t middle = begin + width < N ? begin + width : N;
      const int64_t end = begin + 2 * width < N ? begin + 2 * width : N;
      int64_t left = begin, right = middle;
      for (int64_t k = begin; k < end; ++k) {
        const bool take_left = left < middle && (right >= end || ids[from[left]] <= ids[from[right]]);
        to[k] = take_left ? from[left++] : from[right++];
      }
    }
    int64_t* const other = from;
    from = to;
    to = other;
  }
  if (from != order) memcpy(order, from, static_cast<size_t>(N) * sizeof *order);
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
    sort_row(ids + begin, N, order + begin, inverse + begin);  // the inverse is the scratch until it is written
    for (int64_t k = 0; k < N; ++k) inverse[begin + order[begin + k]] = k;
  });
}

}  // namespace xlexport
