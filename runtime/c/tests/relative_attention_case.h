// Random inputs of RelativeAttention, and a plain reference in double precision.
#pragma once

#include "kernel_test.h"

struct Case {
  int64_t B, H, S, C, d, near, offset, window;
  std::vector<int64_t> length;
  std::vector<float> qkv, content_bias, position_bias, key, value, position_key;
  bool in_place;
};

inline Case make_case() {
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

[[noreturn]] inline void fail(const Case& c, const std::string& what) {
  ::fail(what, {{"B", c.B}, {"H", c.H}, {"S", c.S}, {"C", c.C}, {"d", c.d}, {"near", c.near}, {"offset", c.offset},
              {"window", c.window}, {"length", c.length.empty() ? -1 : c.length[0]}, {"in place", c.in_place}});
}
