// Compare RelativeAttention with a plain reference in double precision on random shapes.
//
// relative_attention [shapes] [seed]: prints the instruction set, the number of shapes and the largest difference.
#include "../ops/relative_attention.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>

#include "../ops/level.h"
#include "../ops/relative_attention_plan.h"
#include "fake_ort.h"

namespace {

constexpr double kTolerance = 2e-5;  // of results, which are averages of values of about 1

struct Case {
  int64_t B, H, S, C, d, near, offset, window;
  std::vector<int64_t> length;
  std::vector<float> qkv, content_bias, position_bias, key, value, position_key;
  bool in_place;
};

std::mt19937_64 random_bits;

int64_t whole(int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random_bits() % static_cast<uint64_t>(most - least + 1));
}
bool coin(double chance) { return std::uniform_real_distribution<>()(random_bits) < chance; }
int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }

std::vector<float> numbers(int64_t count, float deviation) {
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> made(static_cast<size_t>(count));
  for (float& number : made) number = normal(random_bits);
  return made;
}

// Return a size that is often small, sometimes large.
int64_t size_up_to(int64_t most) { return coin(0.7) ? whole(1, at_most(most, 24)) : whole(1, most); }

Case make_case() {
  Case made;
  made.B = whole(1, 3);
  made.H = whole(1, 3);
  made.S = size_up_to(300);
  made.d = coin(0.5) ? size_up_to(128) : int64_t{1} << whole(0, 7);
  made.C = made.S + (coin(0.1) ? 0 : size_up_to(900));
  made.near = coin(0.3) ? made.C : coin(0.1) ? made.C + 3 : coin(0.1) ? 0 : whole(1, made.C);
  made.offset = coin(0.2) ? 0 : whole(0, made.C - 1);
  made.window = coin(0.3) ? int64_t{1} << 62 : coin(0.2) ? 1 : whole(1, made.C + 3);
  for (int64_t b = 0; b < made.B; ++b) {
    made.length.push_back(coin(0.2) ? 0 : coin(0.3) ? made.C - made.S : whole(0, made.C + 2));
  }
  made.in_place = coin(0.5);
  const float deviation = coin(0.1) ? 3.0f : 1.0f;  // large scores: weights of one key only
  const int64_t rows = made.B * made.H * made.C * made.d;
  made.qkv = numbers(made.B * made.S * 3 * made.H * made.d, deviation / std::sqrt(static_cast<float>(made.d)));
  for (int64_t i = 0; i < made.B * made.S; ++i) {  // the step's keys and values are as large as those of the rings
    for (int64_t k = made.H * made.d; k < 3 * made.H * made.d; ++k) {
      made.qkv[static_cast<size_t>(i * 3 * made.H * made.d + k)] *= std::sqrt(static_cast<float>(made.d)) / deviation;
    }
  }
  made.content_bias = numbers(made.H * made.d, 1 / std::sqrt(static_cast<float>(made.d)));
  made.position_bias = numbers(made.H * made.d, 1 / std::sqrt(static_cast<float>(made.d)));
  made.key = numbers(rows, 1);
  made.value = numbers(rows, 1);
  made.position_key = numbers(made.H * made.d * (1 + made.near), 1);
  for (int64_t k = 0; k < made.H * made.d; ++k) made.position_key[static_cast<size_t>(k * (1 + made.near))] = 0;
  return made;
}

// Compute what the operator returns: attended, and both rings.
void reference(const Case& c, std::vector<double>* attended, std::vector<float>* key, std::vector<float>* value) {
  const int64_t B = c.B, H = c.H, S = c.S, C = c.C, d = c.d, wide = 1 + c.near;
  auto part = [&](int64_t b, int64_t i, int64_t which, int64_t h) {
    return c.qkv.data() + (((b * S + i) * 3 + which) * H + h) * d;
  };
  *key = c.key;
  *value = c.value;
  attended->assign(static_cast<size_t>(B * S * H * d), 0);
  std::vector<double> score(static_cast<size_t>(C));
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t h = 0; h < H; ++h) {
      float* const keys = key->data() + (b * H + h) * C * d;
      float* const values = value->data() + (b * H + h) * C * d;
      for (int64_t i = 0; i < S; ++i) {
        const int64_t slot = (c.offset + i) % C;
        for (int64_t k = 0; k < d; ++k) keys[slot * d + k] = part(b, i, 1, h)[k];
        for (int64_t k = 0; k < d; ++k) values[slot * d + k] = part(b, i, 2, h)[k];
      }
      for (int64_t i = 0; i < S; ++i) {
        const float* const query = part(b, i, 0, h);
        double most = -INFINITY, sum = 0;
        for (int64_t age = 0; age < C; ++age) {
          const int64_t distance = C - S + i - age, slot = (c.offset + S + age) % C;
          const bool seen = distance >= 0 && distance <= at_most(c.length[static_cast<size_t>(b)] + i, c.window - 1);
          double& own = score[static_cast<size_t>(age)];
          own = -INFINITY;
          if (!seen) continue;
          own = 0;
          for (int64_t k = 0; k < d; ++k) {
            own += (double{query[k]} + c.content_bias[static_cast<size_t>(h * d + k)]) * keys[slot * d + k];
            if (distance >= c.near) continue;
            own += (double{query[k]} + c.position_bias[static_cast<size_t>(h * d + k)]) *
                   c.position_key[static_cast<size_t>((h * d + k) * wide + c.near - distance)];
          }
          most = own > most ? own : most;
        }
        for (int64_t age = 0; age < C; ++age) sum += std::exp(score[static_cast<size_t>(age)] - most);
        double* const result = attended->data() + ((b * S + i) * H + h) * d;
        for (int64_t age = 0; age < C; ++age) {
          const double weight = std::exp(score[static_cast<size_t>(age)] - most) / sum;
          if (weight == 0) continue;
          for (int64_t k = 0; k < d; ++k) result[k] += weight * values[(c.offset + S + age) % C * d + k];
        }
      }
    }
  }
}

void fill(fake::Run* run, const Case& c) {
  run->input({c.B, c.S, 3 * c.H * c.d}, c.qkv);
  run->input({c.H, 1, c.d}, c.content_bias);
  run->input({c.H, 1, c.d}, c.position_bias);
  run->input({c.B, c.H, c.C, c.d}, c.key);
  run->input({c.B, c.H, c.C, c.d}, c.value);
  run->input({c.H, c.d, 1 + c.near}, c.position_key);
  run->input({1}, std::vector<int64_t>{c.offset});
  run->input({c.B}, c.length);
  run->input({1}, std::vector<int64_t>{c.window});
  run->output(sizeof(float));
  run->output(sizeof(float), c.in_place ? 3 : -1);
  run->output(sizeof(float), c.in_place ? 4 : -1);
  run->threads(2);
}

[[noreturn]] void fail(const Case& c, const std::string& what) {
  std::printf("%s: B %lld, H %lld, S %lld, C %lld, d %lld, near %lld, offset %lld, window %lld, length %lld, in place %d\n",
              what.c_str(), static_cast<long long>(c.B), static_cast<long long>(c.H), static_cast<long long>(c.S),
              static_cast<long long>(c.C), static_cast<long long>(c.d), static_cast<long long>(c.near),
              static_cast<long long>(c.offset), static_cast<long long>(c.window), static_cast<long long>(c.length.empty() ? -1 : c.length[0]),
              c.in_place);
  std::exit(1);
}

double compare(const Case& c) {
  fake::Run run;
  fill(&run, c);
  const std::string error = run(xlexport::RelativeAttention{});
  if (!error.empty()) fail(c, error);
  std::vector<double> attended;
  std::vector<float> key, value;
  reference(c, &attended, &key, &value);
  double largest = 0;
  for (size_t k = 0; k < attended.size(); ++k) {
    const double difference = std::abs(attended[k] - run.result<float>(0)[k]);
    if (!(difference <= kTolerance)) fail(c, "difference " + std::to_string(difference));
    largest = difference > largest ? difference : largest;
  }
  if (memcmp(key.data(), run.result<float>(1), key.size() * sizeof(float)) != 0) fail(c, "keys differ");
  if (memcmp(value.data(), run.result<float>(2), value.size() * sizeof(float)) != 0) fail(c, "values differ");
  return largest;
}

// Run with inputs that do not agree, and expect an error.
void refuse(const char* expected, void (*change)(Case*), void (*reshape)(const Case&, fake::Run*) = nullptr) {
  Case c = make_case();
  if (change != nullptr) change(&c);
  fake::Run run;
  fill(&run, c);
  if (reshape != nullptr) reshape(c, &run);
  const std::string error = run(xlexport::RelativeAttention{});
  if (error.find(expected) == std::string::npos) fail(c, std::string(expected) + " expected, found: " + error);
}

void refusals() {
  refuse("offset is -1, expected 0 to", [](Case* c) { c->offset = -1; });
  refuse("expected 0 to", [](Case* c) { c->offset = c->C; });
  refuse("window is 0, expected at least 1", [](Case* c) { c->window = 0; });
  refuse("memory_length[0] is -1, expected at least 0", [](Case* c) { c->length[0] = -1; });
  refuse("slots of memory_key", [](Case* c) {
    c->C = c->S - 1;
    c->offset = 0;
  });
  auto refuse_shape = [](const char* expected, void (*reshape)(const Case&, fake::Run*)) {
    refuse(expected, nullptr, reshape);
  };
  refuse_shape("qkv has 4 axes, expected 3", [](const Case& c, fake::Run* run) { run->reshape(0, {c.B, c.S, 3, c.H * c.d}); });
  refuse_shape("axis 2 of qkv is", [](const Case& c, fake::Run* run) { run->reshape(0, {c.B, c.S, c.H * c.d}); });
  refuse_shape("axis 0 of content_bias is", [](const Case& c, fake::Run* run) { run->reshape(1, {c.H + 1, 1, c.d}); });
  refuse_shape("axis 1 of position_bias is 0", [](const Case& c, fake::Run* run) { run->reshape(2, {c.H, 0, c.d}); });
  refuse_shape("axis 2 of memory_value is", [](const Case& c, fake::Run* run) { run->reshape(4, {c.B, c.H, c.C + 1, c.d}); });
  refuse_shape("axis 2 of position_key is 0", [](const Case& c, fake::Run* run) { run->reshape(5, {c.H, c.d, 0}); });
  refuse_shape("axis 0 of offset is 2", [](const Case&, fake::Run* run) { run->reshape(6, {2}); });
  refuse_shape("axis 0 of memory_length is", [](const Case& c, fake::Run* run) { run->reshape(7, {c.B + 1}); });
  refuse_shape("window has 0 axes", [](const Case&, fake::Run* run) { run->reshape(8, {}); });
}

// Sizes of zero work: nothing to attend, or nothing to write.
void empty_sizes() {
  for (int empty = 0; empty < 5; ++empty) {
    Case c = make_case();
    int64_t* const sizes[] = {&c.B, &c.H, &c.S, &c.d, &c.C};
    *sizes[empty] = 0;
    if (c.C == 0) c.S = c.offset = 0;
    c.length.resize(static_cast<size_t>(c.B));
    c.in_place = false;
    fake::Run run;
    fill(&run, c);
    const std::string error = run(xlexport::RelativeAttention{});
    if (!error.empty()) fail(c, error);
    if (run.shape(0) != std::vector<int64_t>{c.B, c.S, c.H * c.d}) fail(c, "shape of the result");
    const size_t rows = static_cast<size_t>(c.B * c.H * c.C * c.d);
    if (memcmp(c.key.data(), run.result<float>(1), rows * sizeof(float)) != 0) fail(c, "keys differ");
  }
}

void plan() {
  fake::Run run;
  for (size_t size : {8u, 4u, 4u, 4u, 8u}) run.output(size);
  const std::string error = run(xlexport::RelativeAttentionPlan{});
  for (size_t index = 0; index < 5; ++index) {
    if (!error.empty() || run.shape(index) != std::vector<int64_t>{0}) fail(make_case(), "the plan is not empty");
  }
}

}  // namespace

int main(int count, char** arguments) {
  const long shapes = count > 1 ? std::atol(arguments[1]) : 2000;
  random_bits.seed(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1);
  refusals();
  empty_sizes();
  plan();
  double largest = 0;
  for (long shape = 0; shape < shapes; ++shape) largest = std::fmax(largest, compare(make_case()));
  std::printf("%s: %ld shapes, largest difference %.2g\n", xlexport::level().name, shapes, largest);
  return 0;
}
