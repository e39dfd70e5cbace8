// Sums in the order of NumPy, so that totals are bit-equal to those of Python.
#pragma once

#include <cstddef>

namespace xlruntime {

double numpy_sum(const double* numbers, std::size_t n);

// The sum in double precision, as array.sum(dtype=float64).
double numpy_sum(const float* numbers, std::size_t n);

}  // namespace xlruntime
