#include <string.h>

#include "inputs.h"
#include "operators.h"
#include "rounds.h"

namespace xlexport {
namespace {

constexpr int64_t kFew = 8;         // queries whose keys are found without a sort
constexpr int64_t kMost = 1 << 30;  // rows, so that sorted positions are small integers

// `own_value` comes before `length`, because it says how many queries there are.
constexpr Input kInputs[] = {{0, "LSHAttention: key", "BHCd"},     {1, "LSHAttention: value", "BHCd"},
                             {2, "LSHAttention: buckets", "BHRC"}, {4, "LSHAttention: own_value", "BHSd"},
                             {3, "LSHAttention: length", "BHS"},   {5, "LSHAttention: position", "B"},
                             {6, "LSHAttention: offset", "1"},     {7, "LSHAttention: window", "1"},
                             {8, "LSHAttention: rounds", "1"}};

// Read the inputs, compare their shapes and numbers, and set the sizes of the run.
OrtStatus* read(const Context& run, RingWork* work) {
  Tensor given[9];
  Sizes sizes;
  XLEXPORT_TRY(read_inputs(run, kInputs, 9, given, &sizes));
  const auto& [key, value, buckets, own_value, length, position, offset, window, rounds] = given;
  work->B = sizes['B'], work->H = sizes['H'], work->C = sizes['C'], work->d = sizes['d'];
  work->R = sizes['R'], work->S = sizes['S'];
  const long long S = work->S, C = work->C;
  if (S > C) return failure(run.api, "LSHAttention: %lld queries, expected at most the %lld slots of key", S, C);
  if (C > kMost) {
    return failure(run.api, "LSHAttention: key has %lld slots, expected at most %lld", C, static_cast<long long>(kMost));
  }
  work->rounds = *rounds.as<int64_t>();
  XLEXPORT_TRY(require(run.api, "LSHAttention: rounds", work->rounds, 0, work->R));
  work->position = position.as<int64_t>();
  for (int64_t b = 0; b < work->B; ++b) {
    XLEXPORT_TRY(require(run.api, "LSHAttention: position", work->position[b], 0, INT64_MAX / 2));
  }
  work->window = *window.as<int64_t>();
  XLEXPORT_TRY(require(run.api, "LSHAttention: window", work->window, 1));
  if (C > 0) work->offset = (*offset.as<int64_t>() % C + C) % C;
  work->key = key.as<float>(), work->value = value.as<float>(), work->buckets = buckets.as<int32_t>();
  work->length = length.as<float>();
  return nullptr;
}

OrtStatus* make_outputs(const Context& run, RingWork* work) {
  const int64_t attended[] = {work->B, work->H, work->S, work->d}, overflow[] = {work->B, work->S};
  XLEXPORT_TRY(run.output(0, attended, 4, &work->attended));
  XLEXPORT_TRY(run.output(1, overflow, 2, &work->overflow));
  memset(work->overflow, 0, static_cast<size_t>(work->B * work->S) * sizeof *work->overflow);
  return nullptr;
}

// Attend without a sort: each query looks at all ids that it may see.
OrtStatus* attend_few(const Context& run, const RingWork& work) {
  const FewLoops& loops = level().few;
  const int64_t tasks = work.B * work.H * work.S;
  return run_with_scratch(run, "LSHAttention", tasks, loops.scratch(work), [&](char* scratch, int64_t task) {
    const int64_t head = task / work.S, query = task % work.S;
    const int64_t more = loops.attend(work, scratch, head, query);
    if (more > 0) __atomic_fetch_add(&work.overflow[head / work.H * work.S + query], more, __ATOMIC_RELAXED);
  });
}

// Replace the result of queries without a key by their own values.
void attend_to_themselves(const RingWork& work, const float* highest, int64_t head, int64_t query) {
  const int64_t at = head * work.S + query;
  if (highest[at] > -1e30f) return;
  memcpy(work.attended + at * work.d, work.value + (head * work.C + work.slot(query)) * work.d,
         static_cast<size_t>(work.d) * sizeof(float));
}

int64_t most_ids(const RingWork& work) { return 4 * work.C + 4096; }

// Return the bytes of scratch that `order_ring` needs.
size_t order_scratch(const RingWork& work) { return static_cast<size_t>(most_ids(work) + 1) * sizeof(int32_t); }

// Sort the rows of one head and round by bucket and age, and set the rows that each query covers; `head` is b · H + h.
//
// Write `order`, `rank`, `sorted`, `first` and `end` of the head and round in `band`, and add to the overflow of queries.
// Return false if bucket ids are too far apart to count them.
bool order_ring(const RingWork& work, const BandWork& band, char* scratch, int64_t head, int64_t round) {
  const int64_t C = work.C, S = work.S, W = work.W, row = head * work.R + round;
  const int32_t* const ids = work.buckets + row * C;  // by slot
  int64_t* const order = const_cast<int64_t*>(band.order) + row * C;
  int64_t* const rank = const_cast<int64_t*>(band.rank) + row * C;
  int32_t low = ids[0], high = ids[0];
  for (int64_t slot = 1; slot < C; ++slot) {
    low = ids[slot] < low ? ids[slot] : low;
    high = ids[slot] > high ? ids[slot] : high;
  }
  const int64_t range = static_cast<int64_t>(high) - low + 1;
  if (range > most_ids(work)) return false;

  // Count the rows of each bucket; then next[id] is where its next row goes, in the end where its rows end.
  int32_t* const next = reinterpret_cast<int32_t*>(scratch) + 1;
  memset(next - 1, 0, static_cast<size_t>(range + 1) * sizeof *next);
  for (int64_t slot = 0; slot < C; ++slot) ++next[ids[slot] - static_cast<int64_t>(low)];
  int32_t begin = 0;
  for (int64_t id = 0; id < range; ++id) {
    const int32_t count = next[id];
    next[id] = begin;
    begin += count;
  }
  const int64_t oldest_slot = (work.offset + S) % C;
  int64_t age = 0;
  const auto place = [&](int64_t from, int64_t to) {
    for (int64_t slot = from; slot < to; ++slot, ++age) {
      const int32_t position = next[ids[slot] - static_cast<int64_t>(low)]++;
      order[position] = age;
      rank[age] = position;
    }
  };
  place(oldest_slot, C);
  place(0, oldest_slot);

  int32_t* const sorted = band.sorted + row * S;
  int32_t* const sorted_position = band.position + row * S;
  int32_t* const first = band.first + row * S;
  int32_t* const end = band.end + row * S;
  int64_t* const overflow = work.overflow + head / work.H * S;
  int64_t found = 0, least = 0;  // least: where the query before in sorted order begins; no later one begins earlier
  for (int64_t position = 0; position < C; ++position) {
    const int64_t query = order[position] - (C - S);
    if (query < 0) continue;
    const int64_t id = ids[work.slot(query)] - static_cast<int64_t>(low);
    const int64_t bucket = next[id - 1];  // where its rows begin: where those of the id before end; 0 for the first id
    const int64_t reach = work.reach(head, query), oldest = C - S + query - reach;
    int64_t begins = position - W > bucket ? position - W : bucket;
    if (begins < least) begins = least;
    while (begins < position && order[begins] < oldest) ++begins;
    sorted[found] = static_cast<int32_t>(query);
    sorted_position[found++] = static_cast<int32_t>(position);
    first[query] = static_cast<int32_t>(begins);
    end[query] = static_cast<int32_t>(position);
    least = begins;
    const int64_t more = position - W - 1;
    if (round < work.rounds && more >= bucket && order[more] >= oldest) {
      __atomic_fetch_add(&overflow[query], 1, __ATOMIC_RELAXED);
    }
  }
  return true;
}

// Attend in the order of a sort.
OrtStatus* attend_sorted(const Context& run, const RingWork& work) {
  const int64_t heads = work.B * work.H, S = work.S, C = work.C;
  BandWork band = {};
  band.H = work.H, band.R = work.R, band.C = C, band.S = S, band.d = work.d, band.W = work.W, band.rounds = work.rounds;
  band.key = work.key, band.value = work.value, band.length = work.length, band.attended = work.attended;
  int64_t* slot;
  const auto lay_out = [&](Parts parts) {
    band.order = parts.take<int64_t>(heads * work.R * C), band.rank = parts.take<int64_t>(heads * work.R * C);
    slot = parts.take<int64_t>(C);
    band.slot = slot;
    band.highest = parts.take<float>(heads * S), band.total = parts.take<float>(heads * S);
    const int64_t plans = heads * work.R * S;
    band.sorted = parts.take<int32_t>(plans), band.position = parts.take<int32_t>(plans);
    band.first = parts.take<int32_t>(plans), band.end = parts.take<int32_t>(plans);
    return parts.bytes();
  };
  const Memory shared(lay_out(Parts(nullptr)));
  if (shared.data() == nullptr) {
    return failure(run.api, "LSHAttention: no memory for the order of %lld rows", static_cast<long long>(C));
  }
  lay_out(Parts(shared.data()));
  for (int64_t age = 0; age < C; ++age) slot[age] = work.slot(S + age);

  bool countable = true;
  const auto order = [&](char* scratch, int64_t head, int64_t round) {
    const bool counted = order_ring(work, band, scratch, head, round);
    if (!counted) __atomic_store_n(&countable, false, __ATOMIC_RELAXED);
    return counted;
  };
  XLEXPORT_TRY(plan_and_attend(run, "LSHAttention", band, heads, order_scratch(work), order, [&](int64_t head, int64_t query) {
    attend_to_themselves(work, band.highest, head, query);
  }));
  if (countable) return nullptr;
  memset(work.overflow, 0, static_cast<size_t>(work.B * S) * sizeof *work.overflow);
  return attend_few(run, work);
}

}  // namespace

OrtStatus* LSHAttention::create(const Attributes& attributes) {
  XLEXPORT_TRY(attributes.read("chunk_length", &chunk_length));
  return require(attributes.api, "LSHAttention: chunk_length", chunk_length, 1);
}

OrtStatus* LSHAttention::compute(Context& run) const {
  RingWork work = {};
  XLEXPORT_TRY(read(run, &work));
  XLEXPORT_TRY(make_outputs(run, &work));
  if (work.B * work.H * work.S == 0) return nullptr;
  work.W = chunk_length < work.C ? chunk_length : work.C;
  if (work.S <= kFew || work.rounds == 0) return attend_few(run, work);
  return attend_sorted(run, work);
}

}  // namespace xlexport
