// Measure RelativeAttention on one thread: billions of multiplications and additions a second, for keys that queries see.
//
// relative_attention_speed [seconds a shape] [number of a shape]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../kernels/level.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Shape {
  int64_t S, memory, near, d;
};

std::vector<float> numbers(int64_t count) {
  std::vector<float> made(static_cast<size_t>(count));
  for (size_t k = 0; k < made.size(); ++k) made[k] = static_cast<float>(k * 2654435761u % 1000) * 1e-3f - 0.5f;
  return made;
}

void measure(const Shape& shape, double seconds, bool int8) {
  const int64_t H = 8, S = shape.S, C = shape.memory + S, d = shape.d, near = shape.near == 0 ? C : shape.near + S;
  const int64_t layers = S <= xlexport::kFewQueries ? 12 : 1;  // the rings of a model do not fit into a cache
  const auto qkv = numbers(S * 3 * H * d), bias = numbers(H * d), key = numbers(layers * H * C * d),
             value = numbers(layers * H * C * d), position_key = numbers(layers * H * d * (1 + near));
  std::vector<float> attended(static_cast<size_t>(S * H * d));
  const int64_t length = shape.memory;
  xlexport::AttentionStep step = {};
  step.B = step.parts = 1;
  step.H = H;
  step.S = S;
  step.C = C;
  step.d = d;
  step.near = near;
  step.offset = C / 3;
  step.window = int64_t{1} << 62;
  step.memory_length = &length;
  step.qkv = qkv.data();
  step.content_bias = step.position_bias = bias.data();
  step.attended = attended.data();
  const auto& loops = int8 ? xlexport::level().int8_attention.loops : xlexport::level().attention;
  const std::vector<int8_t> key8(int8 ? key.size() : 0, 3), value8(int8 ? key.size() : 0, 5);
  const std::vector<float> scale(static_cast<size_t>(layers * H * C), 0.01f);
  step.key_scale = step.value_scale = scale.data();
  const bool few = S <= xlexport::kFewQueries;
  std::vector<float> memory(static_cast<size_t>((few ? loops.few_scratch : loops.block_scratch)(step) + 16));
  float* const scratch = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
  const int64_t tasks = few ? H : H * xlexport::attention_blocks(S);
  double best = 1e9, spent = 0;
  while (spent < seconds) {
    const auto begin = Clock::now();
    for (int64_t layer = 0; layer < layers; ++layer) {
      step.key = key.data() + layer * H * C * d;
      step.value = value.data() + layer * H * C * d;
      step.key8 = key8.data() + (int8 ? layer * H * C * d : 0);
      step.value8 = value8.data() + (int8 ? layer * H * C * d : 0);
      step.position_key = position_key.data() + layer * H * d * (1 + near);
      for (int64_t task = 0; task < tasks; ++task) (few ? loops.attend_few : loops.attend_block)(step, task, scratch);
    }
    const double took = std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(layers);
    best = took < best ? took : best;
    spent += took;
  }
  double pairs = 0, near_pairs = 0;
  for (int64_t i = 0; i < S; ++i) {
    const double seen = static_cast<double>(shape.memory + i + 1);
    pairs += seen;
    near_pairs += seen < static_cast<double>(near) ? seen : static_cast<double>(near);
  }
  const double bytes = static_cast<double>(H * d) * ((int8 ? 2.0 : 8.0) * static_cast<double>(C) + 4.0 * static_cast<double>(near));
  std::printf("%s%s: %4lld / %lld, near %lld, d %lld: %7.3f ms, %5.1f GFLOP/s, %5.1f GB/s\n", xlexport::level().name, int8 ? " int8" : "",
              static_cast<long long>(S), static_cast<long long>(shape.memory), static_cast<long long>(near),
              static_cast<long long>(d), best * 1e3,
              2e-9 * static_cast<double>(H * d) * (2 * pairs + near_pairs) / best, bytes * 1e-9 / best);
}

}  // namespace

int main(int count, char** arguments) {
  const double seconds = count > 1 ? std::atof(arguments[1]) : 1;
  const Shape shapes[] = {{80, 2100, 820, 64}, {80, 2100, 0, 64}, {128, 1600, 820, 64}, {320, 2100, 820, 64},
                          {1, 2100, 820, 64},  {8, 2100, 820, 64}, {16, 2100, 820, 64}, {80, 640, 0, 41}};
  const int only = count > 2 ? std::atoi(arguments[2]) : -1;  // the number of a shape
  for (const Shape& shape : shapes) {
    for (bool int8 : {false, true}) {
      if (only < 0 || &shape == shapes + only) measure(shape, seconds, int8);
    }
  }
  return 0;
}
