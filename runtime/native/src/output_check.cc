#include "output_check.h"

#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>

#include "error.h"
#include "messages.h"

namespace xlruntime {

namespace {

constexpr double kLargestLogProb = 1e-3;  // rounding may raise a logarithm of 1 above zero
constexpr double kEntropyError = 0.01;    // in nats, relative to 1 + the largest entropy; float16 rounds as coarsely

struct Range {
  double least, most;
};

std::optional<Range> range_of(std::string_view name, std::int64_t vocab_size) {
  const double largest_entropy = std::log(static_cast<double>(vocab_size));
  const double slack = kEntropyError * (1 + largest_entropy);
  const double n = static_cast<double>(vocab_size);
  if (name == "log_prob" || name == "top_log_probs") return Range{-HUGE_VAL, kLargestLogProb};
  if (name == "rank") return Range{1, n};
  if (name == "top_ids") return Range{0, n - 1};
  if (name == "entropy") return Range{-slack, largest_entropy + slack};
  return std::nullopt;
}

Error not_as_described(const std::string& file, const std::string& problem) {
  return Error(ErrorCode::bundle, file + ": " + problem + ".", "Convert the checkpoint again.");
}

std::string sizes_text(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> parts;
  for (const std::int64_t size : shape) parts.push_back(std::to_string(size));
  return parts.empty() ? "scalar" : joined(parts, " x ");
}

std::string digits(double value, const char* format) {
  char text[40];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

// The size that an axis must have; 0 is any.
std::int64_t wanted_size(const Axis& axis, std::int64_t batch, std::int64_t segment) {
  return !axis.is_free() ? axis.size : axis.name == "batch" ? batch : axis.name == "segment" ? segment : 0;
}

template <class T>
void require(const std::string& file, const std::string& name, const T* values, std::size_t size, const Range& range) {
  const bool is_log = range.least == -HUGE_VAL;
  // The bounds in the precision of the output, or rounding alone could put a value beyond them.
  const double smallest = static_cast<double>(static_cast<T>(is_log ? 0 : range.least));
  const double largest = static_cast<double>(static_cast<T>(range.most));
  double least = HUGE_VAL, most = -HUGE_VAL;
  for (std::size_t i = 0; i < size; ++i) {
    const double value = static_cast<double>(values[i]);
    if (std::isnan(value) || (is_log && std::isinf(value))) continue;  // whoever asked for the step handles these
    least = value < least ? value : least;
    most = value > most ? value : most;
  }
  if (least > most || ((is_log || least >= smallest) && most <= largest)) return;
  throw not_as_described(
      file, "output " + name + " has values from " + digits(least, "%g") + " to " + digits(most, "%g") + ", expected " +
                (is_log ? "logarithms of probabilities, at most 0"
                        : digits(range.least, "%.6g") + " to " + digits(range.most, "%.6g")));
}

}  // namespace

void require_kind(const std::string& file, const Tensor& tensor, std::string_view dtype,
                  const std::vector<std::int64_t>& shape, std::int64_t batch, std::int64_t segment) {
  bool fits = dtype == tensor.dtype && shape.size() == tensor.shape.size();
  for (std::size_t i = 0; fits && i < shape.size(); ++i) {
    const std::int64_t wanted = wanted_size(tensor.shape[i], batch, segment);
    fits = wanted == 0 || wanted == shape[i];
  }
  if (fits) return;
  std::vector<std::string> parts;
  for (const Axis& axis : tensor.shape) {
    const std::int64_t wanted = wanted_size(axis, batch, segment);
    parts.push_back(wanted == 0 ? axis.name : std::to_string(wanted));
  }
  throw not_as_described(file, "output " + named(tensor.name) + " is " + std::string(dtype) + " " + sizes_text(shape) +
                                   ", expected " + tensor.dtype + " " +
                                   (parts.empty() ? "scalar" : joined(parts, " x ")));
}

void require_range(const std::string& file, const std::string& name, std::string_view dtype, const void* data,
                   std::size_t size, std::int64_t vocab_size) {
  const std::optional<Range> range = range_of(name, vocab_size);
  if (!range) return;
  if (dtype == "float32") require(file, name, static_cast<const float*>(data), size, *range);
  if (dtype == "float64") require(file, name, static_cast<const double*>(data), size, *range);
  if (dtype == "int64") require(file, name, static_cast<const std::int64_t*>(data), size, *range);
}

}  // namespace xlruntime
