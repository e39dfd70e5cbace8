// Compare LocalAttention with a plain reference in double precision on random shapes.
//
// local_attention [shapes] [seed]: prints the instruction set, the number of shapes and the largest difference.
#include "kernel_test.h"

namespace {

constexpr double kTolerance = 6e-5;  // of averages of values of about 1, by scores of up to 100

struct Case {
  int64_t B, H, S, d, kept, chunk_length, chunks_before;
  std::vector<int64_t> position;
  std::vector<float> query, key, value;

  void fill() {
    query = numbers(B * H * S * d, coin(0.1) ? 30.0f : 2.0f);  // large scores: weights of one key only
    key = numbers(B * H * (kept + S) * d, 1);
    value = numbers(B * H * (kept + S) * d, 1);
    for (float& number : key) number /= std::sqrt(static_cast<float>(d));
    if (coin(0.1)) spoil(&key);
  }
};

Case make_case() {
  Case made;
  made.B = whole(1, 3);
  made.H = whole(1, 3);
  made.S = size_up_to(300);
  made.d = coin(0.5) ? size_up_to(100) : int64_t{1} << whole(0, 6);
  made.chunk_length = coin(0.1) ? 1 : size_up_to(200);
  made.chunks_before = whole(0, 3);
  const int64_t rows = (made.chunks_before + 1) * made.chunk_length;
  made.kept = coin(0.2) ? 0 : coin(0.2) ? whole(0, rows + 5) : rows;
  for (int64_t b = 0; b < made.B; ++b) {
    made.position.push_back(coin(0.2) ? 0 : coin(0.1) ? INT64_MAX / 2 - 7 : whole(0, 3 * rows));
  }
  made.fill();
  return made;
}

[[noreturn]] void fail(const Case& c, const std::string& what) {
  ::fail(what, {{"B", c.B}, {"H", c.H}, {"S", c.S}, {"d", c.d}, {"kept", c.kept}, {"chunks", c.chunk_length},
              {"before", c.chunks_before}});
}

std::vector<double> reference(const Case& c) {
  std::vector<double> attended(c.query.size());
  for (int64_t head = 0; head < c.B * c.H; ++head) {
    const int64_t position = c.position[static_cast<size_t>(head / c.H)];
    for (int64_t i = 0; i < c.S; ++i) {
      const int64_t oldest = std::max<int64_t>((position + i) / c.chunk_length - c.chunks_before, 0) * c.chunk_length;
      const int64_t place = (head * c.S + i) * c.d;
      Attended seen;
      for (int64_t j = std::max(oldest - position, -c.kept); j <= i; ++j) {  // counted from the first query
        const int64_t row = (head * (c.kept + c.S) + c.kept + j) * c.d;
        seen.add(dot(c.query.data() + place, c.key.data() + row, c.d), c.value.data() + row);
      }
      seen.write_mean(c.d, attended.data() + place);
    }
  }
  return attended;
}

void give(fake::Run* run, const Case& c) {
  run->input<float>({c.B, c.H, c.S, c.d}, c.query);
  run->input<float>({c.B, c.H, c.kept + c.S, c.d}, c.key);
  run->input<float>({c.B, c.H, c.kept + c.S, c.d}, c.value);
  run->input<int64_t>({c.B}, c.position);
  run->output(sizeof(float));
  run->threads(static_cast<int>(whole(1, 3)));
}

xlexport::LocalAttention kernel_of(const Case& c) { return {c.chunk_length, c.chunks_before}; }

double compare(const Case& c) {
  fake::Run run;
  run_case(&run, c);
  return largest_difference(run, c, reference(c), kTolerance);
}

void refusals() {
  refuse("query has 3 axes, expected 4", make_case(), [](const Case& c, fake::Run* run) { run->reshape(0, {c.B, c.H, c.S * c.d}); });
  refuse("axis 1 of LocalAttention: key is", make_case(), [](const Case& c, fake::Run* run) { run->reshape(1, {c.B, c.H + 1, c.kept + c.S, c.d}); });
  refuse("axis 3 of LocalAttention: key is", make_case(), [](const Case& c, fake::Run* run) { run->reshape(1, {c.B, c.H, c.kept + c.S, c.d + 1}); });
  refuse("axis 2 of LocalAttention: value is", make_case(), [](const Case& c, fake::Run* run) { run->reshape(2, {c.B, c.H, c.kept + c.S + 1, c.d}); });
  refuse("axis 0 of LocalAttention: position is", make_case(), [](const Case& c, fake::Run* run) { run->reshape(3, {c.B + 1}); });
  refuse("rows, expected at least the", make_case(), [](const Case& c, fake::Run* run) {
    run->reshape(1, {c.B, c.H, c.S - 1, c.d});
    run->reshape(2, {c.B, c.H, c.S - 1, c.d});
  });
  for (int64_t wrong : {int64_t{-1}, INT64_MIN, INT64_MAX}) {
    refuse("position is", make_case(), [wrong](Case* c) { c->position.back() = wrong; });
  }
}

void empty_sizes() {
  for (int empty = 0; empty < 4; ++empty) {
    Case c = make_case();
    int64_t* const sizes[] = {&c.B, &c.H, &c.S, &c.d};
    *sizes[empty] = 0;
    c.position.resize(static_cast<size_t>(c.B));
    c.fill();
    fake::Run run;
    run_case(&run, c);
    if (run.shape(0) != std::vector<int64_t>{c.B, c.H, c.S, c.d}) fail(c, "shape of the result");
  }
}

}  // namespace

int main(int count, char** arguments) {
  refusals();
  empty_sizes();
  return compare_shapes(count, arguments, [](long) { return compare(make_case()); });
}
