// What the test programs of kernels share: random numbers, refusals, and the main function.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "../kernels/level.h"
#include "../kernels/operators.h"
#include "fake_ort.h"

inline std::mt19937_64 random_bits;

inline int64_t whole(int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random_bits() % (static_cast<uint64_t>(most - least) + 1));
}
inline bool coin(double chance) { return std::uniform_real_distribution<>()(random_bits) < chance; }

// Return a size that is often small, sometimes large.
inline int64_t size_up_to(int64_t most) { return coin(0.7) ? whole(1, std::min<int64_t>(most, 24)) : whole(1, most); }

inline std::vector<float> numbers(int64_t count, double deviation) {
  std::normal_distribution<float> normal(0, static_cast<float>(deviation));
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random_bits);
  return values;
}

[[noreturn]] inline void fail(const std::string& what,
                              std::initializer_list<std::pair<const char*, int64_t>> sizes = {}) {
  for (const auto& [name, size] : sizes) std::printf("%s %lld, ", name, static_cast<long long>(size));
  std::printf("%s\n", what.c_str());
  std::exit(1);
}

inline void expect_error(const std::string& error, const char* expected) {
  if (error.find(expected) == std::string::npos) fail(std::string("expected: ") + expected + "\nfound: " + error);
}

// Change a case, or the inputs of its run, and require that the kernel refuses it. The program has `give(run, case)` and
// `kernel_of(case)`.
template <typename Case, typename Change>
void refuse(const char* expected, Case c, Change change) {
  fake::Run run;
  if constexpr (std::is_invocable_v<Change, Case*>) change(&c);
  give(&run, c);
  if constexpr (!std::is_invocable_v<Change, Case*>) change(c, &run);
  expect_error(run(kernel_of(c)), expected);
}

// Run a case, which the kernel must not refuse.
template <typename Case>
void run_case(fake::Run* run, const Case& c) {
  give(run, c);
  const std::string error = (*run)(kernel_of(c));
  if (!error.empty()) fail(c, error);
}

// Make one number NaN.
inline void spoil(std::vector<float>* numbers) {
  if (!numbers->empty()) (*numbers)[random_bits() % numbers->size()] = NAN;
}

// Return the largest difference between the first output and what is wanted; NaN must be where it is wanted, nowhere else.
template <typename Case>
double largest_difference(const fake::Run& run, const Case& c, const std::vector<double>& wanted, double tolerance) {
  double largest = 0;
  for (size_t k = 0; k < wanted.size(); ++k) {
    const double difference = std::fabs(run.result<float>(0)[k] - wanted[k]);
    if (std::isnan(wanted[k]) && std::isnan(run.result<float>(0)[k])) continue;
    if (!(difference <= tolerance)) fail(c, "number " + std::to_string(k) + " differs by " + std::to_string(difference));
    largest = std::fmax(largest, difference);
  }
  return largest;
}

inline double dot(const float* a, const float* b, int64_t d) {
  double sum = 0;
  for (int64_t k = 0; k < d; ++k) sum += double{a[k]} * b[k];
  return sum;
}

// The weighted mean of rows of values: weights are exp(score - highest).
struct Attended {
  double highest = -INFINITY, sum = 0;
  std::vector<std::pair<double, const float*>> seen;  // scores and values

  void add(double score, const float* value) {
    seen.emplace_back(score, value);
    highest = std::max(highest, score);
  }
  // Add up weighted values of d numbers; a second pass, because the highest score is known then.
  std::vector<double> weighted(int64_t d) {
    std::vector<double> sums(static_cast<size_t>(d));
    sum = 0;
    for (const auto& [score, value] : seen) {
      const double weight = std::exp(score - highest);
      sum += weight;
      for (int64_t k = 0; k < d; ++k) sums[static_cast<size_t>(k)] += weight * value[k];
    }
    return sums;
  }
  void write_mean(int64_t d, double* mean) {
    for (const double number : weighted(d)) *mean++ = number / sum;
  }
};

// The rest of a main function: compare as many random shapes as the first argument says, with the seed of the second.
// Print the instruction set, the number of shapes and the largest difference.
inline int compare_shapes(int count, char** arguments, const std::function<double(long shape)>& compare) {
  const long shapes = count > 1 ? std::atol(arguments[1]) : 2000;
  random_bits.seed(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1);
  double largest = 0;
  for (long shape = 0; shape < shapes; ++shape) largest = std::fmax(largest, compare(shape));
  std::printf("%s: %ld shapes, largest difference %.2g\n", xlexport::level().name, shapes, largest);
  return 0;
}
