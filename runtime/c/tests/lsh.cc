// Compare the five LSH operators with plain references in double precision on random shapes.
//
// lsh [shapes] [seed]: prints the instruction set, the number of shapes and the largest difference.
#include <numeric>

#include "kernel_test.h"

namespace {

constexpr double kTolerance = 6e-5;  // of averages of values of about 1, by scores of up to 100

using Floats = std::vector<float>;
using Ids = std::vector<int64_t>;

Ids ids(int64_t count, int64_t least, int64_t most) {
  Ids made(static_cast<size_t>(count));
  for (int64_t& id : made) id = whole(least, most);
  return made;
}

void expect(bool holds, const char* what, std::initializer_list<int64_t> sizes) {
  if (holds) return;
  std::string text = std::string(what) + ":";
  for (int64_t size : sizes) text += " " + std::to_string(size);
  fail(text);
}

// Sort each row of N ids; the inverse comes second.
void sort_rows(const Ids& buckets, int64_t N, Ids* order, Ids* inverse) {
  order->resize(buckets.size());
  inverse->resize(buckets.size());
  for (size_t row = 0; row < buckets.size(); row += static_cast<size_t>(N)) {
    const auto begin = order->begin() + static_cast<int64_t>(row);
    std::iota(begin, begin + N, 0);
    std::stable_sort(begin, begin + N, [&](int64_t a, int64_t b) {
      return buckets[row + static_cast<size_t>(a)] < buckets[row + static_cast<size_t>(b)];
    });
    for (int64_t k = 0; k < N; ++k) (*inverse)[row + static_cast<size_t>(*(begin + k))] = k;
  }
}

void check_sort() {
  const int64_t rows = whole(0, 4), N = coin(0.1) ? 0 : size_up_to(3000);
  const int64_t range = coin(0.5) ? 8 : coin(0.5) ? 5000 : int64_t{1} << whole(20, 61);
  const Ids buckets = ids(rows * N, coin(0.5) ? 0 : -range, range);
  fake::Run run;
  run.input({rows, N}, buckets);
  run.output(sizeof(int64_t));
  run.output(sizeof(int64_t));
  run.threads(2);
  const std::string error = run(xlexport::Sort{});
  if (!error.empty()) fail(error);
  Ids order, inverse;
  if (N > 0) sort_rows(buckets, N, &order, &inverse);
  expect(std::equal(order.begin(), order.end(), run.result<int64_t>(0)), "order of LSHSort", {rows, N, range});
  expect(std::equal(inverse.begin(), inverse.end(), run.result<int64_t>(1)), "inverse of LSHSort", {rows, N, range});
}

void check_gather() {
  const int64_t groups = whole(0, 3), N = size_up_to(50), D = whole(0, 70), M = coin(0.1) ? 0 : size_up_to(3000);
  static const int types[] = {ort::kFloat16, ort::kBfloat16, ort::kFloat, ort::kDouble};
  const int type = types[whole(0, 3)], size = type == ort::kDouble ? 8 : type == ort::kFloat ? 4 : 2;
  std::vector<char> rows(static_cast<size_t>(groups * N * D * size));
  for (char& byte : rows) byte = static_cast<char>(whole(-128, 127));
  Ids index = ids(groups * M, 0, N - 1);
  const bool wrong = !index.empty() && coin(0.2);
  if (wrong) index[static_cast<size_t>(whole(0, groups * M - 1))] = coin(0.5) ? whole(-N, -1) : whole(N, 3 * N);
  fake::Run run;
  run.input({groups, N, D}, rows, type);
  run.input({groups, M}, index);
  run.output(static_cast<size_t>(size));
  run.threads(2);
  const std::string error = run(xlexport::Gather{});
  if (wrong) return expect_error(error, "LSHGather: index ");
  if (!error.empty()) fail(error);
  for (int64_t k = 0; D > 0 && k < groups * M; ++k) {
    const char* const row = rows.data() + (k / M * N + index[static_cast<size_t>(k)]) * D * size;
    expect(memcmp(run.result<char>(0) + k * D * size, row, static_cast<size_t>(D * size)) == 0, "row of LSHGather",
           {groups, N, D, M, type});
  }
}

// What makes an input illegal, or only senseless.
enum class Fault { kNone, kOrder, kRank, kOther, kRounds, kSlot, kSenseless };

Fault random_fault() { return coin(0.8) ? Fault::kNone : static_cast<Fault>(whole(1, 6)); }

struct Band {
  int64_t B, H, R, C, S, d, W, rounds;
  Floats key, value, length;
  Ids order, rank, place, lowest, slot;

  int64_t row(int64_t head, int64_t round) const { return (head * R + round) * C; }
  template <typename T>
  static auto& at(T& of, int64_t index) {
    return of[static_cast<size_t>(index)];
  }
};

Band make_band() {
  Band c;
  c.B = whole(1, 2), c.H = whole(1, 2), c.R = whole(1, 4);
  c.C = size_up_to(400);
  c.S = coin(0.3) ? c.C : coin(0.5) ? whole(1, std::min<int64_t>(c.C, 5)) : whole(1, c.C);
  c.d = coin(0.5) ? int64_t{1} << whole(0, 6) : size_up_to(70);
  c.W = size_up_to(100);
  c.rounds = coin(0.7) ? c.R : whole(0, c.R);
  c.key = numbers(c.B * c.H * c.C * c.d, 1 / std::sqrt(static_cast<double>(c.d)));
  c.value = numbers(c.B * c.H * c.C * c.d, 1);
  c.length = numbers(c.B * c.H * c.S, coin(0.2) ? 30 : 3);
  if (coin(0.1)) spoil(&c.key);
  const int64_t rows = c.B * c.H * c.R;
  const Ids buckets = ids(rows * c.C, 0, coin(0.3) ? 0 : coin(0.5) ? 3 : c.C / 4 + 1);
  sort_rows(buckets, c.C, &c.order, &c.rank);
  c.place.resize(buckets.size());
  c.lowest.resize(buckets.size());
  const bool as_exported = coin(0.6);
  const int64_t reach = coin(0.5) ? c.C : whole(0, c.C);
  for (int64_t row = 0; row < rows * c.C; row += c.C) {
    int64_t place = whole(0, 3);
    for (int64_t k = 0; k < c.C; ++k) {
      const int64_t age = Band::at(c.order, row + k), bucket = Band::at(buckets, row + age);
      place = as_exported ? bucket * c.C + age : place + whole(0, 2);  // ascending, with ties
      Band::at(c.place, row + age) = place;
      int64_t& lowest = Band::at(c.lowest, row + age);
      lowest = as_exported ? bucket * c.C + std::max<int64_t>(age - reach, 0) : std::max<int64_t>(place - whole(0, 9), 0);
      if (as_exported && k >= c.W) lowest = std::max(lowest, Band::at(c.place, row + Band::at(c.order, row + k - c.W)));
    }
  }
  c.slot.resize(static_cast<size_t>(c.C));
  std::iota(c.slot.begin(), c.slot.end(), 0);
  std::rotate(c.slot.begin(), c.slot.begin() + whole(0, c.C - 1), c.slot.end());
  return c;
}

std::string run_band(const Band& c, fake::Run* run) {
  const std::vector<int64_t> of_rows = {c.B, c.H, c.C, c.d}, of_rounds = {c.B, c.H, c.R, c.C};
  run->input(of_rows, c.key);
  run->input(of_rows, c.value);
  run->input({c.B, c.H, c.S}, c.length);
  for (const Ids* indices : {&c.order, &c.rank, &c.place, &c.lowest}) run->input(of_rounds, *indices);
  run->input({c.C}, c.slot);
  run->input({1}, Ids{c.rounds});
  run->output(sizeof(float));
  run->output(sizeof(float));
  run->threads(2);
  return (*run)(xlexport::BandAttention{c.W});
}

// Break an input; return the error that follows.
const char* damage(Band* c, Fault fault) {
  c->rounds = c->R;
  const int64_t beyond = coin(0.5) ? -1 : c->C + whole(0, 1) * (int64_t{1} << 40);
  const int64_t newest = whole(0, c->B * c->H * c->R - 1) * c->C + whole(c->C - c->S, c->C - 1);
  switch (fault) {
    case Fault::kOrder:
      Band::at(c->order, whole(0, c->B * c->H * c->R * c->C - 1)) = beyond;
      return "order has an index out of range";
    case Fault::kRank:
      Band::at(c->rank, newest) = beyond;
      return "rank has an index out of range";
    case Fault::kOther:
      if (c->C == 1) return "";
      Band::at(c->rank, newest) = (Band::at(c->rank, newest) + 1) % c->C;
      return "rank is not the inverse of order";
    case Fault::kRounds:
      c->rounds = coin(0.5) ? -1 : c->R + 1;
      return "rounds is ";
    case Fault::kSlot:
      Band::at(c->slot, whole(0, c->C - 1)) = beyond;
      return "slot has an index out of range";
    default:  // no error, only no sense
      for (int64_t& place : c->place) place = static_cast<int64_t>(random_bits());
      for (int64_t& lowest : c->lowest) lowest = static_cast<int64_t>(random_bits());
      return "";
  }
}

double check_band() {
  Band c = make_band();
  const Fault fault = random_fault();
  fake::Run run;
  if (fault != Fault::kNone) {
    const char* const expected = damage(&c, fault);
    const std::string error = run_band(c, &run);
    *expected == '\0' ? expect(error.empty(), error.c_str(), {}) : expect_error(error, expected);
    return 0;
  }
  const std::string error = run_band(c, &run);
  if (!error.empty()) fail(error);
  double largest = 0;
  for (int64_t head = 0; head < c.B * c.H; ++head) {
    for (int64_t s = 0; s < c.S; ++s) {
      const int64_t age = c.C - c.S + s;
      const auto row_of = [&](const Floats& of, int64_t other) {
        return of.data() + (head * c.C + Band::at(c.slot, other)) * c.d;
      };
      std::vector<bool> covered(static_cast<size_t>(c.C));
      for (int64_t round = 0; round < c.rounds; ++round) {
        const int64_t row = c.row(head, round), chunk = Band::at(c.rank, row + age) / c.W;
        for (int64_t k = std::max<int64_t>(chunk - 1, 0) * c.W; k < std::min((chunk + 1) * c.W, c.C); ++k) {
          const int64_t other = Band::at(c.order, row + k), place = Band::at(c.place, row + other);
          const bool seen = Band::at(c.lowest, row + age) <= place && place < Band::at(c.place, row + age);
          if (seen) covered[static_cast<size_t>(other)] = true;
        }
      }
      Attended attended;
      const double length = Band::at(c.length, head * c.S + s);
      for (int64_t other = 0; other < c.C; ++other) {
        if (!covered[static_cast<size_t>(other)]) continue;
        attended.add(length * dot(row_of(c.key, age), row_of(c.key, other), c.d), row_of(c.value, other));
      }
      const float highest = run.result<float>(1)[head * c.S + s];
      if (attended.seen.empty()) {
        expect(highest == -1e30f, "highest of a query without keys", {c.C, c.S, c.W});
        continue;
      }
      const std::vector<double> sums = attended.weighted(c.d);
      double off = std::abs(attended.highest - highest) / 10;  // scores of up to 100, in float32
      if (std::isnan(attended.sum)) off = highest > -1e30f ? 0 : INFINITY;  // or else it would have no keys
      for (int64_t k = 0; k < c.d; ++k) {
        const float found = run.result<float>(0)[(head * c.S + s) * c.d + k];
        if (std::isnan(found) && std::isnan(attended.sum)) continue;
        off = std::fmax(off, std::abs(sums[static_cast<size_t>(k)] / attended.sum - found));
        if (std::isnan(found) != std::isnan(attended.sum)) off = INFINITY;
      }
      expect(off < 3e-5, "LSHBandAttention differs", {c.B, c.H, c.R, c.C, c.S, c.d, c.W, c.rounds, head, s});
      largest = std::max(largest, off);
    }
  }
  return largest;
}

// LSHChunkAttention as the rule says it, with normalisers in float32.
double check_chunk() {
  const int64_t B = whole(1, 2), H = whole(1, 2), R = whole(1, 3), W = size_up_to(60), before = whole(0, 3);
  const int64_t multiple = W * whole(1, 3), d = coin(0.5) ? int64_t{1} << whole(0, 6) : size_up_to(70);
  const bool full = coin(0.2);
  const int64_t T = full ? whole(1, W) : size_up_to(300);
  const float self_mask = coin(0.8) ? -1e5f : -1e4f;
  const Floats query = numbers(B * H * T * d, 2);
  Floats key = numbers(B * H * T * d, 2 / std::sqrt(static_cast<double>(d)));
  if (coin(0.1)) spoil(&key);
  const Floats value = numbers(B * H * T * d, 1);
  Ids order, rank;
  sort_rows(ids(B * H * R * T, 0, full ? 0 : whole(0, 20)), T, &order, &rank);
  const Fault fault = random_fault();
  Ids& broken = fault == Fault::kOrder ? order : rank;
  int64_t& index = broken[static_cast<size_t>(whole(0, B * H * R * T - 1))];
  const char* expected = "";
  if (fault == Fault::kOrder || fault == Fault::kRank) {
    index = coin(0.5) ? -1 : T;
    expected = "order or rank has an index out of range";
  } else if (fault == Fault::kOther && T > 1) {
    index = (index + 1) % T;
    expected = "rank is not the inverse of order";
  }
  fake::Run run;
  for (const Floats& rows : {query, key, value}) run.input({B, H, T, d}, rows);
  run.input({B, H, R, T}, order);
  run.input({B, H, R, T}, rank);
  run.input({1}, Ids{full});
  run.output(sizeof(float));
  run.threads(2);
  const std::string error = run(xlexport::ChunkAttention{W, before, multiple, self_mask});
  if (*expected != '\0') {
    expect_error(error, expected);
    return 0;
  }
  if (!error.empty()) fail(error);
  const int64_t chunks = (T + multiple - 1) / multiple * (multiple / W), ring = R * chunks;
  double largest = 0;
  for (int64_t head = 0; head < B * H; ++head) {
    const auto row_of = [&](const Floats& of, int64_t place) { return of.data() + (head * T + place) * d; };
    for (int64_t place = 0; place < T; ++place) {
      std::vector<std::pair<float, std::vector<double>>> rounds;  // normalisers and results
      for (int64_t round = 0; round < (full ? 1 : R); ++round) {
        const int64_t chunk = round * chunks + rank[static_cast<size_t>((head * R + round) * T + place)] / W;
        Attended attended;
        for (int64_t distance = full ? 0 : before; distance >= 0; --distance) {
          const int64_t other = distance > ring ? chunk : (chunk - distance + ring) % ring;
          const int64_t begin = other % chunks * W;
          for (int64_t k = begin; k < std::min(begin + W, T); ++k) {
            const int64_t there = order[static_cast<size_t>((head * R + other / chunks) * T + k)];
            if (there > place) continue;
            const double score = there == place ? self_mask : dot(row_of(query, place), row_of(key, there), d);
            attended.add(score, row_of(value, there));
          }
        }
        std::vector<double> sums = attended.weighted(d);
        const float normaliser = static_cast<float>(attended.highest + std::log(attended.sum));
        for (double& sum : sums) sum *= std::exp(attended.highest - normaliser);
        rounds.emplace_back(normaliser, sums);
      }
      double most = -INFINITY, total = 0;
      for (const auto& [normaliser, sums] : rounds) most = std::max<double>(most, normaliser);
      for (const auto& [normaliser, sums] : rounds) total += std::exp(normaliser - most);
      const float all = static_cast<float>(most + std::log(total));
      for (int64_t k = 0; k < d; ++k) {
        double wanted = 0;
        for (const auto& [normaliser, sums] : rounds) wanted += std::exp(normaliser - double{all}) * sums[static_cast<size_t>(k)];
        const float found = run.result<float>(0)[(head * T + place) * d + k];
        if (std::isnan(found) && std::isnan(wanted)) continue;
        const double off = std::abs(wanted - found);
        expect(off < 5e-5, "LSHChunkAttention differs", {B, H, R, T, d, W, before, multiple, full, head, place});
        largest = std::max(largest, off);
      }
    }
  }
  return largest;
}

// LSHAttention, by the definition of rule `band`.
struct Case {
  int64_t B, H, R, C, S, d, W, offset, window, rounds;
  std::vector<int64_t> position;
  std::vector<float> key, value, length;
  std::vector<int32_t> buckets;

  int64_t slot(int64_t age) const { return ((offset % C + C) % C + S + age) % C; }
};

Case make_case() {
  Case made;
  made.B = whole(1, 2);
  made.H = whole(1, 3);
  made.R = whole(1, 4);
  made.S = coin(0.05) ? whole(257, 700) : size_up_to(100);
  made.C = made.S + (coin(0.1) ? 0 : size_up_to(600));
  made.d = coin(0.5) ? size_up_to(70) : int64_t{1} << whole(0, 6);
  made.W = coin(0.1) ? made.C + 3 : size_up_to(100);
  made.offset = coin(0.2) ? 0 : coin(0.2) ? -whole(1, 1000) : coin(0.1) ? INT64_MAX - whole(0, 9) : whole(0, 3 * made.C);
  made.window = coin(0.5) ? made.C - made.S + 1 : coin(0.1) ? INT64_MAX : whole(1, made.C - made.S + 1);
  made.rounds = coin(0.7) ? made.R : whole(0, made.R);
  for (int64_t b = 0; b < made.B; ++b) made.position.push_back(coin(0.2) ? 0 : whole(0, 2 * made.C));
  made.key = numbers(made.B * made.H * made.C * made.d, 1 / std::sqrt(static_cast<float>(made.d)));
  made.value = numbers(made.B * made.H * made.C * made.d, 1);
  if (coin(0.1)) spoil(&made.key);
  made.length = numbers(made.B * made.H * made.S, coin(0.1) ? 30.0f : 2.0f);
  const int64_t most = coin(0.2) ? 1 : coin(0.2) ? 1 << 20 : size_up_to(300), least = coin(0.1) ? -1000 : 0;
  for (int64_t k = 0; k < made.B * made.H * made.R * made.C; ++k) {
    made.buckets.push_back(static_cast<int32_t>(whole(least, least + most)));
  }
  if (coin(0.05)) made.buckets[0] = INT32_MIN;  // ids too far apart to count them
  return made;
}

[[noreturn]] void fail(const Case& c, const std::string& what) {
  ::fail(what, {{"B", c.B}, {"H", c.H}, {"R", c.R}, {"C", c.C}, {"S", c.S}, {"d", c.d}, {"W", c.W}, {"offset", c.offset},
              {"window", c.window}, {"rounds", c.rounds}});
}

// Compute what the operator returns: (B, H, S, d), and (B, S).
void reference(const Case& c, std::vector<double>* attended, std::vector<int64_t>* overflow) {
  attended->assign(static_cast<size_t>(c.B * c.H * c.S * c.d), 0);
  overflow->assign(static_cast<size_t>(c.B * c.S), 0);
  for (int64_t head = 0; head < c.B * c.H; ++head) {
    const float* const keys = c.key.data() + head * c.C * c.d;
    const float* const values = c.value.data() + head * c.C * c.d;
    for (int64_t i = 0; i < c.S; ++i) {
      const int64_t own = c.C - c.S + i, before = c.position[static_cast<size_t>(head / c.H)] + i;
      const int64_t reach = std::min(std::min(before, c.window - 1), own);
      std::vector<char> covered(static_cast<size_t>(c.C), 0);  // by age
      for (int64_t round = 0; round < c.rounds; ++round) {
        const int32_t* const ids = c.buckets.data() + (head * c.R + round) * c.C;
        int64_t found = 0;
        for (int64_t age = own - 1; age >= own - reach; --age) {
          if (ids[c.slot(age)] != ids[c.slot(own)]) continue;
          if (found++ < c.W) covered[static_cast<size_t>(age)] = 1;
        }
        if (found > c.W) ++(*overflow)[static_cast<size_t>(head / c.H * c.S + i)];
      }
      Attended seen;
      for (int64_t age = 0; age < c.C; ++age) {
        if (!covered[static_cast<size_t>(age)]) continue;
        const double product = dot(keys + c.slot(own) * c.d, keys + c.slot(age) * c.d, c.d);
        seen.add(product * c.length[static_cast<size_t>(head * c.S + i)], values + c.slot(age) * c.d);
      }
      if (seen.seen.empty()) seen.add(0, values + c.slot(own) * c.d);
      seen.write_mean(c.d, attended->data() + (head * c.S + i) * c.d);
    }
  }
}

// Return the values of the newest S rows.
std::vector<float> own_values(const Case& c) {
  std::vector<float> rows;
  for (int64_t head = 0; head < c.B * c.H; ++head) {
    for (int64_t i = 0; i < c.S; ++i) {
      const float* const from = c.value.data() + (head * c.C + c.slot(c.C - c.S + i)) * c.d;
      rows.insert(rows.end(), from, from + c.d);
    }
  }
  return rows;
}

void give(fake::Run* run, const Case& c) {
  run->input<float>({c.B, c.H, c.C, c.d}, c.key);
  run->input<float>({c.B, c.H, c.C, c.d}, c.value);
  run->input<int32_t>({c.B, c.H, c.R, c.C}, c.buckets);
  run->input<float>({c.B, c.H, c.S}, c.length);
  run->input<float>({c.B, c.H, c.S, c.d}, own_values(c));
  run->input<int64_t>({c.B}, c.position);
  run->input<int64_t>({1}, {c.offset});
  run->input<int64_t>({1}, {c.window});
  run->input<int64_t>({1}, {c.rounds});
  run->output(sizeof(float));
  run->output(sizeof(int64_t));
  run->threads(static_cast<int>(whole(1, 3)));
}

xlexport::LSHAttention kernel_of(const Case& c) { return {c.W}; }

double compare(const Case& c) {
  std::vector<double> attended;
  std::vector<int64_t> overflow;
  reference(c, &attended, &overflow);
  fake::Run run;
  run_case(&run, c);
  if (memcmp(run.result<int64_t>(1), overflow.data(), overflow.size() * sizeof(int64_t)) != 0) fail(c, "overflow differs");
  return largest_difference(run, c, attended, kTolerance);
}

void refusals() {
  refuse("rounds is -1, expected 0 to", make_case(), [](Case* c) { c->rounds = -1; });
  refuse("rounds is", make_case(), [](Case* c) { c->rounds = c->R + 1; });
  refuse("window is 0, expected at least 1", make_case(), [](Case* c) { c->window = 0; });
  refuse("position is -1, expected 0 to", make_case(), [](Case* c) { c->position[0] = -1; });
  refuse("position is", make_case(), [](Case* c) { c->position[0] = INT64_MAX; });
  refuse("key has 3 axes, expected 4", make_case(), [](const Case& c, fake::Run* run) { run->reshape(0, {c.B, c.H, c.C * c.d}); });
  refuse("axis 2 of LSH", make_case(), [](const Case& c, fake::Run* run) { run->reshape(1, {c.B, c.H, c.C + 1, c.d}); });
  refuse("buckets is", make_case(), [](const Case& c, fake::Run* run) { run->reshape(2, {c.B, c.H, c.R, c.C + 1}); });
  refuse("axis 2 of LSH", make_case(), [](const Case& c, fake::Run* run) { run->reshape(3, {c.B, c.H, c.S + 1}); });
  refuse("queries, expected at most", make_case(), [](const Case& c, fake::Run* run) {
    run->reshape(4, {c.B, c.H, c.C + 1, c.d});
    run->reshape(3, {c.B, c.H, c.C + 1});
  });
  refuse("position is", make_case(), [](const Case& c, fake::Run* run) { run->reshape(5, {c.B + 1}); });
  refuse("offset is 2, expected 1", make_case(), [](const Case&, fake::Run* run) { run->reshape(6, {2}); });
}

void empty_sizes() {
  for (int empty = 0; empty < 6; ++empty) {
    Case c = make_case();
    int64_t* const sizes[] = {&c.B, &c.H, &c.R, &c.S, &c.d, &c.C};
    *sizes[empty] = 0;
    if (c.C == 0) c.S = 0;
    if (c.S == 0 && c.C == 0) c.C = 0;
    c.rounds = 0;
    c.position.resize(static_cast<size_t>(c.B));
    c.key.resize(static_cast<size_t>(c.B * c.H * c.C * c.d));
    c.value.resize(c.key.size());
    c.length.resize(static_cast<size_t>(c.B * c.H * c.S));
    c.buckets.resize(static_cast<size_t>(c.B * c.H * c.R * c.C));
    fake::Run run;
    run_case(&run, c);
    if (run.shape(0) != std::vector<int64_t>{c.B, c.H, c.S, c.d}) fail(c, "shape of the result");
    if (run.shape(1) != std::vector<int64_t>{c.B, c.S}) fail(c, "shape of the overflow");
  }
}

}  // namespace

int main(int count, char** arguments) {
  refusals();
  empty_sizes();
  return compare_shapes(count, arguments, [](long shape) {
    if (shape % 4 == 0) check_sort();
    if (shape % 4 == 1) check_gather();
    const double largest = shape % 4 == 2 ? check_band() : shape % 4 == 3 ? check_chunk() : 0;
    return std::fmax(largest, compare(make_case()));
  });
}
