// The sorted rows of rings: the plan of LSHBandAttention's inner loops, made from bucket ids.
#pragma once

#include "band_work.h"
#include "ring_work.h"

namespace xlexport {

// Return the bytes of scratch that `order_ring` needs.
size_t order_scratch(const RingWork& work);

// Sort the rows of one head and round by bucket and age, and set the rows that each query covers; `head` is b · H + h.
//
// Write `order`, `rank`, `sorted`, `first` and `end` of the head and round in `band`, and add to the overflow of queries.
// Return false if bucket ids are too far apart to count them.
bool order_ring(const RingWork& work, const BandWork& band, char* scratch, int64_t head, int64_t round);

}  // namespace xlexport
