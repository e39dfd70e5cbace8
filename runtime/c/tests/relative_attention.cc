// Compare RelativeAttention with a plain reference in double precision on random shapes.
//
// relative_attention [shapes] [seed]: prints the instruction set, the number of shapes and the largest difference.
#include "relative_attention_case.h"

static xlexport::RelativeAttention kernel_of(const Case&) { return {}; }

static void give(fake::Run* run, const Case& c) {
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

namespace {

constexpr double kTolerance = 2e-5;  // of results, which are averages of values of about 1

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
  return compare_shapes(count, arguments, [](long) { return compare(make_case()); });
}
