// Which sorted positions each query of LSHBandAttention covers.
#pragma once

#include "band_work.h"

namespace xlexport {

enum class Plan { kMade, kOrder, kRank, kRepeated };  // made, or refused: an index out of range, a repeated rank

// Return whether all numbers are at least 0 and below `limit`, which is below 2^63.
bool all_below(const int64_t* numbers, int64_t count, int64_t limit);

// Make the plan of one head and round; `scratch` holds C integers. `head` is b · H + h.
Plan plan_band(const BandWork& work, int32_t* scratch, int64_t head, int64_t round);

}  // namespace xlexport
