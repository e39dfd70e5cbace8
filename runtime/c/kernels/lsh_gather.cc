#include <string.h>

#include "operators.h"

namespace xlexport {
namespace {

constexpr int64_t kBytesOfTask = 1 << 17;

// Return the bytes of a number, or 0 if the type is not a float type.
int64_t size_of(int type) {
  if (type == ort::kFloat16 || type == ort::kBfloat16) return 2;
  return type == ort::kFloat ? 4 : type == ort::kDouble ? 8 : 0;
}

}  // namespace

OrtStatus* Gather::compute(Context& run) const {
  Tensor rows, index;  // (…, N, D), (…, M)
  XLEXPORT_TRY(run.input(0, &rows));
  XLEXPORT_TRY(run.input(1, &index));
  const int64_t size = size_of(rows.type);
  if (size == 0) return failure(run.api, "LSHGather: rows has element type %d, expected a float type", rows.type);
  if (rows.rank < 2) return failure(run.api, "LSHGather: rows has %d axes, expected at least 2", rows.rank);
  XLEXPORT_TRY(run.require_rank("LSHGather: index", index, rows.rank - 1));
  int64_t groups = 1;
  for (int axis = 0; axis < rows.rank - 2; ++axis) {
    XLEXPORT_TRY(run.require_axis("LSHGather: index", index, axis, rows.shape[axis]));
    groups *= rows.shape[axis];
  }
  const int64_t N = rows.shape[rows.rank - 2], D = rows.shape[rows.rank - 1], M = index.shape[index.rank - 1];
  const int64_t* const places = index.as<int64_t>();
  if (!all_below(places, groups * M, N)) {
    int64_t wrong = 0;
    while (places[wrong] >= 0 && places[wrong] < N) ++wrong;
    return failure(run.api, "LSHGather: index %lld is out of range, expected 0 to %lld",
                   static_cast<long long>(places[wrong]), static_cast<long long>(N - 1));
  }
  int64_t shape[kMostAxes + 1];
  memcpy(shape, index.shape, sizeof index.shape);
  shape[index.rank] = D;
  char* gathered;
  XLEXPORT_TRY(run.output(0, shape, static_cast<size_t>(rows.rank), &gathered));
  const int64_t bytes = D * size;  // of a row
  if (groups * M * bytes == 0) return nullptr;
  const char* const from = rows.as<char>();
  const int64_t rows_of_task = bytes < kBytesOfTask ? kBytesOfTask / bytes : 1, blocks = (M + rows_of_task - 1) / rows_of_task;
  return run.parallel(static_cast<size_t>(groups * blocks), [=](size_t task) {
    const int64_t group = static_cast<int64_t>(task) / blocks, begin = static_cast<int64_t>(task) % blocks * rows_of_task;
    const int64_t end = begin + rows_of_task < M ? begin + rows_of_task : M;
    const char* const own = from + group * N * bytes;
    const int64_t* const wanted = places + group * M;
    char* const to = gathered + group * M * bytes;
    for (int64_t m = begin; m < end; ++m) memcpy(to + m * bytes, own + wanted[m] * bytes, static_cast<size_t>(bytes));
  });
}

}  // namespace xlexport
