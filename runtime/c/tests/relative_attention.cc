// Compare RelativeAttention with a plain reference in double precision on random shapes.
//
// relative_attention [shapes] [seed]: prints the instruction set, the number of shapes and the largest difference.
#include "../kernels/relative_attention.h"

#include <cstring>

#include "../kernels/level.h"
#include "fake_ort.h"
#include "relative_attention_case.h"

namespace {

constexpr double kTolerance = 2e-5;  // of results, which are averages of values of about 1

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

double compare(const Case& c) {
  fake::Run run;
  fill(&run, c);
  const std::string error = run(xlexport::RelativeAttention{});
  if (!error.empty()) fail(c, error);
  std::vector<double> attended;
  std::vector<float> key, value;
  reference(c, &attended, &key, &value, [](std::vector<float>*) {});
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

}  // namespace

int main(int count, char** arguments) {
  const long shapes = count > 1 ? std::atol(arguments[1]) : 2000;
  random_bits.seed(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1);
  refusals();
  empty_sizes();
  double largest = 0;
  for (long shape = 0; shape < shapes; ++shape) largest = std::fmax(largest, compare(make_case()));
  std::printf("%s: %ld shapes, largest difference %.2g\n", xlexport::level().name, shapes, largest);
  return 0;
}
