// Draw tokens from logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "xlruntime.h"

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

// The rule for drawing tokens, whose fields xlruntime.h describes.
struct Sampling : xlr_sampling {
  // Throws XLR_ERROR_OPTION: a value is out of range.
  explicit Sampling(const xlr_sampling& options);

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
