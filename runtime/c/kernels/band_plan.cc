#include "band_plan.h"

#include <string.h>

#include "indices.h"

namespace xlexport {
namespace {

// Sort the queries by rank if they are few: heap sort of rank · 2^32 + query, so that nothing has the size of C.
void sort_few(const int64_t* rank, int32_t S, int64_t* keys, int32_t* sorted) {
  for (int32_t s = 0; s < S; ++s) keys[s] = rank[s] << 32 | s;
  const auto sink = [keys](int32_t from, int32_t count) {
    const int64_t moved = keys[from];
    for (int32_t child; (child = 2 * from + 1) < count; from = child) {
      if (child + 1 < count && keys[child + 1] > keys[child]) ++child;
      if (keys[child] <= moved) break;
      keys[from] = keys[child];
      keys[child] = moved;
    }
  };
  for (int32_t from = S / 2; from-- > 0;) sink(from, S);
  for (int32_t count = S; count-- > 1;) {
    const int64_t most = keys[0];
    keys[0] = keys[count];
    keys[count] = most;
    sink(0, count);
  }
  for (int32_t k = 0; k < S; ++k) sorted[k] = static_cast<int32_t>(keys[k]);
}

// Sort the queries by rank if they are many: write each at its rank and collect them.
void sort_many(const int64_t* rank, int32_t S, int32_t C, int32_t* at, int32_t* sorted) {
  memset(at, 0xFF, static_cast<size_t>(C) * sizeof *at);
  for (int32_t s = 0; s < S; ++s) at[rank[s]] = s;
  int32_t found = 0;
  for (int32_t position = 0; position < C; ++position) {
    if (at[position] >= 0) sorted[found++] = at[position];
  }
}

// The places of one head and round in sorted order.
struct Places {
  const int64_t *order, *by_age;
  int64_t operator[](int32_t position) const { return by_age[order[position]]; }

  // Return the first position of [begin, end) whose place is at least `least`, or `end`; try the guess first.
  int32_t lower_bound(int32_t begin, int32_t end, int32_t guess, int64_t least) const {
    if (guess >= begin && guess <= end && (guess == begin || (*this)[guess - 1] < least) &&
        (guess == end || (*this)[guess] >= least)) {
      return guess;
    }
    while (begin < end) {
      const int32_t middle = begin + (end - begin) / 2;
      if ((*this)[middle] < least) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
  }
};

}  // namespace

Plan plan_band(const BandWork& work, int32_t* scratch, int64_t head, int64_t round) {
  const int32_t C = static_cast<int32_t>(work.C), S = static_cast<int32_t>(work.S), W = static_cast<int32_t>(work.W);
  const int64_t row = head * work.R + round;
  const int64_t* const order = work.order + row * C;
  const int64_t* const new_rank = work.rank + (row + 1) * C - S;
  const int64_t* const new_place = work.place + (row + 1) * C - S;
  const int64_t* const new_lowest = work.lowest + (row + 1) * C - S;
  int32_t* const sorted = work.sorted + row * S;
  int32_t* const first = work.first + row * S;
  int32_t* const end = work.end + row * S;
  if (!all_below(order, C, C)) return Plan::kOrder;
  if (!all_below(new_rank, S, C)) return Plan::kRank;
  for (int32_t s = 0; s < S; ++s) {
    if (order[new_rank[s]] != C - S + s) return Plan::kNotInverse;
  }
  if (static_cast<int64_t>(S) * 16 < C) {
    sort_few(new_rank, S, reinterpret_cast<int64_t*>(scratch), sorted);
  } else {
    sort_many(new_rank, S, C, scratch, sorted);
  }

  const Places places = {order, work.place + row * C};
  int32_t guess = 0;  // neighbours have the same first position, or in a full bucket the next one
  for (int32_t k = 0; k < S; ++k) {
    const int32_t s = sorted[k], position = static_cast<int32_t>(new_rank[s]);
    const int32_t chunk = position - position % W;
    const int32_t window = chunk < W ? 0 : chunk - W, window_end = C - chunk < W ? C : chunk + W;
    if (guess < window || guess > position || (guess < position && places[guess] < new_lowest[s])) ++guess;
    work.position[row * S + k] = position;
    first[s] = places.lower_bound(window, window_end, guess, new_lowest[s]);
    end[s] = places.lower_bound(window, window_end, position, new_place[s]);
    guess = first[s];
  }
  return Plan::kMade;
}

}  // namespace xlexport
