// Compare RelativeAttentionInt8 with a plain reference in double precision on random shapes.
//
// relative_attention_int8 [shapes] [seed]: prints the instruction set, the number of shapes and the largest difference.
#include "relative_attention_case.h"

namespace {

constexpr double kTolerance = 2e-5;       // few queries: only rows and queries are rounded, as in the reference
constexpr double kBlockTolerance = 1e-3;  // blocks of queries also round weights to 15 bits

// Rows of 8-bit numbers with a scale each.
struct Rounded {
  std::vector<int8_t> rows;
  std::vector<float> scale;
};

// Round rows of d numbers, and replace them by what they now are.
Rounded rounded(std::vector<float>* rows, int64_t d) {
  Rounded made;
  for (float* row = rows->data(); row != rows->data() + rows->size(); row += d) {
    float largest = 0;
    for (int64_t k = 0; k < d; ++k) largest = std::fmax(largest, std::fabs(row[k]));
    const float scale = largest > 0 ? largest / 127 : 1;
    made.scale.push_back(scale);
    for (int64_t k = 0; k < d; ++k) {
      made.rows.push_back(static_cast<int8_t>(std::nearbyint(row[k] / scale)));
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

// Return the largest difference.
double compare(Case c) {
  fake::Run run;
  run.input({c.B, c.S, 3 * c.H * c.d}, c.qkv);
  run.input({c.H, 1, c.d}, c.content_bias);
  run.input({c.H, 1, c.d}, c.position_bias);
  for (std::vector<float>* ring : {&c.key, &c.value}) {
    const Rounded made = rounded(ring, c.d);
    run.input({c.B, c.H, c.C, c.d}, made.rows);
    run.input({c.B, c.H, c.C}, made.scale);
  }
  run.input({c.H, c.d, 1 + c.near}, c.position_key);
  run.input({1}, std::vector<int64_t>{c.offset});
  run.input({c.B}, c.length);
  run.input({1}, std::vector<int64_t>{c.window});
  run.output(sizeof(float));
  for (int ring = 3; ring < 7; ++ring) run.output(ring % 2 == 1 ? sizeof(int8_t) : sizeof(float), c.in_place ? ring : -1);
  run.threads(2);
  const std::string error = run(xlexport::RelativeAttentionInt8{});
  if (!error.empty()) fail(c, error);

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
      if (rows[k] * scale[k / static_cast<size_t>(c.d)] != expected[k]) fail(c, ring == 0 ? "keys differ" : "values differ");
    }
  }
  return largest_difference(run, c, attended, few ? kTolerance : kBlockTolerance);
}

}  // namespace

int main(int count, char** arguments) {
  return compare_shapes(count, arguments, [](long) { return compare(make_case()); });
}
