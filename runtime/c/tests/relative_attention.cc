// Compare RelativeAttention and RelativeAttentionInt8 with a plain reference in double precision on random shapes.
//
// relative_attention [shapes] [seed]: prints the instruction set, the number of shapes and the largest difference.
#include "kernel_test.h"

namespace {

constexpr double kTolerance = 2e-5;  // of results, which are averages of values of about 1
constexpr double kBlockTolerance = 1e-3;  // blocks of queries in 8 bits also round weights to 15 bits

struct Case {
  int64_t B, H, S, C, d, near, offset, window;
  std::vector<int64_t> length;
  std::vector<float> qkv, content_bias, position_bias, key, value, position_key;
  bool in_place;
};

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
  if (coin(0.1)) spoil(&made.key);
  if (coin(0.1)) made.qkv[static_cast<size_t>(whole(0, 2 * made.H * made.d - 1))] = NAN;  // of a query or a key
  if (coin(0.1)) spoil(&made.position_key);
  for (int64_t k = 0; k < made.H * made.d; ++k) made.position_key[static_cast<size_t>(k * (1 + made.near))] = 0;
  return made;
}

// Compute what the operator returns: attended, and both rings. `change` is called with each query and its content bias.
template <typename Change>
void reference(const Case& c, std::vector<double>* attended, std::vector<float>* key, std::vector<float>* value,
               Change change) {
  const int64_t B = c.B, H = c.H, S = c.S, C = c.C, d = c.d, wide = 1 + c.near;
  auto part = [&](int64_t b, int64_t i, int64_t which, int64_t h) {
    return c.qkv.data() + (((b * S + i) * 3 + which) * H + h) * d;
  };
  *key = c.key;
  *value = c.value;
  attended->assign(static_cast<size_t>(B * S * H * d), 0);
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
        const float* const given = part(b, i, 0, h);
        auto biased = [&](const std::vector<float>& bias) {
          std::vector<float> sum(given, given + d);
          for (int64_t k = 0; k < d; ++k) sum[static_cast<size_t>(k)] += bias[static_cast<size_t>(h * d + k)];
          return sum;
        };
        std::vector<float> content = biased(c.content_bias);
        const std::vector<float> rotated = biased(c.position_bias);
        change(&content);
        Attended attending;
        for (int64_t age = 0; age < C; ++age) {
          const int64_t distance = C - S + i - age, slot = (c.offset + S + age) % C;
          if (distance < 0 || distance > std::min(c.length[static_cast<size_t>(b)] + i, c.window - 1)) continue;
          double score = dot(content.data(), keys + slot * d, d);
          for (int64_t k = 0; k < d && distance < c.near; ++k) {
            score += double{rotated[static_cast<size_t>(k)]} *
                     c.position_key[static_cast<size_t>((h * d + k) * wide + c.near - distance)];
          }
          attending.add(score, values + slot * d);
        }
        attending.write_mean(d, attended->data() + ((b * S + i) * H + h) * d);
      }
    }
  }
}

[[noreturn]] void fail(const Case& c, const std::string& what) {
  ::fail(what, {{"B", c.B}, {"H", c.H}, {"S", c.S}, {"C", c.C}, {"d", c.d}, {"near", c.near}, {"offset", c.offset},
              {"window", c.window}, {"length", c.length.empty() ? -1 : c.length[0]}, {"in place", c.in_place}});
}

// Rows of 8-bit numbers with a scale each.
struct Rounded {
  std::vector<int8_t> rows;
  std::vector<float> scale;
};

// Round rows of d numbers, and replace them by what they now are. NaN makes the scale NaN, and so the row.
Rounded rounded(std::vector<float>* rows, int64_t d) {
  Rounded made;
  for (float* row = rows->data(); row != rows->data() + rows->size(); row += d) {
    float largest = 0, nothing = 0;
    for (int64_t k = 0; k < d; ++k) largest = std::fmax(largest, std::fabs(row[k])), nothing += 0 * row[k];
    const float scale = (largest > 0 ? largest / 127 : 1) + nothing;
    made.scale.push_back(scale);
    for (int64_t k = 0; k < d; ++k) {
      made.rows.push_back(std::isnan(scale) ? int8_t{0} : static_cast<int8_t>(std::nearbyint(row[k] / scale)));
      row[k] = made.rows.back() * scale;
    }
  }
  return made;
}

// Replace the step's keys and values by what they are in 8 bits.
void round_step(Case* c) {
  const int64_t heads = c->H;
  for (int64_t i = 0; i < c->B * c->S; ++i) {
    for (int64_t part = heads; part < 3 * heads; ++part) {
      float* const row = c->qkv.data() + (i * 3 * heads + part) * c->d;
      std::vector<float> own(row, row + c->d);
      rounded(&own, c->d);
      std::copy(own.begin(), own.end(), row);
    }
  }
}

// Round a query to 7 bits, in the arithmetic of the kernel.
void round_query(std::vector<float>* query) {
  constexpr float kStep = 1.0f / 63;
  float largest = 1e-30f;
  for (float number : *query) largest = std::fmax(largest, std::fabs(number));
  for (float& number : *query) number = std::nearbyint(number / largest / kStep) * (largest * kStep);
}

// Give the inputs; `rounded` are both rings in 8 bits, or null.
void give(fake::Run* run, const Case& c, const Rounded* rounded = nullptr) {
  run->input({c.B, c.S, 3 * c.H * c.d}, c.qkv);
  run->input({c.H, 1, c.d}, c.content_bias);
  run->input({c.H, 1, c.d}, c.position_bias);
  const std::vector<int64_t> shape = {c.B, c.H, c.C, c.d};
  for (int ring = 0; ring < 2; ++ring) {
    if (rounded == nullptr) {
      run->input(shape, ring == 0 ? c.key : c.value);
    } else {
      run->input(shape, rounded[ring].rows);
      run->input({c.B, c.H, c.C}, rounded[ring].scale);
    }
  }
  run->input({c.H, c.d, 1 + c.near}, c.position_key);
  run->input({1}, std::vector<int64_t>{c.offset});
  run->input({c.B}, c.length);
  run->input({1}, std::vector<int64_t>{c.window});
  run->output(sizeof(float));
  for (int input = 3; input < (rounded == nullptr ? 5 : 7); ++input) {
    run->output(rounded != nullptr && input % 2 == 1 ? sizeof(int8_t) : sizeof(float), c.in_place ? input : -1);
  }
  run->threads(2);
}

xlexport::RelativeAttention kernel_of(const Case&) { return {}; }

double compare(const Case& c) {
  fake::Run run;
  run_case(&run, c);
  std::vector<double> attended;
  std::vector<float> key, value;
  reference(c, &attended, &key, &value, [](std::vector<float>*) {});
  if (memcmp(key.data(), run.result<float>(1), key.size() * sizeof(float)) != 0) fail(c, "keys differ");
  if (memcmp(value.data(), run.result<float>(2), value.size() * sizeof(float)) != 0) fail(c, "values differ");
  return largest_difference(run, c, attended, kTolerance);
}

// Run the kernel on rings in 8 bits; the rings of the case become what they are in 8 bits.
void run_int8(fake::Run* run, Case* c) {
  const Rounded rings[] = {rounded(&c->key, c->d), rounded(&c->value, c->d)};
  give(run, *c, rings);
  const std::string error = (*run)(xlexport::RelativeAttentionInt8{});
  if (!error.empty()) fail(*c, error);
}

double compare_int8(Case c) {
  fake::Run run;
  run_int8(&run, &c);
  const bool few = c.S <= xlexport::kFewQueries;
  round_step(&c);
  std::vector<double> attended;
  std::vector<float> key, value;
  reference(c, &attended, &key, &value, round_query);
  for (size_t ring = 0; ring < 2; ++ring) {
    const std::vector<float>& expected = ring == 0 ? key : value;
    const int8_t* const rows = run.result<int8_t>(1 + 2 * ring);
    const float* const scale = run.result<float>(2 + 2 * ring);
    for (size_t k = 0; k < expected.size(); ++k) {
      const float found = rows[k] * scale[k / static_cast<size_t>(c.d)];
      if (found != expected[k] && !(std::isnan(found) && std::isnan(expected[k]))) {
        fail(c, ring == 0 ? "keys differ" : "values differ");
      }
    }
  }
  return largest_difference(run, c, attended, few ? kTolerance : kBlockTolerance);
}

// Run both kernels with scores of some hundreds, so that most weights are far below the largest. No number may be subnormal.
void wide_scores() {
  Case c = make_case();
  for (float& number : c.position_key) number *= 30;
  // Of a value that is 0 in 8 bits, small weights of other keys would remain, and become smaller with each larger score.
  for (float& number : c.value) number = 2 + number / 8;
  for (size_t k = 0; k < c.qkv.size(); ++k) {
    if (k / static_cast<size_t>(c.H * c.d) % 3 == 2) c.qkv[k] = 2 + c.qkv[k] / 8;
  }
  fake::Run run, run8;
  run_case(&run, c);
  run_int8(&run8, &c);
}

void refusals() {
  refuse("offset is -1, expected 0 to", make_case(), [](Case* c) { c->offset = -1; });
  refuse("expected 0 to", make_case(), [](Case* c) { c->offset = c->C; });
  refuse("window is 0, expected at least 1", make_case(), [](Case* c) { c->window = 0; });
  refuse("memory_length is -1, expected at least 0", make_case(), [](Case* c) { c->length[0] = -1; });
  refuse("slots of memory_key", make_case(), [](Case* c) {
    c->C = c->S - 1;
    c->offset = 0;
  });
  refuse("qkv has 4 axes, expected 3", make_case(), [](const Case& c, fake::Run* run) { run->reshape(0, {c.B, c.S, 3, c.H * c.d}); });
  refuse("axis 2 of qkv is", make_case(), [](const Case& c, fake::Run* run) { run->reshape(0, {c.B, c.S, c.H * c.d}); });
  refuse("axis 0 of content_bias is", make_case(), [](const Case& c, fake::Run* run) { run->reshape(1, {c.H + 1, 1, c.d}); });
  refuse("axis 1 of position_bias is 0", make_case(), [](const Case& c, fake::Run* run) { run->reshape(2, {c.H, 0, c.d}); });
  refuse("axis 2 of memory_value is", make_case(), [](const Case& c, fake::Run* run) { run->reshape(4, {c.B, c.H, c.C + 1, c.d}); });
  refuse("axis 2 of position_key is 0", make_case(), [](const Case& c, fake::Run* run) { run->reshape(5, {c.H, c.d, 0}); });
  refuse("axis 0 of offset is 2", make_case(), [](const Case&, fake::Run* run) { run->reshape(6, {2}); });
  refuse("axis 0 of memory_length is", make_case(), [](const Case& c, fake::Run* run) { run->reshape(7, {c.B + 1}); });
  refuse("window has 0 axes", make_case(), [](const Case&, fake::Run* run) { run->reshape(8, {}); });
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
    run_case(&run, c);
    if (run.shape(0) != std::vector<int64_t>{c.B, c.S, c.H * c.d}) fail(c, "shape of the result");
    const size_t rows = static_cast<size_t>(c.B * c.H * c.C * c.d);
    if (memcmp(c.key.data(), run.result<float>(1), rows * sizeof(float)) != 0) fail(c, "keys differ");
  }
}

}  // namespace

int main(int count, char** arguments) {
  refusals();
  empty_sizes();
  return compare_shapes(count, arguments, [](long) {
    wide_scores();
    const Case c = make_case();
    return std::fmax(compare(c), compare_int8(c));
  });
}
