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
