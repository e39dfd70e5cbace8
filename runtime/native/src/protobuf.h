// The wire format of protocol buffers: fields and the places of their values, without their meaning.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace xlruntime::protobuf {

struct WireError {
  std::string problem;
};

// One field with a text, bytes or a message: its number, and the place of the value without its length prefix.
struct Field {
  std::uint64_t number;
  std::size_t begin, end;
};

// Return the number that begins at `place`, and move `place` behind it.
inline std::uint64_t read_varint(std::string_view data, std::size_t& place, std::size_t end) {
  constexpr std::size_t kLongest = 10;
  const std::size_t start = place;
  std::uint64_t value = 0;
  for (std::size_t length = 0; length < kLongest && start + length < end; ++length) {
    const auto byte = static_cast<unsigned char>(data[start + length]);
    if (length == kLongest - 1 && (byte & 126) != 0) {
      value = ~std::uint64_t{0};  // beyond 64 bits: too large for a length or a tag
    } else {
      value |= static_cast<std::uint64_t>(byte & 127) << 7 * length;
    }
    if (byte < 128) {
      place = start + length + 1;
      return value;
    }
  }
  throw WireError{"the number at byte " + std::to_string(start) + " has no end"};
}

// Call `take` with each text, bytes or message in the message data[start:end]; return its number of fields. Nothing is
// copied. Throws WireError.
template <class Take>
std::int64_t each_field(std::string_view data, std::size_t start, std::size_t end, Take take) {
  constexpr unsigned kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;  // 3 and 4 are groups, which ONNX never had
  std::int64_t count = 0;
  for (std::size_t place = start; place < end; ++count) {
    const std::size_t begin = place;
    const auto at = [begin] { return ", as at byte " + std::to_string(begin); };
    const std::uint64_t tag = read_varint(data, place, end);
    if (tag < 8 || tag >= std::uint64_t{1} << 32) {
      throw WireError{"no field has number " + std::to_string(tag >> 3) + at()};
    }
    const unsigned wire_type = tag & 7;
    std::uint64_t size = 0;
    if (wire_type == kBytes) {
      size = read_varint(data, place, end);
    } else if (wire_type == kVarint) {
      read_varint(data, place, end);
    } else if (wire_type == kFixed64 || wire_type == kFixed32) {
      size = wire_type == kFixed64 ? 8 : 4;
    } else {
      throw WireError{"no field has wire type " + std::to_string(wire_type) + at()};
    }
    if (size > end - place) throw WireError{"the field at byte " + std::to_string(begin) + " ends outside its message"};
    if (wire_type == kBytes) take(Field{tag >> 3, place, place + static_cast<std::size_t>(size)});
    place += static_cast<std::size_t>(size);
  }
  return count;
}

}  // namespace xlruntime::protobuf
