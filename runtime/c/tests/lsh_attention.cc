// Compare LSHAttention with the definition of rule `band`, in double precision on random shapes.
//
// lsh_attention [shapes] [seed]: prints the instruction set, the number of shapes and the largest difference.
#include "kernel_test.h"

namespace {

constexpr double kTolerance = 6e-5;  // of averages of values of about 1, by scores of up to 100

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
  return compare_shapes(count, arguments, [](long) { return compare(make_case()); });
}
