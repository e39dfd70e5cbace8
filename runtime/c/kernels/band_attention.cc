#include <string.h>

#include "inputs.h"
#include "operators.h"
#include "rounds.h"

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

enum class Plan { kMade, kOrder, kRank, kNotInverse };  // made, or refused: an index out of range, another rank

// Make the plan of one head and round: which sorted positions each query covers. `scratch` holds C integers, and `head` is
// b · H + h.
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

constexpr int64_t kMost = 1 << 30;  // rows, so that sorted positions are small integers

constexpr Input kInputs[] = {
    {0, "LSHBandAttention: key", "BHCd"},    {1, "LSHBandAttention: value", "BHCd"},
    {2, "LSHBandAttention: length", "BHS"},  {3, "LSHBandAttention: order", "BHRC"},
    {4, "LSHBandAttention: rank", "BHRC"},   {5, "LSHBandAttention: place", "BHRC"},
    {6, "LSHBandAttention: lowest", "BHRC"}, {7, "LSHBandAttention: slot", "C"},
    {8, "LSHBandAttention: rounds", "1"}};

// Read the inputs, and set the sizes of the run.
OrtStatus* read(const Context& run, BandWork* work, int64_t* B) {
  Tensor given[9];
  Sizes sizes;
  XLEXPORT_TRY(read_inputs(run, kInputs, 9, given, &sizes));
  *B = sizes['B'], work->H = sizes['H'], work->C = sizes['C'], work->d = sizes['d'];
  work->S = sizes['S'], work->R = sizes['R'];
  work->key = given[0].as<float>(), work->value = given[1].as<float>(), work->length = given[2].as<float>();
  work->order = given[3].as<int64_t>(), work->rank = given[4].as<int64_t>(), work->place = given[5].as<int64_t>();
  work->lowest = given[6].as<int64_t>(), work->slot = given[7].as<int64_t>();
  work->rounds = *given[8].as<int64_t>();
  const long long S = work->S, C = work->C;
  if (S > C) return failure(run.api, "LSHBandAttention: %lld queries, expected at most the %lld keys", S, C);
  if (C > kMost) return failure(run.api, "LSHBandAttention: %lld keys, expected at most %lld", C, (long long)kMost);
  XLEXPORT_TRY(require(run.api, "LSHBandAttention: rounds", work->rounds, 0, work->R));
  if (!all_below(work->slot, C, C)) {
    return failure(run.api, "LSHBandAttention: slot has an index out of range, expected 0 to %lld", C - 1);
  }
  return nullptr;
}

OrtStatus* refusal(const Context& run, Plan plan, const BandWork& work) {
  const char* const input = plan == Plan::kOrder ? "order" : "rank";
  const long long last = work.C - 1;
  if (plan == Plan::kNotInverse) {
    return failure(run.api, "LSHBandAttention: rank is not the inverse of order for all queries");
  }
  return failure(run.api, "LSHBandAttention: %s has an index out of range, expected 0 to %lld", input, last);
}

}  // namespace

OrtStatus* BandAttention::create(const Attributes& attributes) {
  XLEXPORT_TRY(attributes.read("chunk_length", &chunk_length));
  return require(attributes.api, "LSHBandAttention: chunk_length", chunk_length, 1);
}

OrtStatus* BandAttention::compute(Context& run) const {
  BandWork work = {};
  int64_t B;
  XLEXPORT_TRY(read(run, &work, &B));
  work.W = chunk_length < work.C ? chunk_length : work.C;  // one chunk has all rows
  const int64_t heads = B * work.H, S = work.S, shape[] = {B, work.H, S, work.d};
  XLEXPORT_TRY(run.output(0, shape, 4, &work.attended));
  XLEXPORT_TRY(run.output(1, shape, 3, &work.highest));
  if (heads * S == 0) return nullptr;
  if (work.rounds == 0) {
    for (int64_t k = 0; k < heads * S; ++k) work.highest[k] = -1e30f;
    memset(work.attended, 0, static_cast<size_t>(heads * S * work.d) * sizeof(float));
    return nullptr;
  }

  const auto lay_out = [&](Parts parts) {
    const int64_t plans = heads * work.R * S;
    work.total = parts.take<float>(heads * S);
    work.sorted = parts.take<int32_t>(plans), work.position = parts.take<int32_t>(plans);
    work.first = parts.take<int32_t>(plans), work.end = parts.take<int32_t>(plans);
    return parts.bytes();
  };
  const Memory shared(lay_out(Parts(nullptr)));
  if (shared.data() == nullptr) return failure(run.api, "LSHBandAttention: no memory for the plan of %lld queries", (long long)S);
  lay_out(Parts(shared.data()));

  Plan refused = Plan::kMade;
  const size_t for_plan = static_cast<size_t>(work.C) * sizeof(int64_t);
  const auto plan = [&](char* scratch, int64_t head, int64_t round) {
    Plan made = plan_band(work, reinterpret_cast<int32_t*>(scratch), head, round);
    if (made != Plan::kMade) __atomic_store(&refused, &made, __ATOMIC_RELAXED);
    return made == Plan::kMade;
  };
  XLEXPORT_TRY(plan_and_attend(run, name, work, heads, for_plan, plan, [](int64_t, int64_t) {}));
  return refused == Plan::kMade ? nullptr : refusal(run, refused, work);
}

}  // namespace xlexport
