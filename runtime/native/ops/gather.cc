#include "gather.h"

#include <string.h>

namespace xlexport {

OrtStatus* Gather::compute(Context& run) const {
  Tensor rows, index;  // (…, N, D), (…, M)
  XLEXPORT_TRY(run.input(0, &rows));
  XLEXPORT_TRY(run.input(1, &index));
  if (rows.rank < 2) return failure(run.api, "LSHGather: rows has %d axes, expected at least 2", rows.rank);
  XLEXPORT_TRY(run.require_rank("LSHGather: index", index, rows.rank - 1));
  int64_t groups = 1;
  for (int axis = 0; axis < rows.rank - 2; ++axis) {
    XLEXPORT_TRY(run.require_axis("LSHGather: index", index, axis, rows.shape[axis]));
    groups *= rows.shape[axis];
  }
  const int64_t N = rows.shape[rows.rank - 2], D = rows.shape[rows.rank - 1], M = index.shape[index.rank - 1];
  const int64_t* const places = index.as<int64_t>();
  for (int64_t k = 0; k < groups * M; ++k) {
    if (places[k] < 0 || places[k] >= N) {
      return failure(run.api, "LSHGather: index %lld is out of range, expected 0 to %lld",
                     static_cast<long long>(places[k]), static_cast<long long>(N - 1));
    }
  }
  int64_t shape[kMostAxes + 1];
  memcpy(shape, index.shape, sizeof index.shape);
  shape[index.rank] = D;
  float* gathered;
  XLEXPORT_TRY(run.output(0, shape, static_cast<size_t>(rows.rank), &gathered));
  const float* const from = rows.as<float>();
  return run.parallel(static_cast<size_t>(groups), [=](size_t group) {
    const float* const own = from + static_cast<int64_t>(group) * N * D;
    for (int64_t k = static_cast<int64_t>(group) * M; k < static_cast<int64_t>(group + 1) * M; ++k) {
      memcpy(gathered + k * D, own + places[k] * D, static_cast<size_t>(D) * sizeof(float));
    }
  });
}

}  // namespace xlexport
