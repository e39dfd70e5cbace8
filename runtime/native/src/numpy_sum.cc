#include "numpy_sum.h"

#include <algorithm>
#include <array>
#include <vector>

namespace xlruntime {
namespace {

constexpr std::size_t kLanes = 8, kBlock = 128;  // of NumPy's pairwise summation
constexpr std::size_t kConverted = 8192;         // numbers that NumPy converts at once

double pairwise(const double* numbers, std::size_t n) {
  if (n < kLanes) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += numbers[i];
    return sum;
  }
  if (n > kBlock) {
    const std::size_t half = n / 2 - n / 2 % kLanes;
    return pairwise(numbers, half) + pairwise(numbers + half, n - half);
  }
  std::array<double, kLanes> lane{};
  std::copy(numbers, numbers + kLanes, lane.begin());
  std::size_t i = kLanes;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t j = 0; j < kLanes; ++j) lane[j] += numbers[i + j];
  }
  double sum = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
  for (; i < n; ++i) sum += numbers[i];
  return sum;
}

}  // namespace

double numpy_sum(const double* numbers, std::size_t n) { return 0.0 + pairwise(numbers, n); }

double numpy_sum(const float* numbers, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; i += kConverted) {
    const std::vector<double> converted(numbers + i, numbers + std::min(n, i + kConverted));
    sum += pairwise(converted.data(), converted.size());
  }
  return sum;
}

}  // namespace xlruntime
