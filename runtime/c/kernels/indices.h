// Checks of indices.
#pragma once

#include <stdint.h>

namespace xlexport {

// Return whether all numbers are at least 0 and below `limit`, which is below 2^63.
inline bool all_below(const int64_t* numbers, int64_t count, int64_t limit) {
  uint64_t signs = 0;  // the highest bit is set if a number is negative, or larger than limit - 1
  for (int64_t k = 0; k < count; ++k) {
    const uint64_t number = static_cast<uint64_t>(numbers[k]);
    signs |= number | (static_cast<uint64_t>(limit - 1) - number);
  }
  return signs >> 63 == 0;
}

}  // namespace xlexport
