// SHA-256 (FIPS 180-4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace xlruntime {

class Sha256 {
 public:
  void update(const void* data, std::size_t size);
  void update(std::string_view text) { update(text.data(), text.size()); }

  // The digest of all bytes so far, in hexadecimal. Nothing may be added afterwards.
  std::string hexadecimal();

 private:
  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> block_{};
  std::uint64_t size_ = 0;  // bytes so far
};

inline std::string sha256(std::string_view text) {
  Sha256 sum;
  sum.update(text);
  return sum.hexadecimal();
}

}  // namespace xlruntime
