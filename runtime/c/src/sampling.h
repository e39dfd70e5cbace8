// Draw tokens from logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace xlruntime {

// SplitMix64, so that equal seeds draw equal tokens in all runtimes.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next();
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // in [0, 1)

 private:
  std::uint64_t state_;
};

// The rule for drawing tokens: from probabilities at `temperature`, cut by `top_k`, then by `top_p`.
struct Sampling {
  double temperature = 1;             // divisor of the logits; 0 takes the likeliest token
  std::int64_t top_k = 0;             // draw only from the k likeliest tokens; 0: from all
  double top_p = 1;                   // draw only from the likeliest tokens that together reach this probability
  std::optional<std::uint64_t> seed;  // none: another one for each run

  // Throws XLR_ERROR_OPTION: a value is out of range.
  void check() const;

  // Draw one token id from the logits of a vocabulary, which are finite.
  std::int64_t draw(const std::vector<float>& logits, Random& random) const;
};

// Draw up to `most` tokens, each after the ones before it.
//
// `next_logits` runs the model and returns the logits of the next token; `take` adds a drawn token to the document, and
// returns whether to go on. Throws XLR_ERROR_RUNTIME, with `hint`: logits are not finite.
void draw_tokens(const std::function<std::vector<float>()>& next_logits, const std::function<bool(std::int64_t)>& take,
                 std::size_t most, const Sampling& sampling, const std::string& hint);

bool all_finite(const float* numbers, std::size_t n);

}  // namespace xlruntime
