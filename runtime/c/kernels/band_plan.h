// Which sorted positions each query of LSHBandAttention covers.
#pragma once

#include "band_work.h"

namespace xlexport {

enum class Plan { kMade, kOrder, kRank, kNotInverse };  // made, or refused: an index out of range, another rank

// Make the plan of one head and round; `scratch` holds C integers. `head` is b · H + h.
Plan plan_band(const BandWork& work, int32_t* scratch, int64_t head, int64_t round);

}  // namespace xlexport
