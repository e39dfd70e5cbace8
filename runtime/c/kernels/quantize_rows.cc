#include "level.h"
#include "operators.h"

namespace xlexport {

OrtStatus* QuantizeRows::compute(Context& run) const {
  constexpr int64_t kTask = 16384;  // numbers that are worth a thread
  Tensor x;                         // (…, K)
  XLEXPORT_TRY(run.input(0, &x));
  if (x.rank < 1) return failure(run.api, "QuantizeRows: x has no axis, expected at least 1");
  const int64_t K = x.shape[x.rank - 1];
  XLEXPORT_TRY(require(run.api, "QuantizeRows: last axis of x", K, 1));
  const int64_t rows = x.count() / K;
  uint8_t* integers;
  float* largest;
  XLEXPORT_TRY(run.output(0, x.shape, static_cast<size_t>(x.rank), &integers));
  x.shape[x.rank - 1] = 1;
  XLEXPORT_TRY(run.output(1, x.shape, static_cast<size_t>(x.rank), &largest));
  const int64_t tasks = rows * K / kTask < rows ? rows * K / kTask + 1 : rows;
  return run.parallel(static_cast<size_t>(tasks), [&](size_t number) {
    const int64_t task = static_cast<int64_t>(number);
    for (int64_t row = rows * task / tasks; row < rows * (task + 1) / tasks; ++row) {
      largest[row] = level().quantize_row(x.as<float>() + row * K, K, integers + row * K);
    }
  });
}

}  // namespace xlexport
