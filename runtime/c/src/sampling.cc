#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "errors.h"

namespace xlruntime {
namespace {

using Ids = std::vector<std::int64_t>;

constexpr double kLargestPenalty = 1e9;  // farther from 1, products of logits are not finite

std::uint64_t any_seed() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

// The tokens that top_k, top_p and min_p keep, the likeliest first.
Ids kept_tokens(const Sampling& sampling, const std::vector<double>& probabilities) {
  const std::size_t V = probabilities.size();
  const auto is_likelier = [&](std::int64_t a, std::int64_t b) {
    const double p = probabilities[static_cast<std::size_t>(a)], q = probabilities[static_cast<std::size_t>(b)];
    return p != q ? p > q : a < b;
  };
  Ids tokens(V);
  std::iota(tokens.begin(), tokens.end(), 0);
  double total = std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
  const bool cuts = sampling.top_k != 0 && static_cast<std::uint64_t>(sampling.top_k) < V;
  if (cuts) {
    std::nth_element(tokens.begin(), tokens.begin() + sampling.top_k - 1, tokens.end(), is_likelier);
    tokens.resize(static_cast<std::size_t>(sampling.top_k));
  } else {
    // The others together have less probability than 1 - top_p. To sort a vocabulary takes longer than many steps.
    const double least = std::max(sampling.min_p, (1 - sampling.top_p) / static_cast<double>(V) * total);
    const auto is_needless = [&](std::int64_t token) { return probabilities[static_cast<std::size_t>(token)] < least; };
    tokens.erase(std::remove_if(tokens.begin(), tokens.end(), is_needless), tokens.end());
  }
  std::sort(tokens.begin(), tokens.end(), is_likelier);
  if (sampling.top_p < 1) {
    if (cuts) {
      total = 0;
      for (const std::int64_t token : tokens) total += probabilities[static_cast<std::size_t>(token)];
    }
    double reached = 0;
    std::size_t n = 0;
    while (n < tokens.size() && reached < sampling.top_p * total) {
      reached += probabilities[static_cast<std::size_t>(tokens[n++])];
    }
    tokens.resize(n);
  }
  while (probabilities[static_cast<std::size_t>(tokens.back())] < sampling.min_p) tokens.pop_back();  // the first has 1
  return tokens;
}

}  // namespace

std::uint64_t Random::next() {
  std::uint64_t z = state_ += 0x9E3779B97F4A7C15;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
  z = (z ^ z >> 27) * 0x94D049BB133111EB;
  return z ^ z >> 31;
}

Sampling::Sampling(const xlr_sampling& options) : xlr_sampling(options) {
  const auto refuse = [](const std::string& problem) { throw Error(XLR_ERROR_OPTION, "sampling: " + problem + "."); };
  if (!(temperature >= 0)) refuse("temperature is " + std::to_string(temperature) + ", expected at least 0");
  if (top_k < 0) refuse("top_k is " + std::to_string(top_k) + ", expected at least 0");
  if (!(top_p > 0 && top_p <= 1)) refuse("top_p is " + std::to_string(top_p) + ", expected above 0 and at most 1");
  if (!(min_p >= 0 && min_p <= 1)) refuse("min_p is " + std::to_string(min_p) + ", expected 0 to 1");
  if (!(repetition_penalty >= 1 / kLargestPenalty && repetition_penalty <= kLargestPenalty)) {
    refuse("repetition_penalty is " + std::to_string(repetition_penalty) + ", expected 1e-9 to 1e9");
  }
  if (repetition_window < 1) {
    refuse("repetition_window is " + std::to_string(repetition_window) + ", expected at least 1");
  }
}

std::int64_t Sampling::draw(const std::vector<float>& logits, Random& random,
                            const std::deque<std::int64_t>& recent) const {
  std::vector<double> probabilities(logits.begin(), logits.end());  // logits to begin with
  if (repetition_penalty != 1) {
    for (const std::int64_t token : std::set<std::int64_t>(recent.begin(), recent.end())) {
      if (static_cast<std::size_t>(token) >= logits.size()) continue;
      double& logit = probabilities[static_cast<std::size_t>(token)];
      logit = logit < 0 ? logit * repetition_penalty : logit / repetition_penalty;
    }
  }
  const auto place_of_largest = std::max_element(probabilities.begin(), probabilities.end());
  if (temperature == 0) return place_of_largest - probabilities.begin();
  const double largest = *place_of_largest;
  for (double& number : probabilities) number = std::exp((number - largest) / temperature);
  Ids tokens;
  if (top_k != 0 || top_p < 1 || min_p > 0) {
    tokens = kept_tokens(*this, probabilities);
    std::vector<double> kept;
    for (const std::int64_t token : tokens) kept.push_back(probabilities[static_cast<std::size_t>(token)]);
    probabilities = std::move(kept);
  }
  std::partial_sum(probabilities.begin(), probabilities.end(), probabilities.begin());
  const double wanted = random.uniform() * probabilities.back();
  auto place = std::upper_bound(probabilities.begin(), probabilities.end(), wanted) - probabilities.begin();
  place = std::min(place, static_cast<std::ptrdiff_t>(probabilities.size()) - 1);
  return tokens.empty() ? place : tokens[static_cast<std::size_t>(place)];
}

void draw_tokens(const Drawing& drawing, const Ids& before, std::size_t most, const Sampling& sampling) {
  Random random(sampling.has_seed != 0 ? sampling.seed : any_seed());
  const auto window = static_cast<std::size_t>(sampling.repetition_window);
  const auto newest = static_cast<std::ptrdiff_t>(std::min(window, before.size()));
  std::deque<std::int64_t> recent(before.end() - newest, before.end());
  const Ids& ends = drawing.drawable.ends;
  for (std::size_t drawn = 0; drawn < most; ++drawn) {
    std::vector<float> logits = drawing.next_logits();
    const auto is_possible = [](float logit) { return std::isfinite(logit); };
    const auto is_number = [](float logit) { return logit < HUGE_VALF; };  // minus infinity is an impossible token
    if (std::none_of(logits.begin(), logits.end(), is_possible) ||
        !std::all_of(logits.begin(), logits.end(), is_number)) {
      throw Error(XLR_ERROR_RUNTIME, "the model gave logits that are not finite, so generation stops.", drawing.hint);
    }
    logits.resize(std::min(logits.size(), drawing.drawable.size));  // the others have no text
    const std::int64_t token = sampling.draw(logits, random, recent);
    recent.push_back(token);
    if (recent.size() > window) recent.pop_front();
    drawing.add(token);
    const bool is_end = sampling.ignore_eos == 0 && std::find(ends.begin(), ends.end(), token) != ends.end();
    if (is_end || !drawing.take(token)) return;
  }
}

bool all_finite(const float* numbers, std::size_t n) {
  return std::all_of(numbers, numbers + n, [](float number) { return std::isfinite(number); });
}

}  // namespace xlruntime
