#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "error.h"
#include "messages.h"
#include "numpy_sum.h"

namespace xlruntime {
namespace {

std::string general(double number) {
  char text[64];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

// Tokens that may be drawn, and weights proportional to their probabilities.
struct Candidates {
  std::vector<std::int64_t> tokens;
  std::vector<double> weights;
};

double sum(const std::vector<double>& numbers) { return numpy_sum(numbers.data(), numbers.size()); }

// The tokens of which one can be among those of top_k and top_p. To sort a whole vocabulary takes longer than many
// steps.
std::vector<std::int64_t> possible(const std::vector<double>& scores, const std::vector<double>& probabilities,
                                   std::size_t k, std::optional<double> top_p) {
  const std::size_t V = scores.size();
  const std::vector<double>* numbers = &probabilities;
  double least;
  if (k < V) {
    std::vector<double> sorted = scores;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(V - k), sorted.end());
    least = sorted[V - k];  // more than k tokens have it if some are equal
    numbers = &scores;
  } else {
    // The less likely tokens together have less probability than 1 - top_p, so none of them is needed.
    least = (1 - *top_p) / static_cast<double>(V) * sum(probabilities);
  }
  std::vector<std::int64_t> tokens;
  for (std::size_t i = 0; i < V; ++i) {
    if ((*numbers)[i] >= least) tokens.push_back(static_cast<std::int64_t>(i));
  }
  return tokens;
}

Candidates candidates(const Sampling& sampling, const std::vector<double>& scores) {
  const std::size_t V = scores.size();
  const std::size_t k = sampling.top_k ? std::min(static_cast<std::size_t>(*sampling.top_k), V) : V;
  std::vector<double> probabilities(V);
  std::transform(scores.begin(), scores.end(), probabilities.begin(), [](double score) { return std::exp(score); });
  if (k == V && !sampling.top_p) {
    std::vector<std::int64_t> all(V);
    std::iota(all.begin(), all.end(), 0);
    return {std::move(all), std::move(probabilities)};
  }
  Candidates found{possible(scores, probabilities, k, sampling.top_p), {}};
  const auto likelier = [&](std::int64_t a, std::int64_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  };
  std::stable_sort(found.tokens.begin(), found.tokens.end(), likelier);  // equal ones by id
  found.tokens.resize(std::min(found.tokens.size(), k));
  for (const std::int64_t token : found.tokens) found.weights.push_back(probabilities[static_cast<std::size_t>(token)]);
  if (sampling.top_p) {
    const double total = k < V ? sum(found.weights) : sum(probabilities);
    double reached = 0;
    std::size_t n = 0;
    while (n < found.weights.size()) {  // always at least the likeliest one
      reached += found.weights[n] / total;
      ++n;
      if (reached >= *sampling.top_p) break;
    }
    found.tokens.resize(n);
    found.weights.resize(n);
  }
  return found;
}

}  // namespace

void Sampling::check() const {
  std::vector<std::string> problems;
  if (!(temperature >= 0)) problems.push_back("temperature is " + general(temperature) + ", at least 0 is needed");
  if (top_k && *top_k < 1) problems.push_back("top_k is " + std::to_string(*top_k) + ", at least 1 is needed");
  if (top_p && !(*top_p > 0 && *top_p <= 1)) {
    problems.push_back("top_p is " + general(*top_p) + ", expected more than 0 and at most 1");
  }
  if (!problems.empty()) throw Error(ErrorCode::option, "sampling: " + joined(problems, "; ") + ".");
}

NumpyRandom Sampling::random() const { return seed ? NumpyRandom(*seed) : NumpyRandom::from_system(); }

std::int64_t Sampling::draw(const float* logits, std::size_t n, NumpyRandom& random) const {
  const float* const largest = std::max_element(logits, logits + n);
  if (temperature == 0) return largest - logits;
  std::vector<double> scores(n);
  std::transform(logits, logits + n, scores.begin(), [&](float logit) {
    return (static_cast<double>(logit) - static_cast<double>(*largest)) / temperature;
  });
  Candidates found = candidates(*this, scores);
  const double total = sum(found.weights);
  double reached = 0;
  for (double& weight : found.weights) weight = reached += weight / total;
  const double drawn = random.uniform();
  for (double& weight : found.weights) weight /= reached;
  const auto place = std::upper_bound(found.weights.begin(), found.weights.end(), drawn) - found.weights.begin();
  return found.tokens[std::min(static_cast<std::size_t>(place), found.tokens.size() - 1)];
}

void draw_tokens(const std::function<std::vector<float>()>& next_logits, const std::function<bool(std::int64_t)>& take,
                 std::size_t most, const Sampling& sampling, const std::string& repair) {
  NumpyRandom random = sampling.random();
  for (std::size_t drawn = 0; drawn < most; ++drawn) {
    const std::vector<float> logits = next_logits();
    if (!all_finite(logits.data(), logits.size())) {
      throw Error(ErrorCode::runtime, "the model gave logits that are not finite, so generation stops.", repair);
    }
    if (!take(sampling.draw(logits.data(), logits.size(), random))) return;
  }
}

bool all_finite(const float* numbers, std::size_t n) {
  return std::all_of(numbers, numbers + n, [](float number) { return std::isfinite(number); });
}

}  // namespace xlruntime
