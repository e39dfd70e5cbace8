#include "lsh_attention.h"

#include <string.h>

#include "band_rounds.h"
#include "ring_order.h"

namespace xlexport {
namespace {

constexpr int64_t kFew = 8;         // queries whose keys are found without a sort
constexpr int64_t kMost = 1 << 30;  // rows, so that sorted positions are small integers

OrtStatus* read_chunk_length(const Attributes& attributes, const char* name, int64_t* chunk_length) {
  XLEXPORT_TRY(attributes.read("chunk_length", chunk_length));
  if (*chunk_length >= 1) return nullptr;
  return failure(attributes.api, "%s: chunk_length is %lld, expected at least 1", name,
                 static_cast<long long>(*chunk_length));
}

// The inputs that both operators have, by their place.
struct Places {
  size_t queries, own_value, position;  // offset, window and rounds follow position
};

// Read the inputs, compare their shapes and numbers, and set the sizes of the run.
OrtStatus* read(const Context& run, const char* operator_name, const Places& places, RingWork* work) {
  static const char* const names[] = {"key", "value", "buckets", "own_value", "position", "offset", "window", "rounds"};
  static const int ranks[] = {4, 4, 4, 4, 1, 1, 1, 1};
  const size_t at[] = {0, 1, 2, places.own_value, places.position, places.position + 1, places.position + 2,
                       places.position + 3};
  Tensor given[8];
  char named[48];
  const auto name = [&](const char* input) {
    snprintf(named, sizeof named, "%s: %s", operator_name, input);
    return named;
  };
  for (int k = 0; k < 8; ++k) {
    XLEXPORT_TRY(run.input(at[k], &given[k]));
    XLEXPORT_TRY(run.require_rank(name(names[k]), given[k], ranks[k]));
  }
  const Tensor &key = given[0], &buckets = given[2], &own_value = given[3];
  work->B = key.shape[0], work->H = key.shape[1], work->C = key.shape[2], work->d = key.shape[3];
  work->R = buckets.shape[2], work->S = own_value.shape[2];
  const int64_t rows[] = {work->B, work->H, work->C, work->d}, ids[] = {work->B, work->H, work->R, work->C};
  const int64_t own[] = {work->B, work->H, work->S, work->d};
  for (int axis = 0; axis < 4; ++axis) {
    XLEXPORT_TRY(run.require_axis(name("value"), given[1], axis, rows[axis]));
    XLEXPORT_TRY(run.require_axis(name("buckets"), buckets, axis, ids[axis]));
    XLEXPORT_TRY(run.require_axis(name("own_value"), own_value, axis, own[axis]));
  }
  XLEXPORT_TRY(run.require_axis(name("position"), given[4], 0, work->B));
  for (int k = 5; k < 8; ++k) XLEXPORT_TRY(run.require_axis(name(names[k]), given[k], 0, 1));
  const long long S = work->S, C = work->C;
  if (S > C) return failure(run.api, "%s: %lld queries, expected at most the %lld slots of key", operator_name, S, C);
  if (C > kMost) {
    return failure(run.api, "%s: key has %lld slots, expected at most %lld", operator_name, C, static_cast<long long>(kMost));
  }
  work->rounds = *given[7].as<int64_t>();
  if (work->rounds < 0 || work->rounds > work->R) {
    return failure(run.api, "%s: rounds is %lld, expected 0 to %lld", operator_name,
                   static_cast<long long>(work->rounds), static_cast<long long>(work->R));
  }
  work->position = given[4].as<int64_t>();
  for (int64_t b = 0; b < work->B; ++b) {
    if (work->position[b] < 0 || work->position[b] > INT64_MAX / 2) {
      return failure(run.api, "%s: position is %lld, expected 0 to %lld", operator_name,
                     static_cast<long long>(work->position[b]), static_cast<long long>(INT64_MAX / 2));
    }
  }
  work->window = *given[6].as<int64_t>();
  if (work->window < 1) {
    return failure(run.api, "%s: window is %lld, expected at least 1", operator_name, static_cast<long long>(work->window));
  }
  if (C > 0) work->offset = (*given[5].as<int64_t>() % C + C) % C;
  work->key = key.as<float>(), work->value = given[1].as<float>(), work->buckets = buckets.as<int32_t>();
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
OrtStatus* attend_few(const Context& run, const char* name, const RingWork& work) {
  const FewLoops& loops = level().few;
  const int64_t tasks = work.B * work.H * work.S;
  return run_with_scratch(run, name, tasks, loops.scratch(work), [&](char* scratch, int64_t task) {
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

// Attend in the order of a sort.
OrtStatus* attend_sorted(const Context& run, const char* name, const RingWork& work) {
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
  if (shared.data() == nullptr) return failure(run.api, "%s: no memory for the order of %lld rows", name, static_cast<long long>(C));
  lay_out(Parts(shared.data()));
  for (int64_t age = 0; age < C; ++age) slot[age] = work.slot(S + age);

  const BandLoops& loops = level().band;
  const size_t for_order = order_scratch(work), for_loops = loops.scratch(band);
  bool countable = true;
  const auto order = [&](char* scratch, int64_t head, int64_t round) {
    const bool counted = order_ring(work, band, scratch, head, round);
    if (!counted) __atomic_store_n(&countable, false, __ATOMIC_RELAXED);
    return counted;
  };
  if (S <= kQueriesOfHead) {
    const size_t bytes = for_order > for_loops ? for_order : for_loops;
    XLEXPORT_TRY(run_with_scratch(run, name, heads, bytes, [&](char* scratch, int64_t head) {
      for (int64_t round = 0; round < work.rounds; ++round) {
        if (!order(scratch, head, round)) return;
      }
      for (int64_t round = 0; round < work.rounds; ++round) loops.attend(band, scratch, head, round, 0, S);
      for (int64_t query = 0; query < S; ++query) attend_to_themselves(work, band.highest, head, query);
    }));
  } else {
    XLEXPORT_TRY(run_with_scratch(run, name, heads * work.rounds, for_order, [&](char* scratch, int64_t task) {
      order(scratch, task / work.rounds, task % work.rounds);
    }));
    if (countable) {
      XLEXPORT_TRY(attend_rounds(run, name, band, heads, [&](int64_t head, int64_t query) {
        attend_to_themselves(work, band.highest, head, query);
      }));
    }
  }
  if (countable) return nullptr;
  memset(work.overflow, 0, static_cast<size_t>(work.B * S) * sizeof *work.overflow);
  return attend_few(run, name, work);
}

}  // namespace

OrtStatus* LSHAttention::create(const Attributes& attributes) {
  return read_chunk_length(attributes, name, &chunk_length);
}

OrtStatus* LSHAttention::compute(Context& run) const {
  RingWork work = {};
  XLEXPORT_TRY(read(run, name, {3, 4, 5}, &work));
  Tensor length;  // (B, H, S)
  XLEXPORT_TRY(run.input(3, &length));
  XLEXPORT_TRY(run.require_rank("LSHAttention: length", length, 3));
  const int64_t shape[] = {work.B, work.H, work.S};
  for (int axis = 0; axis < 3; ++axis) XLEXPORT_TRY(run.require_axis("LSHAttention: length", length, axis, shape[axis]));
  work.length = length.as<float>();
  XLEXPORT_TRY(make_outputs(run, &work));
  if (work.B * work.H * work.S == 0) return nullptr;
  work.W = chunk_length < work.C ? chunk_length : work.C;
  if (work.S <= kFew || work.rounds == 0) return attend_few(run, name, work);
  return attend_sorted(run, name, work);
}

OrtStatus* LSHFewAttention::create(const Attributes& attributes) {
  return read_chunk_length(attributes, name, &chunk_length);
}

OrtStatus* LSHFewAttention::compute(Context& run) const {
  RingWork work = {};
  XLEXPORT_TRY(read(run, name, {3, 5, 6}, &work));
  Tensor query;  // (B, H, S, d)
  XLEXPORT_TRY(run.input(3, &query));
  XLEXPORT_TRY(run.require_rank("LSHFewAttention: query", query, 4));
  const int64_t shape[] = {work.B, work.H, work.S, work.d};
  for (int axis = 0; axis < 4; ++axis) XLEXPORT_TRY(run.require_axis("LSHFewAttention: query", query, axis, shape[axis]));
  work.query = query.as<float>();
  XLEXPORT_TRY(make_outputs(run, &work));
  if (work.B * work.H * work.S == 0) return nullptr;
  work.W = chunk_length < work.C ? chunk_length : work.C;
  return attend_few(run, name, work);
}

OrtStatus* LSHFewAttentionPlan::compute(Context& run) const {
  const int64_t empty = 0;
  int32_t* priority;
  return run.output(0, &empty, 1, &priority);
}

}  // namespace xlexport
