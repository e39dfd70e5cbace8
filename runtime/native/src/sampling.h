// Draw tokens from logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "numpy_random.h"

namespace xlruntime {

// The rule for drawing tokens: from probabilities at `temperature`, cut by `top_k`, then by `top_p`.
struct Sampling {
  double temperature = 1;             // divisor of the logits; 0 takes the likeliest token
  std::optional<std::int64_t> top_k;  // draw only from the k likeliest tokens
  std::optional<double> top_p;        // draw only from the likeliest tokens that together reach this probability
  std::optional<std::uint64_t> seed;  // none: another one for each run

  // Throws ErrorCode::option: values are out of range; lists all of them.
  void check() const;

  NumpyRandom random() const;

  // Draw one token id from the logits of a vocabulary of `n` tokens. They are finite.
  std::int64_t draw(const float* logits, std::size_t n, NumpyRandom& random) const;
};

// Draw up to `most` tokens, each after the ones before it.
//
// `next_logits` runs the model and returns the logits of the next token; `take` adds a drawn token to the document, and
// returns whether to go on. Throws ErrorCode::runtime, with `repair`: logits are not finite.
void draw_tokens(const std::function<std::vector<float>()>& next_logits, const std::function<bool(std::int64_t)>& take,
                 std::size_t most, const Sampling& sampling, const std::string& repair);

bool all_finite(const float* numbers, std::size_t n);

}  // namespace xlruntime
