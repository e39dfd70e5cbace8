#include "ring_order.h"

#include <string.h>

namespace xlexport {
namespace {

int64_t most_ids(const RingWork& work) { return 4 * work.C + 4096; }

}  // namespace

size_t order_scratch(const RingWork& work) { return static_cast<size_t>(most_ids(work) + 1) * sizeof(int32_t); }

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

}  // namespace xlexport
