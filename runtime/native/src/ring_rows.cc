#include "ring_rows.h"

#include <cstring>

namespace xlruntime {
namespace {

// The nearest half-precision number, ties to even, as bits.
std::uint16_t half_of(float number) {
  std::uint32_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits >= 0x477ff000) return sign | (bits > 0x7f800000 ? 0x7e00 : 0x7c00);  // rounds to infinity, or NaN
  if (bits < 0x33000001) return sign;                                           // rounds to zero
  const auto exponent = static_cast<int>(bits >> 23) - 127;
  const std::uint32_t mantissa = (bits & 0x7fffff) | 0x800000;
  const int dropped = exponent < -14 ? 13 + (-14 - exponent) : 13;  // bits: more of a subnormal number
  std::uint32_t kept = mantissa >> dropped;
  const std::uint32_t rest = mantissa & ((1u << dropped) - 1), middle = 1u << (dropped - 1);
  if (rest > middle || (rest == middle && (kept & 1) != 0)) ++kept;
  // The leading bit of a normal number adds one to the exponent; a carry of the rounding does so, too.
  if (exponent >= -14) kept += static_cast<std::uint32_t>(exponent + 14) << 10;
  return static_cast<std::uint16_t>(sign | kept);
}

template <class T>
std::string as(const std::vector<double>& numbers) {
  std::string data(numbers.size() * sizeof(T), '\0');
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const T number = static_cast<T>(numbers[i]);
    std::memcpy(&data[i * sizeof(T)], &number, sizeof(T));
  }
  return data;
}

}  // namespace

RowShape::RowShape(const std::vector<std::int64_t>& shape, std::size_t axis, std::size_t item_size)
    : rows(shape[axis]), row_bytes(item_size) {
  for (std::size_t i = 0; i < axis; ++i) outer *= shape[i];
  for (std::size_t i = axis + 1; i < shape.size(); ++i) row_bytes *= static_cast<std::size_t>(shape[i]);
}

std::string cast(const HeldTensor& value, const std::string& dtype) {
  if (value.dtype == dtype) return value.data;
  const std::vector<double> numbers = value.values();
  if (dtype == "float32") return as<float>(numbers);
  if (dtype == "float64") return as<double>(numbers);
  if (dtype == "int8") return as<std::int8_t>(numbers);
  if (dtype == "int16") return as<std::int16_t>(numbers);
  if (dtype == "int32") return as<std::int32_t>(numbers);
  if (dtype == "int64") return as<std::int64_t>(numbers);
  if (dtype == "uint8" || dtype == "bool") return as<std::uint8_t>(numbers);
  if (dtype == "uint16") return as<std::uint16_t>(numbers);
  if (dtype == "uint32") return as<std::uint32_t>(numbers);
  if (dtype == "uint64") return as<std::uint64_t>(numbers);
  std::string data(numbers.size() * 2, '\0');
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::uint16_t half = half_of(static_cast<float>(numbers[i]));
    std::memcpy(&data[i * 2], &half, 2);
  }
  return data;
}

}  // namespace xlruntime
