// Draw tokens from logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
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

// The rule for drawing tokens: from probabilities at `temperature`, cut by `top_k`, `top_p` and `min_p`.
struct Sampling {
  double temperature = 1;             // divisor of the logits; 0 takes the likeliest token
  std::int64_t top_k = 0;             // draw only from the k likeliest tokens; 0: from all
  double top_p = 1;                   // draw only from the likeliest tokens that together reach this probability
  std::optional<std::uint64_t> seed;  // none: another one for each run
  double min_p = 0;                   // draw only from tokens at least this many times as likely as the likeliest one
  double repetition_penalty = 1;      // divisor of the positive logits of recent tokens, factor of their negative ones
  std::int64_t repetition_window = 64;  // tokens that count as recent
  bool ignore_eos = false;              // go on after a token that ends a text

  // Throws XLR_ERROR_OPTION: a value is out of range.
  void check() const;

  // Draw one token id from the logits of a vocabulary, which are finite, after `recent` tokens.
  std::int64_t draw(const std::vector<float>& logits, Random& random, const std::deque<std::int64_t>& recent) const;
};

// What may be drawn: ids below `size`, of which `ends` end a text.
struct Drawable {
  std::size_t size = 0;
  std::vector<std::int64_t> ends;
};

// A model that continues a document.
struct Drawing {
  std::function<std::vector<float>()> next_logits;  // run the model, and return the logits of the next token
  std::function<void(std::int64_t)> add;            // a drawn token becomes part of the document
  std::function<bool(std::int64_t)> take;           // the caller's; returns whether to go on
  Drawable drawable;
  std::string hint;  // for logits that are not finite
};

// Draw up to `most` tokens, each after the ones before it; `before` are those before the first.
//
// A token that ends a text is the last one, which the caller does not take. Throws XLR_ERROR_RUNTIME: logits are not
// finite.
void draw_tokens(const Drawing& drawing, const std::vector<std::int64_t>& before, std::size_t most,
                 const Sampling& sampling);

bool all_finite(const float* numbers, std::size_t n);

}  // namespace xlruntime
